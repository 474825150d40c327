"""Pickles that Petastorm writes are read, all others are refused, and nothing in them is executed."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from decimal import Decimal
from types import FrameType
from typing import Any

import numpy as np
import pytest

from parquet_loader import DataError
from parquet_loader.source.unischema.allowlist import LISTED
from parquet_loader.source.unischema.records import Codec, FieldRecord, SparkType, read_indexes, read_unischema
from tests.support import pickles

FIELDS = (
    FieldRecord("id", "int64", (), Codec("ScalarCodec", SparkType("IntegerType")), False),
    FieldRecord("text", "str_", (), Codec("ScalarCodec", SparkType("StringType")), True),
    FieldRecord("price", "Decimal", (), Codec("ScalarCodec", SparkType("DecimalType", 9, 2)), False),
    FieldRecord("flag", "bool", (), None, False),
    FieldRecord("cloud", "float32", (None, 3), Codec("NdarrayCodec"), False),
    FieldRecord("packed", "uint8", (4,), Codec("CompressedNdarrayCodec"), True),
    FieldRecord("image", "uint8", (8, 8, 3), Codec("CompressedImageCodec", None, "jpeg", 90), False),
)


@pytest.mark.parametrize("restored", [False, True], ids=["namedtuple", "pyspark._restore"])
@pytest.mark.parametrize("package", pickles.PACKAGES)
@pytest.mark.parametrize("protocol", range(6))
def test_unischemas_of_every_protocol_and_package_are_read(protocol: int, package: str, restored: bool) -> None:
    found = read_unischema(pickles.unischema(protocol, package, restored=restored))
    assert found.name == "S"
    assert found.fields == FIELDS


@pytest.mark.parametrize("package", pickles.PACKAGES)
@pytest.mark.parametrize("protocol", range(6))
def test_indexes_of_every_protocol_and_package_are_read(protocol: int, package: str) -> None:
    found = read_indexes(pickles.indexes(protocol, package))
    values = found["by"].values
    assert found["by"].column == "c"
    assert [set(values[key]) for key in ("a", "b", 7, Decimal("1.50"))] == [{0, 1}, {2}, {1}, {0}]
    assert found["not_null"].row_groups == {0, 5}
    if protocol >= 3:
        assert values[np.int64(3)] == {0}
        assert values["é"] == {1}
        assert values[""] == {2}
        assert values[2.5] == {3}
        assert values[np.datetime64("2020-01-02T03", "h")] == {2}
        assert len(values) == 11


def test_what_python_2_pickled_is_read() -> None:
    found = read_unischema(pickles.PYTHON_2)
    assert found.name == "Old"
    assert found.fields == (
        FieldRecord("id", "int64", (), Codec("ScalarCodec", SparkType("LongType")), False),
        FieldRecord("näme", "str_", (3, None), None, True),
    )


@pytest.mark.parametrize("old", ["unicode_", "string_", "bool", "bool_", "float_", "int_", "str_", "bytes_"])
def test_numpy_types_are_known_by_old_and_new_names(old: str) -> None:
    data = pickles.unischema(0, count=1).replace(b"cnumpy\nint64\n", f"cnumpy\n{old}\n".encode())
    new = {"unicode_": "str_", "string_": "bytes_", "bool_": "bool", "float_": "float64", "int_": "int64"}.get(old, old)
    assert read_unischema(data).fields[0].dtype == new


def test_the_list_of_names_holds_what_petastorm_writes_and_nothing_else() -> None:
    modules = {module for module, _ in LISTED}
    assert modules == {
        *(f"{p}.{m}" for p in pickles.PACKAGES for m in ("unischema", "codecs", "etl.rowgroup_indexers")),
        *("pyspark.sql.types", "pyspark.serializers", "numpy", "numpy.core.multiarray", "numpy._core.multiarray"),
        *("collections", "decimal", "copy_reg", "copyreg", "__builtin__", "builtins"),
    }
    for module in ("__builtin__", "builtins"):
        assert {name for m, name in LISTED if m == module} == {"set", "tuple", "object"}


ATTACKS = pickles.attacks()


@pytest.mark.parametrize("attack", ATTACKS, ids=[a.name for a in ATTACKS])
def test_attacks_are_refused_and_nothing_is_run(attack: pickles.Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("this was called")

    for module, name in ((os, "system"), (builtins, "eval"), (builtins, "exec"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, never)
    with pytest.raises(DataError, match="is refused") as caught:
        read_unischema(attack.data)
    assert attack.message in str(caught.value)
    assert len(str(caught.value)) < 400
    with pytest.raises(DataError, match="is refused"):
        read_indexes(attack.data)


@pytest.mark.parametrize(("name", "key", "message"), pickles.INDEX_ATTACKS, ids=[n for n, *_ in pickles.INDEX_ATTACKS])
def test_values_that_no_index_holds_are_refused(name: str, key: bytes, message: str) -> None:
    with pytest.raises(DataError, match="is refused") as caught:
        read_indexes(pickles.index_of(key))
    assert message in str(caught.value)


def test_what_indexes_share_is_read_once() -> None:
    """Fifty indexes that all hold the same ten thousand values take the time of one."""
    values = b"".join(b"I%d\nh\x00" % n for n in range(10_000))
    shared = b"(d(" + values + b"uq\x01"
    one = b"cpetastorm.etl.rowgroup_indexers\nSingleFieldIndexer\n)\x81(dS'_index_name'\nS'i'\n"
    one += b"sS'_column_name'\nS'c'\nsS'_index_data'\nh\x01sb"
    data = b"c__builtin__\nset\n((lI1\natRq\x000" + shared + b"0(d("
    found = read_indexes(data + b"".join(b"S'%d'\n" % n + one for n in range(50)) + b"u.")
    assert len(found) == 50
    assert found["0"].values is found["49"].values
    with pytest.raises(DataError, match="shared references"):
        read_indexes(data + b"".join(b"S'%d'\n" % n + one for n in range(1000)) + b"u.")


def test_what_is_shared_cannot_multiply() -> None:
    """Small parts that are shared are read; where they would take time or memory without bounds, they are refused."""
    for name, data in pickles.growing_indexes(20):
        assert read_indexes(data), name
    with pytest.raises(DataError, match="two fields have the same name"):
        read_unischema(pickles.growing_unischema(20))
    with pytest.raises(DataError, match="shared references"):
        read_unischema(pickles.growing_unischema(20_000))
    for name, data in pickles.growing_indexes(3000):
        with pytest.raises(DataError, match="shared references"):
            pytest.fail(f"{name}: {len(read_indexes(data))} were read")


def test_values_of_one_hash_are_refused() -> None:
    assert len(read_indexes(pickles.indexed_of_one_hash(100))["a"].values) == 100
    with pytest.raises(DataError, match="values with the same hash"):
        read_indexes(pickles.indexed_of_one_hash(101))


def test_every_call_while_a_pickle_is_read_is_one_of_ours() -> None:
    """A profiler sees each function that runs: Python's of this package, and a few of C that take data apart."""
    mutator = pickles.Mutator(1)
    ours = ("parquet_loader/source/unischema/", "/re/", "/enum.py", "<string>", "numpy/_core/_methods.py")
    seen: set[str] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and not any(part in frame.f_code.co_filename for part in ours):
            seen.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        elif event == "c_call":
            name = f"{getattr(argument, '__module__', None)}.{argument.__qualname__}"
            if any(
                word in name for word in ("import", "exec", "eval", "open", "compile", "getattr", "setattr", "system")
            ):
                seen.add(name)

    for data in [mutator.draw() for _ in range(1500)] + [a.data for a in ATTACKS if len(a.data) < 1000]:
        for reader in (read_unischema, read_indexes):
            sys.setprofile(profile)
            try:
                reader(data)
            except DataError:
                pass
            finally:
                sys.setprofile(None)
    assert not seen


def run_fuzz(count: int, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fuzz_metadata", "--count", str(count), "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_mutated_pickles_raise_only_our_error_and_do_nothing() -> None:
    assert "no audit event" in run_fuzz(3000, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_many_mutated_pickles_raise_only_our_error_and_do_nothing() -> None:
    assert "no audit event" in run_fuzz(100_000, seed=8)
