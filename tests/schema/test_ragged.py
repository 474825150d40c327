"""`Ragged` moves, slices, joins, collates and travels like a tensor, over numpy arrays and over tensors."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, default_collate

from parquet_loader import BatchedDataLoader, ConfigurationError, Ragged, TransformError
from parquet_loader.schema import split_ragged

ROWS: list[list[int]] = [[1, 2], [], [3, 4, 5], [6]]


def make(rows: Any, library: str = "torch", **options: Any) -> Ragged:
    made = Ragged.from_list(rows, **options)
    return made.to_tensors() if library == "torch" else made


def lists(ragged: Ragged) -> list[Any]:
    return [row if isinstance(row, str | bytes) else row.tolist() for row in ragged]


both = pytest.mark.parametrize("library", ["numpy", "torch"])


# ---- made -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "kind", "text"),
    [
        (ROWS, "list", "Ragged(shape=[4, *], int64, device=cpu, total=6)"),
        ([np.zeros((2, 3), "f4"), np.zeros((0, 3), "f4")], "list", "Ragged(shape=[2, *, 3], float32, device=cpu, total=2)"),  # noqa: E501
        (["é", "", "ab"], "text", "Ragged(shape=[3], text, device=cpu, total=4)"),
        ([b"\xff", b""], "bytes", "Ragged(shape=[2], bytes, device=cpu, total=1)"),
        ([["a", "bc"], []], "list", "Ragged(shape=[2, *], text, device=cpu, total=2)"),
        ([[[1], []], []], "list", "Ragged(shape=[2, *, *], int64, device=cpu, total=2)"),
        ([torch.tensor([1.0]), [2, 3]], "list", "Ragged(shape=[2, *], float32, device=cpu, total=3)"),
        ([], "list", "Ragged(shape=[0, *], float64, device=cpu, total=0)"),
    ],
)  # fmt: skip
def test_rows_of_every_kind_make_one_and_its_text_says_what_it_is(rows: Any, kind: str, text: str) -> None:
    made = Ragged.from_list(rows)
    assert made.kind == kind
    assert repr(made) == text
    assert len(made) == len(rows)


def test_a_dtype_of_either_library_is_taken() -> None:
    assert Ragged.from_list(ROWS, dtype=np.int16).values.dtype == np.int16
    made = Ragged.from_list(ROWS, dtype=torch.int32)
    assert made.values.dtype == torch.int32
    assert made.offsets.dtype == torch.int64


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([1, 2], "row 0 is the single value 1"),
        ([[1], "a"], "rows are list and str; give str or bytes in every row, or in none"),
        ([["a"], [1]], "rows are int and str"),
        ([[1], None], "row 1"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], r"\[1, 2\] and \[1, 3\] \(row 1\)"),
    ],
)
def test_rows_that_do_not_fit_are_named(rows: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Ragged.from_list(rows)


@both
def test_padding_and_back(library: str) -> None:
    ragged = make(ROWS, library)
    padded, mask = ragged.to_padded(fill=-1), ragged.to_mask()
    assert padded.tolist() == [[1, 2, -1], [-1, -1, -1], [3, 4, 5], [6, -1, -1]]
    assert mask.tolist() == [[True, True, False], [False] * 3, [True] * 3, [True, False, False]]
    assert Ragged.from_padded(padded, mask.sum(1)) == ragged
    assert Ragged.from_padded(padded, [2, 0, 3, 1]) == ragged
    with pytest.raises(ConfigurationError, match="lengths go from 0 to 9, the rows have 3 values"):
        Ragged.from_padded(padded, [2, 0, 9, 1])
    with pytest.raises(ConfigurationError, match="4 rows and lengths"):
        Ragged.from_padded(padded, [2, 0])


# ---- indexed, compared, joined --------------------------------------------------------------------------------------


@both
def test_rows_are_chosen_as_in_a_tensor(library: str) -> None:
    ragged = make(ROWS, library)
    assert ragged[-1].tolist() == [6]
    assert ragged[np.int64(2)].tolist() == [3, 4, 5]
    assert ragged[torch.tensor(0)].tolist() == [1, 2]
    for index in (slice(1, 3), slice(None), slice(3, 1), slice(None, None, 2), slice(None, None, -1), slice(-2, None)):
        assert lists(ragged[index]) == ROWS[index]
    for chosen in ([2, 0, 0], [-1], [], np.array([1, 3]), torch.tensor([3, 2])):
        assert lists(ragged[chosen]) == [ROWS[int(i)] for i in chosen]
    for mask in ([True, False, True, False], np.array([False] * 4), torch.tensor([True] * 4)):
        assert lists(ragged[mask]) == [row for row, keep in zip(ROWS, mask, strict=True) if keep]
    for wrong in (4, -5, [4], np.array([-5])):
        with pytest.raises(IndexError):
            ragged[wrong]
    with pytest.raises(TypeError, match="rows are chosen by an integer"):
        ragged["a"]
    with pytest.raises(TypeError, match="rows are chosen by an integer"):
        ragged[0, 1]
    assert type(ragged.values) is type(ragged[[0]].values)


@pytest.mark.parametrize(
    "rows", [["a", "", "é"], [b"ab", b"\x00"], [["a"], [], ["b", "cd"]], [[[1], [2, 3]], [], [[]]]]
)
@both
def test_text_and_nested_rows_are_chosen_and_joined_too(rows: list[Any], library: str) -> None:
    ragged = make(rows, library)
    order = list(range(len(rows)))[::-1]
    assert ragged[order] == make([rows[i] for i in order], library)
    assert ragged[1:] == make(rows[1:], library) if len(rows) > 2 else True
    assert Ragged.cat([ragged, ragged]) == make(rows + rows, library)


@both
def test_equal_means_the_same_rows(library: str) -> None:
    ragged = make(ROWS, library)
    assert ragged == make(ROWS, "numpy")
    assert ragged == make(ROWS, "torch")
    assert ragged != make(ROWS[:-1])
    assert ragged != make([[1], [2], [3, 4, 5], [6]])
    assert ragged != make([[1, 2], [], [3, 4, 5], [7]])
    assert make(["ab"]) != make([b"ab"])
    assert ragged != ROWS
    with pytest.raises(TypeError, match="unhashable"):
        hash(ragged)


@both
def test_a_slice_shares_memory_and_a_choice_does_not_still_holds(library: str) -> None:
    ragged = make(ROWS, library)
    ragged[2:].values[0] = 9
    assert ragged[2].tolist() == [9, 4, 5]


@pytest.mark.parametrize("rows", [ROWS, ["a", "", "bcd", "é"], [b"", b"", b"\xff", b"a"], [["a"], [], ["b", "c"], []]])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@both
def test_batches_of_rows_are_slices_that_share_memory(library: str, size: int, rows: list[Any]) -> None:
    whole = make(rows * 5, library)
    for start, stop in ((0, 20), (3, 17), (7, 7)):
        parts = split_ragged(whole, start, stop, size)
        assert [len(part) for part in parts] == [min(size, stop - at) for at in range(start, stop, size)]
        for at, part in zip(range(start, stop, size), parts, strict=True):
            same = whole.slice(at, at + len(part))
            assert part == same
            assert part.offsets.dtype == same.offsets.dtype
    parts = split_ragged(whole, 3, 17, size)
    inner = whole
    while isinstance(inner, Ragged):
        inner = inner.values
    inner[...] = 65
    assert parts == [whole.slice(at, min(at + size, 17)) for at in range(3, 17, size)]


@pytest.mark.parametrize("rows", [["a", "", "é\0", "日本"], ["plain", "", "x\0y"], [b"", b"\xff\0", b"a"], [], [""]])
@both
def test_text_and_bytes_become_lists_of_str_and_bytes_and_back(library: str, rows: list[Any]) -> None:
    made = make(rows, library)
    for start in range(len(rows) + 1):
        assert made.slice(start, len(rows)).to_list() == rows[start:]
    assert {type(row) for row in made.to_list()} == {type(row) for row in rows}


@pytest.mark.parametrize("with_kernels", [True, False])
def test_chosen_rows_of_any_shape_and_type_are_copied(monkeypatch: pytest.MonkeyPatch, *, with_kernels: bool) -> None:
    if not with_kernels:
        monkeypatch.setattr("parquet_loader.common.native.permute.KERNELS", None)
    rng = np.random.default_rng(0)
    offsets = np.array([0, 3, 3, 10, 11])
    for values in (
        rng.integers(0, 99, (11, 2, 3)).astype("u1"),
        rng.random((22, 2))[::2],
        np.asfortranarray(rng.random((11, 4), np.float32)),
        rng.random(11) > 0.5,
        np.zeros((11, 0), "i4"),
        rng.random(11).astype(">f4"),
    ):
        rows = Ragged(values, offsets.astype(np.int32) if values.ndim == 1 else offsets)
        for chosen in ([3, 0, 0, 1], [], [2], np.array([True, False, True, True])):
            taken = rows[chosen]
            numbers: list[int] = np.arange(4)[chosen].tolist() if len(chosen) else []
            assert (taken.values.dtype, taken.values.shape[1:]) == (values.dtype, values.shape[1:])
            assert [row.tolist() for row in taken] == [values[offsets[n] : offsets[n + 1]].tolist() for n in numbers]
    for wrong in ([0, 3, 12], [0, 5, 3], [-1, 2, 3]):
        with pytest.raises(ConfigurationError, match="offsets that rise from 0 to the number of values, 11"):
            Ragged(np.zeros(11), np.array(wrong))[[0, 1]]


def test_text_that_is_not_utf8_is_an_error_with_its_bytes_and_wrong_offsets_read_no_other_memory() -> None:
    with pytest.raises(UnicodeDecodeError, match="byte 0xff in position 1"):
        Ragged(np.frombuffer(b"abc\xff", np.uint8), np.array([0, 2, 4]), "text").to_list()
    data = np.frombuffer(b"abcd", np.uint8)
    assert Ragged(data, np.array([0, 3, 10**15]), "bytes").to_list() == [b"abc", b"d"]
    assert Ragged(data, np.array([0, 3, 1]), "bytes").to_list() == [b"abc", b""]
    assert Ragged(data, np.array([0, 1, 4], np.int32), "text").to_list() == ["a", "bcd"]
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        Ragged.from_list(["a", "\ud800"])


def test_parts_of_different_kinds_are_not_joined() -> None:
    with pytest.raises(ConfigurationError, match="expected rows of one kind, found bytes, text"):
        Ragged.cat([make(["a"]), make([b"a"])])
    with pytest.raises(ConfigurationError, match="expected a list of Ragged"):
        Ragged.cat([])


# ---- moved ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, ["a", "bc"], [["a"], []]])
@both
def test_it_moves_to_another_device_as_a_tensor_does(rows: Any, library: str) -> None:
    ragged = make(rows, library)
    assert str(ragged.device) == "cpu"
    assert ragged.to("cpu") is ragged
    assert ragged.to(device="cpu", non_blocking=True) is ragged
    moved = ragged.to("meta", non_blocking=True)
    assert moved.device == torch.device("meta")
    inner = moved.values.values if isinstance(moved.values, Ragged) else moved.values
    assert inner.device.type == moved.offsets.device.type == "meta"
    assert len(moved) == len(ragged)
    assert moved.total == ragged.total
    assert "device=meta" in repr(moved)
    assert moved.kind == ragged.kind


def test_a_dtype_changes_numbers_and_never_offsets_or_text() -> None:
    for ragged in (make(ROWS), make(ROWS, "numpy")):
        half = ragged.to(dtype=torch.float16) if library_of(ragged) == "torch" else ragged.to(np.float16)
        assert str(half.values.dtype).endswith("float16")
        assert str(half.offsets.dtype).endswith("int64")
        assert half == ragged
    assert make(ROWS).to(torch.float32).values.dtype == torch.float32
    assert make(ROWS).to(torch.zeros(1, dtype=torch.int8, device="meta")).values.dtype == torch.int8
    words = make(["ab"])
    assert words.to(torch.float16) is words
    assert make([["ab"]]).to(torch.float16).values.values.dtype == torch.uint8
    copied = words.to("cpu", copy=True)
    assert copied == words
    assert copied.values.data_ptr() != words.values.data_ptr()


def library_of(ragged: Ragged) -> str:
    return "torch" if isinstance(ragged.values, torch.Tensor) else "numpy"


class Stub:
    """Stands for a tensor on a device that this machine lacks; records the calls."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.device = "stub"
        self.new_full = None

    def pin_memory(self) -> Stub:
        self.log.append("pin")
        return self

    def is_pinned(self) -> bool:
        return "pin" in self.log

    def record_stream(self, stream: Any) -> None:
        self.log.append(stream)


