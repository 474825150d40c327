"""Claims about what nobody designed for: odd globs, NaN behind statistics, odd images, what transforms hand back."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import (
    BatchedDataLoader,
    Category,
    DataError,
    Encoded,
    Group,
    Image,
    ParquetDataset,
    Ragged,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    Tensor,
    TransformError,
    write_dataset,
)
from parquet_loader.collate.device import cuda as device_module
from parquet_loader.engine.engine import Engine
from parquet_loader.read.row_filter import RowFilter
from parquet_loader.source.opening import open_snapshot


def written(folder: Path, **columns: Any) -> Path:
    path = folder / "part.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def first_batch(source: Any, batch_size: int = 8, **options: Any) -> dict[str, Any]:
    with BatchedDataLoader(source, batch_size, num_threads=2, **options) as loader:
        (batch,) = list(loader)
    return batch


NAN = float("nan")


@pytest.mark.parametrize(
    ("expression", "nested"),
    [
        (pc.field("x").isin([NAN]), False),
        (pc.field("x").is_null(nan_is_null=True), False),
        (~(pc.field("x") <= 5), False),
        (pc.field("s", "x") != 1, True),
        (~(pc.field("s", "x") <= 5), True),
    ],
    ids=["isin", "nan_is_null", "not", "nested !=", "nested not"],
)
def test_a_nan_that_passes_the_filter_survives_pruning(tmp_path: Path, expression: pc.Expression, nested: bool) -> None:
    values = [1.0, NAN]
    column = {"s": pa.array([{"x": v} for v in values])} if nested else {"x": pa.array(values)}
    path = written(tmp_path, id=[0, 1], **column)
    assert first_batch(path, filters=expression, columns=["id"])["id"].tolist() == [1]


X, TEXT, QUOTED = pc.field("x"), pc.field("text"), pc.field('5" disks')
DAY = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "expression",
    [
        (TEXT == '5" disk') & (X != 1.0) & (pc.field("other") == "b"),
        (TEXT == '5" disk') & ~(X < 2.0) & (pc.field("other") == "b"),
        TEXT.isin(['5" disk']) & (X != 1.0) & (pc.field("other") == "b"),
        (QUOTED == 1) & (X != 1.0) & (QUOTED == 1),
        X.isin([5.0] * 20 + [NAN] + [6.0] * 20),  # Arrow leaves the middle out when it writes this
        pc.and_not_kleene(pc.field("other") == "b", X < 2.0),
        (X < 2.0) == False,  # noqa: E712
        (X < 2.0) < (pc.field("other") == "b"),
        (X < 2.0).isin([False]),
    ],
)
def test_no_spelling_of_a_filter_hides_a_nan_from_pruning(tmp_path: Path, expression: pc.Expression) -> None:
    columns: dict[str, Any] = {"x": [1.0, NAN], "text": ['5" disk'] * 2, "other": ["b", "b"], '5" disks': [1, 1]}
    path = written(tmp_path, id=[0, 1], **columns)
    assert first_batch(path, filters=expression, columns=["id"])["id"].tolist() == [1]


@pytest.mark.parametrize(
    "expression",
    [
        (X > 5) & (TEXT == 'a "word" (x != 1)'),
        (pc.scalar(5) < X) | X.isin([7.5, 8.5]),
        X.isin([float(i) for i in range(20, 25)]) & pc.field("with space").is_valid(),
        (pc.field("with space") == 5) & X.is_valid(),
        (pc.field("day") > DAY) & (X >= -1e-300) & pc.field("flag"),
        TEXT.isin([f'{i}"' for i in range(50)]) | (X == 5.0),
        pc.field("day").isin([DAY]) & X.is_null(),
    ],
)
def test_filters_on_floats_are_still_decided_by_statistics(tmp_path: Path, expression: pc.Expression) -> None:
    day = DAY - dt.timedelta(days=1)
    columns: dict[str, Any] = {"x": [1.0, 2.0], "text": ["a", "a"], "with space": [1, 1], "day": [day, day]}
    snapshot = open_snapshot(written(tmp_path, flag=[True, True], **columns))
    assert RowFilter(expression, snapshot).surviving(snapshot, 0) == set()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a?b.parquet", [1, 3]),
        ("a[!x]b.parquet", [1, 3]),
        ("a[!_]b.parquet", [3]),
        ("**", [0, 1, 2, 3]),
        ("**/b.parquet", [0, 2]),
        ("[ab]/b.parquet", [0, 2]),
        ("a[)]b.parquet", [3]),
        ("?", [0, 2]),
    ],
)
def test_wildcards_stay_within_a_name(tmp_path: Path, pattern: str, expected: list[int]) -> None:
    for number, name in enumerate(["a/b.parquet", "a_b.parquet", "b/b.parquet", "a)b.parquet"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"i": [number]}), tmp_path / name)
    assert sorted(first_batch(f"{tmp_path}/{pattern}")["i"].tolist()) == expected


def test_a_ragged_list_in_a_carried_schema_stays_ragged_whatever_the_lengths(tmp_path: Path) -> None:
    write_dataset({"r": [[1, 2], [3, 4]]}, tmp_path / "even", Schema({"r": RaggedList("int32")}))
    batch = first_batch(tmp_path / "even")
    assert isinstance(batch["r"], Ragged)
    assert batch["r"].offsets.tolist() == [0, 2, 4]


def test_the_empty_word_of_a_vocabulary_fills_nulls_among_codes(tmp_path: Path) -> None:
    path = written(tmp_path, c=pa.array([0, None, 1], pa.int8()))
    assert first_batch(path, schema=Schema({"c": Category(("a", ""), fill="")}))["c"].tolist() == [0, 1, 1]


def test_missing_columns_may_hold_the_largest_unsigned_number(tmp_path: Path) -> None:
    most = 2**64 - 1
    schema = Schema({"s": Scalar("uint64", missing=most), "t": Tensor("uint64", (2,), missing=most)})
    batch = first_batch(written(tmp_path, i=[1]), schema=schema)
    assert batch["s"].numpy().tolist() == [most]
    assert batch["t"].numpy().tolist() == [[most, most]]


@pytest.mark.parametrize(
    "names",
    [
        pd.DataFrame({"b": [0], "a": [0]}).columns,
        pytest.param(np.array(["b", "a"]), marks=pytest.mark.slow),
        pytest.param(("b", "a"), marks=pytest.mark.slow),
    ],
)
def test_columns_may_come_from_a_frame_or_an_array(tmp_path: Path, names: Any) -> None:
    path = written(tmp_path, a=[1], b=[2], c=[3])
    assert list(first_batch(path, columns=names)) == ["b", "a"]
    assert list(first_batch(path, columns=names, isolation="process")) == ["b", "a"]
    assert list(ParquetDataset(path, columns=names).schema) == ["b", "a"]
    assert list(Schema.infer(path, columns=names)) == ["b", "a"]


def test_a_schema_without_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="no column to deliver"):
        BatchedDataLoader(written(tmp_path, i=[1]), 1, schema=Schema({}))


def test_a_broken_schema_in_a_footer_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hostile.parquet"
    pq.write_table(pa.table({"i": [1]}).replace_schema_metadata({b"parquet_loader.schema": b"{"}), path)
    with pytest.raises(SchemaError, match=r"hostile\.parquet: the schema is not JSON"):
        BatchedDataLoader(path, 1)
    assert first_batch(path, schema=Schema({"i": Scalar("int64")}))["i"].tolist() == [1]


# ---------------------------------------------------------------------- images


def encoded(pixels: np.ndarray) -> bytes:
    pillow = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    pillow.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_pixels_of_16_bits_are_refused_instead_of_saturated(tmp_path: Path) -> None:
    path = written(tmp_path, m=pa.array([encoded(np.full((2, 2), 4000, np.uint16))], pa.binary()))
    with pytest.raises(DataError, match=r"column 'm', row 0.*16 bits"):
        first_batch(path, schema=Schema({"m": Image((2, 2, 1))}))


@pytest.mark.parametrize("null", ["refuse", "mask"])
def test_an_empty_image_is_damage_and_not_a_black_image(tmp_path: Path, null: Any) -> None:
    path = written(tmp_path, m=pa.array([encoded(np.ones((2, 2, 3), np.uint8)), b""], pa.binary()))
    with pytest.raises(DataError, match="row 1 of batch 0: 0 bytes"):
        first_batch(path, schema=Schema({"m": Image((2, 2, 3), null=null)}))


def test_a_null_image_under_a_mask_is_black(tmp_path: Path) -> None:
    path = written(tmp_path, m=pa.array([encoded(np.ones((2, 2, 3), np.uint8)), None], pa.binary()))
    batch = first_batch(path, schema=Schema({"m": Image((2, 2, 3), null="mask")}))
    assert batch["m"].sum(dim=(1, 2, 3)).tolist() == [12, 0]
    assert batch["m_valid"].tolist() == [True, False]


# ---------------------------------------------------------------------- what transforms return


def transformed(folder: Path, returned: Callable[[], Any]) -> Any:
    path = written(folder, i=[1, 2])
    return first_batch(path, transform=lambda _columns, _rng: {"out": returned()})["out"]


def test_object_arrays_of_numbers_become_one_number_a_row(tmp_path: Path) -> None:
    assert transformed(tmp_path, lambda: np.array([3, 4], object)).tolist() == [3, 4]


def test_transforms_may_return_ragged_rows_of_tensors_or_arrays(tmp_path: Path) -> None:
    ragged = transformed(tmp_path, lambda: Ragged(torch.arange(3), torch.tensor([0, 1, 3])))
    assert [row.tolist() for row in ragged] == [[0], [1, 2]]
    ragged = transformed(tmp_path, lambda: Ragged(np.arange(3), np.array([0, 1, 3], np.int32)))
    assert ragged.offsets.dtype == torch.int64
    words = Ragged(np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3]), "text")
    nested = transformed(tmp_path, lambda: Ragged(words, np.array([0, 0, 2])))
    assert nested.to_list() == [[], ["a", "bc"]]


@pytest.mark.parametrize(
    "returned",
    [
        lambda: Ragged(np.arange(3), np.array([0, 1, 9])),
        lambda: Ragged(np.arange(3), np.array([1, 1, 3])),
        lambda: Ragged(np.arange(3), np.array([0, 5, 3])),
        lambda: Ragged(np.arange(3), np.array([0.0, 1.0, 3.0])),
        lambda: Ragged(np.arange(3), np.array([0, 1, 3]), "text"),
        lambda: Ragged(np.array(["a", "b", "c"]), np.array([0, 1, 3])),
        lambda: np.zeros(2, np.longdouble),
        lambda: np.array(["\ud800", "b"], object),
    ],
    ids=["beyond", "not from 0", "falling", "floats", "not bytes", "str values", "longdouble", "surrogate"],
)
def test_what_no_batch_can_hold_is_an_error_of_the_transform(tmp_path: Path, returned: Callable[[], Any]) -> None:
    with pytest.raises(TransformError, match="transform in batch 0 of epoch 0, column 'out'"):
        transformed(tmp_path, returned)


# ---------------------------------------------------------------------- groups, URLs, sources


@pytest.mark.parametrize(("stored", "read"), [("packed", "columns"), ("columns", "packed")])
def test_a_group_reads_files_that_store_it_the_other_way(tmp_path: Path, stored: Any, read: Any) -> None:
    field = Scalar("float32")
    data = {"p": [1.0, 2.0], "q": [3.0, 4.0]}
    write_dataset(data, tmp_path / "set", Schema({"g": Group(("p", "q"), field, storage=stored)}))
    batch = first_batch(tmp_path / "set", schema=Schema({"g": Group(("p", "q"), field, storage=read)}))
    assert batch["g"].tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_a_packed_group_read_with_masks_is_all_there(tmp_path: Path) -> None:
    write_dataset({"p": [1], "q": [2]}, tmp_path / "set", Schema({"g": Group(("p", "q"), "int64", storage="packed")}))
    masked = Schema({"g": Group(("p", "q"), Scalar("int64", null="mask"))})
    batch = first_batch(tmp_path / "set", schema=masked)
    assert batch["g"].tolist() == [[1, 2]]
    assert batch["g_valid"].tolist() == [[True, True]]


OTHER_NUMBERS = pytest.mark.parametrize(
    ("stored", "read", "message"),
    [
        (Tensor("int64", (2,)), Tensor("float64", (2,)), "raw int64 numbers, the schema float64"),
        (Tensor("float32", (2,)), Tensor("int16", (4,)), "raw float32 numbers, the schema int16"),
        (Tensor("int64", (2,)), Encoded("float64", (2,)), "raw int64 numbers, the schema float64"),
        (RaggedList(Tensor("int64", (2,))), RaggedList(Tensor("float64", (2,))), "raw int64 numbers"),
        (Group(("p", "q"), "int64", storage="packed"), Group(("p", "q"), "float64"), "member 'p' of the packed group"),
        (Group(("p", "q"), "int64", storage="packed"), Group(("q", "p"), "int64"), "member 0 .* is 'p' in the"),
        (Group(("p", "q"), "int64", storage="packed"), Tensor("float64", (2,)), "raw int64 numbers"),
        (
            Group(("p", "q"), Category([1, 2]), storage="packed"),
            Group(("p", "q"), Category([2, 1])),
            "codes of member 'p' in another vocabulary",
        ),
    ],
)


@OTHER_NUMBERS
def test_raw_numbers_are_not_read_as_other_numbers(tmp_path: Path, stored: Any, read: Any, message: str) -> None:
    rows = [[[1, 2]]] if isinstance(stored, RaggedList) else [[1, 2]]
    data = {"p": [1], "q": [2]} if isinstance(stored, Group) else {"g": rows}
    write_dataset(data, tmp_path / "set", Schema({"g": stored}))
    with pytest.raises(SchemaError, match=message):
        BatchedDataLoader(tmp_path / "set", 1, schema=Schema({"g": read}))


@OTHER_NUMBERS
def test_raw_numbers_of_a_table_are_not_written_as_other_numbers(
    tmp_path: Path, stored: Any, read: Any, message: str
) -> None:
    rows = [[[1, 2]]] if isinstance(stored, RaggedList) else [[1, 2]]
    data = {"p": [1], "q": [2]} if isinstance(stored, Group) else {"g": rows}
    write_dataset(data, tmp_path / "set", Schema({"g": stored}))
    table = pq.read_table(tmp_path / "set")
    for form in (table, [table]):
        with pytest.raises(SchemaError, match=message):
            write_dataset(form, tmp_path / "new", Schema({"g": read}))


def test_raw_numbers_of_a_table_that_was_changed_are_its_numbers(tmp_path: Path) -> None:
    write_dataset({"g": [[1, 2]]}, tmp_path / "set", Schema({"g": Tensor("int64", (2,))}))
    table = pq.read_table(tmp_path / "set").set_column(0, "g", pa.array([[0.5, 1.5]], pa.list_(pa.float64(), 2)))
    write_dataset(table, tmp_path / "new", Schema({"g": Tensor("float64", (2,))}))
    assert first_batch(tmp_path / "new")["g"].tolist() == [[0.5, 1.5]]


def test_raw_numbers_are_read_in_another_shape_and_under_new_names(tmp_path: Path) -> None:
    packed = Schema({"g": Group(("p", "q"), "int64", storage="packed"), "t": Tensor("int8", (2, 2))})
    write_dataset({"p": [1], "q": [2], "t": [[[1, 2], [3, 4]]]}, tmp_path / "set", packed)
    renamed = Group({"r": Scalar("int64", aliases=["p"]), "q": Scalar("int64")}, storage="packed")
    batch = first_batch(tmp_path / "set", schema=Schema({"g": renamed, "u": Tensor("int8", (4,), aliases=["t"])}))
    assert batch["g"].tolist() == [[1, 2]]
    assert batch["u"].tolist() == [[1, 2, 3, 4]]


def test_nulls_in_a_packed_column_of_others_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, g=pa.array([b"12345678", None], pa.binary(8)))
    with pytest.raises(DataError, match="column 'g', row 1: is null"):
        first_batch(path, schema=Schema({"g": Group(("p", "q"), "float32", storage="packed")}))


def test_asking_for_a_member_of_a_group_says_so(tmp_path: Path) -> None:
    write_dataset({"p": [1.0], "q": [2.0]}, tmp_path / "set", Schema({"g": Group(("p", "q"), "float32")}))
    with pytest.raises(SchemaError, match=r"'p' is in the files, .* if it is a member of a group, name the group"):
        BatchedDataLoader(tmp_path / "set", 1, columns=["p"])


def test_file_urls_are_unquoted(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    path = written(folder, i=[7])
    for url in (path.as_uri(), folder.as_uri() + "/*.parquet", f"file://{path}", f"file://localhost{path}"):
        assert first_batch(url)["i"].tolist() == [7]
    quoted = tmp_path / "day=a%20b"
    quoted.mkdir()
    assert first_batch(f"file://{written(quoted, i=[8])}")["i"].tolist() == [8]


def test_an_arrow_stream_of_no_columns_is_refused_by_its_type(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="ChunkedArray is not a batch"):
        write_dataset(pa.chunked_array([[1]]), tmp_path / "set", Schema({"i": Scalar("int64")}))


# ---------------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("transform", [None, lambda columns, _rng: columns], ids=["windows", "batches"])
def test_the_caller_never_waits_inside_a_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transform: Any
) -> None:
    """Ctrl-C there would leave the lock taken, or raise RuntimeError in place of KeyboardInterrupt."""
    waiting: list[threading.Condition] = []
    wait = threading.Condition.wait

    def noted(self: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            waiting.append(self)
        return wait(self, timeout)

    path = written(tmp_path, i=np.arange(1000))
    with BatchedDataLoader(path, 10, shuffle=True, window_rows=50, num_threads=2, transform=transform) as loader:
        batches = iter(loader)  # Thread.start waits in one of its own
        monkeypatch.setattr(threading.Condition, "wait", noted)
        assert sum(len(batch["i"]) for batch in batches) == 1000
    assert not waiting


def test_a_pass_interrupted_while_it_closes_still_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BatchedDataLoader(written(tmp_path, i=np.arange(100)), 10, num_threads=2) as loader:
        batches = iter(loader)
        next(batches)
        close, calls = Engine.close, []

        def interrupted(self: Engine) -> None:
            calls.append(self)
            if len(calls) == 1:
                raise KeyboardInterrupt
            close(self)

        monkeypatch.setattr(Engine, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loader.reset()
        assert calls[0].workers.is_closing


# ---------------------------------------------------------------------- copies to a device


class _Stream:
    def __init__(self, *_: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass


class _Event:
    def record(self, stream: Any) -> None:
        pass


def test_batches_before_an_error_reach_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are stood in for, so that the order of copies is checked without a GPU."""
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: _Stream())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)

    def batches() -> Iterator[dict[str, Any]]:
        yield {"a": torch.tensor([1])}
        yield {"a": torch.tensor([2])}
        raise DataError("the third batch is spoiled")

    side: Any = _Stream()
    copied = device_module.copied_ahead(batches(), torch.device("cpu"), side)
    assert [next(copied)["a"].item(), next(copied)["a"].item()] == [1, 2]
    with pytest.raises(DataError, match="third"):
        next(copied)


def test_text_on_a_device_becomes_str() -> None:
    class OnDevice:
        """uint8 values that numpy cannot see, as those of a GPU."""

        def __init__(self, data: bytes) -> None:
            self._data = data

        def __getitem__(self, rows: slice) -> OnDevice:
            return OnDevice(self._data[rows])

        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("can't convert device type tensor to numpy")

        def cpu(self) -> Any:
            return np.frombuffer(self._data, np.uint8)

    ragged = Ragged(OnDevice(b"abc"), np.array([0, 1, 3]), "text")
    assert ragged.to_list() == ["a", "bc"]
    assert ragged[1] == "bc"


def test_an_error_in_the_engines_own_steps_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", row_group_size=10)

    def fail(*_: object) -> None:
        raise MemoryError("no room for the plan")

    monkeypatch.setattr(Engine, "_admit", fail)
    with pytest.raises(MemoryError, match="no room"):
        next(iter(BatchedDataLoader(tmp_path, 10)))
