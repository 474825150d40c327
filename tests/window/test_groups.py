"""Members of a group are decoded to the window and interleaved there, with the same result as columns of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, DataError, Group, OutputOptions, Scalar, Schema, Text
from parquet_loader.common import IS_BUILT
from parquet_loader.decode import NativeChunks
from tests.source.tables.delta_logs import add, column, commit, inline_vector, metadata, protocol

ROWS = 5000
NUMPY = OutputOptions(format="numpy")
rng = np.random.default_rng(3)


def write(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(2):
        some = slice(number * ROWS // 2, (number + 1) * ROWS // 2)
        table = pa.table({name: values[some] for name, values in columns.items()})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=700, **options)
    return folder


def numbers(names: str, dtype: Any) -> dict[str, npt.NDArray[Any]]:
    return {name: rng.integers(0, 100, ROWS).astype(dtype) for name in names}


def check(folder: Path, members: str, field: Scalar, **options: Any) -> set[str]:
    """Compare batches with columns of the rows that `y` numbers; return the columns that kernels decoded straight."""
    group = {"y": Scalar("int64"), "all": Group(tuple(members), field)}
    apart = {"y": Scalar("int64")} | dict.fromkeys(members, field)
    options = {"shuffle": True, "window_rows": 1500, "output_options": NUMPY, **options}
    straight = set[str]()
    read_into = NativeChunks.read_into

    def noted(self: NativeChunks, *arguments: Any) -> None:
        straight.update(self.names)
        read_into(self, *arguments)

    with BatchedDataLoader(folder, ROWS, schema=Schema(apart), window_rows=ROWS, output_options=NUMPY) as loader:
        (columns,) = loader
    rows = list[int]()
    with (
        pytest.MonkeyPatch.context() as patch,
        BatchedDataLoader(folder, 64, schema=Schema(group), **options) as loader,
    ):
        patch.setattr(NativeChunks, "read_into", noted)
        for batch in loader:
            numbers = np.asarray(batch["y"])
            matrix = np.stack([columns[name][numbers] for name in members], 1)
            np.testing.assert_array_equal(np.asarray(batch["all"]), matrix)
            assert np.asarray(batch["all"]).dtype == matrix.dtype
            rows += numbers.tolist()
    assert sorted(rows) == list(range(ROWS))
    return straight


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "float16", "int32", "float32", "int64", "float64", "datetime64[us]"]
)
@pytest.mark.parametrize("members", ["ab", "abcdefg"])
def test_groups_of_every_width_equal_their_columns(tmp_path: Path, dtype: str, members: str) -> None:
    folder = write(tmp_path, numbers(members, dtype) | {"y": np.arange(ROWS)})
    straight = check(folder, members, Scalar(dtype))
    assert straight == ({*members, "y"} if IS_BUILT else set())


@pytest.mark.parametrize("options", [{"isolation": "process"}, {"window_rows": 300}, {"shuffle": False}])
def test_wide_groups_and_several_slices(tmp_path: Path, options: dict[str, Any]) -> None:
    members = "".join(chr(ord("A") + number) for number in range(70) if (number < 24 or number > 31) and number != 56)
    folder = write(tmp_path, numbers(members, "int32") | {"y": np.arange(ROWS)})
    assert 4 * len(members) >= 240
    check(folder, members, Scalar("int32"), **options)
    check(folder, members, Scalar("float64"), **options)  # converted, so Arrow's arrays are interleaved


def test_rows_ordered_by_the_device(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = write(tmp_path, numbers("abc", "float32") | {"y": np.arange(ROWS)})
    device: dict[str, Any] = {"device": torch.device("cpu"), "output_options": OutputOptions(shuffle_on_device=True)}
    check(folder, "abc", Scalar("float32"), **device)


def test_nulls_are_filled_or_refused_as_in_columns(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        name: pa.array(values, mask=rng.random(ROWS) < 0.1) for name, values in numbers("abc", "float32").items()
    }
    folder = write(tmp_path, columns | {"y": np.arange(ROWS)})
    straight = check(folder, "abc", Scalar("float32", fill=np.nan))
    check(folder, "abc", Scalar("float32", fill=7))
    assert straight == ({*"abc", "y"} if IS_BUILT else set())
    refusing = Schema({"all": Group(("a", "b", "c"), Scalar("float32", null="refuse"))})
    with (
        BatchedDataLoader(folder, 64, schema=refusing, output_options=NUMPY) as loader,
        pytest.raises(DataError, match=r"column 'a', row \d+: is null"),
    ):
        list(loader)
    masked = Schema({"all": Group(("a", "b", "c"), Scalar("float32", null="mask"))})
    with BatchedDataLoader(folder, 5000, schema=masked, window_rows=5000, output_options=NUMPY) as loader:
        (batch,) = loader
    valid = np.stack([columns[name].is_valid().to_numpy(zero_copy_only=False) for name in "abc"], 1)
    np.testing.assert_array_equal(batch["all_valid"], valid)


def test_a_member_that_kernels_cannot_decode_leaves_its_whole_group_to_arrays(tmp_path: Path) -> None:
    columns = numbers("abc", "int32") | {"y": np.arange(ROWS)}
    folder = write(tmp_path / "a", columns, compression={"a": "snappy", "b": "brotli", "c": "snappy", "y": "snappy"})
    assert check(folder, "abc", Scalar("int32")) == ({"y"} if IS_BUILT else set())
    (write(tmp_path / "b", columns) / "1.parquet").replace(folder / "1.parquet")
    assert check(folder, "abc", Scalar("int32")) == ({*"abc", "y"} if IS_BUILT else set())


def test_groups_with_aliases_and_with_the_name_of_a_member(tmp_path: Path) -> None:
    columns = numbers("abc", "int32")
    folder = write(tmp_path, columns)
    number = Scalar("int32")
    for fields in (
        {"all": Group(("a", "b"), number), "z": Scalar("int32", aliases=("c",))},
        {"a": Group(("a", "b"), number)},
        {"all": Group({"z": Scalar("int32", aliases=("a",)), "b": number})},
    ):
        with BatchedDataLoader(folder, ROWS, schema=Schema(fields), output_options=NUMPY) as loader:
            (batch,) = loader
        for name, field in fields.items():
            own = [name] if not isinstance(field, Group) else list(field.fields)
            own = [{"z": "c" if "z" in fields else "a"}.get(member, member) for member in own]
            expected = np.stack([columns[member] for member in own], 1)
            np.testing.assert_array_equal(batch[name], expected if isinstance(field, Group) else expected[:, 0])


def test_text_beside_a_group(tmp_path: Path) -> None:
    words = [f"word {number}" * (number % 5) for number in range(ROWS)]
    columns = numbers("ab", "int32")
    folder = write(tmp_path, columns | {"t": words})
    schema = Schema({"all": Group(("a", "b"), Scalar("int32")), "t": Text()})
    with BatchedDataLoader(folder, 100, schema=schema, shuffle=True, window_rows=1000, output_options=NUMPY) as loader:
        seen = [
            (*row, str(text).encode()) for batch in loader for row, text in zip(batch["all"], batch["t"], strict=True)
        ]
    assert sorted(seen) == sorted(zip(columns["a"], columns["b"], (word.encode() for word in words), strict=True))


def test_deleted_rows_of_a_table_are_left_out(tmp_path: Path) -> None:
    columns = numbers("ab", "int32") | {"y": np.arange(ROWS)}
    gone = sorted(rng.choice(ROWS, ROWS // 3, replace=False).tolist())
    commit(
        tmp_path,
        0,
        protocol(3, 7, ["deletionVectors"]),
        metadata([column("a", "integer"), column("b", "integer"), column("y", "long")]),
        add(tmp_path, "0.parquet", pa.table(columns), deletionVector=inline_vector(gone), row_group_size=1000),
    )
    schema = Schema({"all": Group(("a", "b"), Scalar("int32")), "y": Scalar("int64")})
    with BatchedDataLoader(tmp_path, 64, schema=schema, shuffle=True, window_rows=900, output_options=NUMPY) as loader:
        batches = list(loader)
    rows = np.concatenate([batch["y"] for batch in batches])
    assert sorted(rows.tolist()) == sorted(set(range(ROWS)).difference(gone))
    expected = np.stack([columns["a"][rows], columns["b"][rows]], 1)
    np.testing.assert_array_equal(np.concatenate([batch["all"] for batch in batches]), expected)