def test_pinning_and_streams_reach_values_and_offsets() -> None:
    log: list[Any] = []
    nested = Ragged(Ragged(Stub(log), Stub(log), "text"), Stub(log))
    assert not nested.is_pinned()
    assert nested.pin_memory().is_pinned()
    assert log == ["pin"] * 3
    assert nested.pin_memory() is nested
    nested.record_stream("stream")
    assert log[3:] == ["stream"] * 3
    arrays = make(ROWS, "numpy")
    assert arrays.pin_memory() is arrays
    assert not arrays.is_pinned()


# ---- torch's containers ---------------------------------------------------------------------------------------------


def test_default_collate_stacks_samples() -> None:
    rows = make([["a", "b"], [], ["c"]])
    assert default_collate([rows[0], rows[1], rows[2]]) == rows
    batch = default_collate([{"t": make([[1, 2], []]), "y": 1}, {"t": make([[3]]), "y": 2}])
    assert batch["t"] == make([[[1, 2], []], [[3]]])
    assert batch["y"].tolist() == [1, 2]
    assert isinstance(default_collate([make(ROWS, "numpy")]).offsets, torch.Tensor)


def test_a_data_loader_collates_samples_in_worker_processes() -> None:
    samples = [make([[i] * i, [i]]) for i in range(4)]
    (batch,) = DataLoader(samples, batch_size=4, num_workers=1)  # type: ignore[arg-type]
    assert batch == Ragged.from_list(samples)
    assert list(batch) == samples


def test_pytrees_reach_its_tensors() -> None:
    batch = {"t": make(ROWS), "w": make([["ab"], []]), "x": torch.zeros(4)}
    leaves, spec = _pytree.tree_flatten(batch)
    assert [tuple(leaf.shape) for leaf in leaves] == [(6,), (5,), (2,), (2,), (3,), (4,)]
    assert _pytree.tree_unflatten(leaves, spec)["w"] == batch["w"]
    moved = _pytree.tree_map(lambda tensor: tensor.to("meta"), batch)
    assert moved["t"].device.type == "meta"
    assert _pytree.tree_map(lambda leaf: None, batch)["t"].values is None
    paths = [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(batch)[0]]
    assert paths[:2] == ["['t'].values", "['t'].offsets"]


@pytest.mark.parametrize("rows", [ROWS, ["a", "é"], [["a"], []], [[[1]], []]])
@both
def test_copies_and_pickles_are_equal_and_its_own(rows: Any, library: str) -> None:
    ragged = make(rows, library)
    assert copy.copy(ragged).values is ragged.values
    for made in (copy.deepcopy(ragged), pickle.loads(pickle.dumps(ragged))):
        assert made == ragged
        assert library_of(made) == library_of(ragged)
        inner = made.offsets
        inner[-1] = 0
        assert ragged.offsets[-1] != 0
    assert b"parquet_loader.common.units" not in pickle.dumps(ragged)
    assert b"jagged" not in pickle.dumps(ragged)


def test_torch_loads_it_with_weights_only() -> None:
    batch = {"t": make(ROWS), "w": make([["ab"], []])}
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == batch


def test_a_nested_tensor_shares_the_values_and_leaves_no_attribute_on_them() -> None:
    rows = make(ROWS)
    assert rows.to_nested().values().data_ptr() == rows.values.data_ptr()
    assert not vars(rows.values)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("import torch, parquet_loader", marks=pytest.mark.slow),
        "import parquet_loader, torch; parquet_loader.Ragged([], [0])",
    ],
)
def test_a_new_process_loads_it_with_weights_only(tmp_path: Path, first: str) -> None:
    torch.save(make(ROWS), tmp_path / "batch.pt")
    script = f"{first}; print(torch.load({str(tmp_path / 'batch.pt')!r}, weights_only=True).lengths.tolist())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2, 0, 3, 1]", done.stderr[-600:]


def test_arrays_need_no_torch_still_imports_none() -> None:
    script = """
    import sys, pickle
    import numpy as np
    from parquet_loader import Ragged
    rows = Ragged.from_list([[1, 2], [], [3]])
    assert rows[::-1] == Ragged.from_list([[3], [], [1, 2]])
    assert Ragged.cat([rows, rows])[3:] == rows == pickle.loads(pickle.dumps(rows))
    assert rows.to("cpu") is rows and rows.pin_memory() is rows
    assert rows.to(np.float32).values.dtype == np.float32
    assert Ragged.from_padded(rows.to_padded(), rows.lengths) == rows
    assert repr(rows) and Ragged.from_list(["a", "b"])[0] == "a"
    assert "torch" not in sys.modules
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, check=True)


# ---- what transform returns -----------------------------------------------------------------------------------------


def returned(tmp_path: Path, value: Any, **options: Any) -> Any:
    pq.write_table(pa.table({"i": [1, 2, 3]}), tmp_path / "x.parquet")
    with BatchedDataLoader(str(tmp_path), 3, transform=lambda _columns, _rng: {"out": value}, **options) as loader:
        (batch,) = loader
    return batch["out"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([[1, 2], [], [3]], make([[1, 2], [], [3]])),
        ([[1, 2], [3, 4], [5, 6]], make([[1, 2], [3, 4], [5, 6]])),
        ([np.arange(2, dtype="i2"), np.arange(0, dtype="i2"), np.arange(1, dtype="i2")], make([[0, 1], [], [0]])),
        ([torch.ones(2), torch.ones(1), torch.ones(0)], make([[1.0, 1.0], [1.0], []])),
        (np.array([[1], [2, 3], []], object), make([[1], [2, 3], []])),
        (([1], [2], [3]), make([[1], [2], [3]])),
        (["a", "", "é"], make(["a", "", "é"])),
        ([b"a", b"", b"b"], make([b"a", b"", b"b"])),
        ([["a"], [], ["b", "c"]], make([["a"], [], ["b", "c"]])),
        ([[[1]], [], [[2], [3, 4]]], make([[[1]], [], [[2], [3, 4]]])),
        ([make([[1]]), make([[2], []]), make([[3]])], make([[[1]], [[2], []], [[3]]])),
    ],
)
def test_a_transform_may_return_rows_in_a_plain_list(tmp_path: Path, value: Any, expected: Ragged) -> None:
    found = returned(tmp_path, value)
    assert found == expected
    assert isinstance(found.offsets, torch.Tensor)


def test_a_transform_may_return_scalars_and_images_in_a_list_still_holds(tmp_path: Path) -> None:
    assert returned(tmp_path, [1, 2, 3]).tolist() == [1, 2, 3]
    assert returned(tmp_path, [np.float32(1), np.float32(2), np.float32(3)]).dtype == torch.float32
    assert returned(tmp_path, [True, False, True]).dtype == torch.bool
    assert returned(tmp_path, [np.zeros((4, 5, 3), "u1")] * 3).shape == (3, 4, 5, 3)
    sizes = [tuple(i.shape) for i in returned(tmp_path, [np.zeros((n, 5, 3), "u1") for n in (1, 2, 3)])]
    assert sizes == [(1, 5, 3), (2, 5, 3), (3, 5, 3)]
    assert returned(tmp_path, np.arange(6).reshape(3, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    "value",
    [
        [[1], None, [2]],
        [1, None, 2],
        [[1], "a", [2]],
        ["a", b"b", "c"],
        [[1], [[2]], [3]],
        [[1], [2]],
        [{"a": 1}, {"a": 2}, {"a": 3}],
        7,
        [[1], 2, [3]],
    ],
)
def test_what_a_transform_must_not_return_names_the_column(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TransformError, match="transform in batch 0 of epoch 0, column 'out': "):
        returned(tmp_path, value)


def test_a_transform_that_returns_bfloat16_is_told_to_return_float32(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match=r"column 'out': a transform cannot return bfloat16; return float32"):
        returned(tmp_path, torch.zeros(3, dtype=torch.bfloat16))


@pytest.mark.parametrize("index", [[0.5], np.array([1.9, 0.0]), torch.tensor([2.0])], ids=["list", "array", "tensor"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_numbers_that_are_not_whole_choose_no_row(kind: str, index: Any) -> None:
    ragged = Ragged.from_list(ROWS, dtype=torch.int64 if kind == "torch" else np.int64)
    with pytest.raises(TypeError, match=r"Ragged: rows, offsets and lengths are integers or bools, found .*float"):
        ragged[index]
    assert len(ragged[[]]) == 0


def test_lengths_that_are_not_whole_are_refused() -> None:
    with pytest.raises(TypeError, match="found float64; convert them"):
        Ragged.from_padded(np.zeros((2, 3)), np.array([1.5, 2.0]))


@both
def test_offsets_and_the_longest_row_are_what_attention_of_variable_length_takes(library: str) -> None:
    rows = make(ROWS, library)
    assert rows.cu_seqlens.tolist() == [0, 2, 2, 5, 6]
    assert str(rows.cu_seqlens.dtype).endswith("int32")
    assert rows.max_seqlen == 3
    assert rows[2:].cu_seqlens.tolist() == [0, 3, 4]
    none = rows[:0]
    assert (none.cu_seqlens.tolist(), none.max_seqlen) == ([0], 0)


def test_more_values_than_int32_counts_have_no_cu_seqlens() -> None:
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (2**31,), (0,))
    with pytest.raises(ConfigurationError, match="more than int32"):
        _ = Ragged(huge, np.array([0, 2**31])).cu_seqlens


def test_rows_are_taken_without_an_index_of_all_values() -> None:
    """An index of all values takes eight times as much memory as text."""
    rows = 300
    text = Ragged(np.arange(rows * 10_007).astype(np.uint8), np.arange(rows + 1) * 10_007, "text")
    index = np.arange(rows)[::-1]
    tracemalloc.start()
    taken = text[index]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < taken.total + 5 * 2**20
    expected = text.values.reshape(rows, 10_007)[index]
    assert (taken.values.reshape(rows, 10_007) == expected).all()
