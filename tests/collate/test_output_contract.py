"""The contract of outputs: in each format the batches hold what tensors hold, in the same order, safe to keep."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader import BatchedDataLoader, Scalar, Schema, Shard, write_dataset
from tests.support.datasets import BY_NAME, Layout, write_layout, write_numbered
from tests.support.field_kinds import KINDS, kind_rows
from tests.support.outputs import FORMS, Form, Leaves, leaves

ROW_GROUPS = ((20, 7), (10, 1), (), (3, 0, 16))


@pytest.fixture(params=[pytest.param(form, marks=form.marks(), id=form.name) for form in FORMS])
def form(request: pytest.FixtureRequest) -> Iterator[Form]:
    found: Form = request.param
    found.skip_if_missing()
    with found.around():
        yield found


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A column of each type."""
    path = str(tmp_path_factory.mktemp("everything"))
    write_layout(Layout(ROW_GROUPS, tuple(BY_NAME), seed=4), path)
    return path


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """57 rows of `id`, `wide` and `ragged`."""
    path = str(tmp_path_factory.mktemp("numbered"))
    write_numbered(path, ROW_GROUPS, ("wide", "ragged"))
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """600 rows of numbers of one shape, whose batches frameworks cut from windows themselves."""
    path = str(tmp_path_factory.mktemp("numbers"))
    rng = np.random.default_rng(6)
    columns = {f"x{number}": rng.random(600, dtype=np.float32) for number in range(5)}
    wide = rng.random((600, 16), dtype=np.float32)
    write_dataset({"id": np.arange(600), "wide": wide, "label": np.arange(600, dtype=np.int8) % 3, **columns}, path)
    return path


def ids_of(form: Form, batches: Any) -> list[list[int]]:
    return [form.read(batch)["id"][0].tolist() for batch in batches]


def collect(form: Form, loader: BatchedDataLoader, into: list[list[int]]) -> None:
    for batch in form.begin(loader):
        into += ids_of(form, [batch])


def assert_same(found: Leaves, expected: Leaves, what: str) -> None:
    assert len(found) == len(expected), what
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype, what
        assert one.shape == other.shape, what
        assert one.tobytes() == other.tobytes(), what


def test_values_order_and_dtypes_are_those_of_tensors(form: Form, everything: str) -> None:
    with (
        BatchedDataLoader(everything, 8, shuffle=True, seed=1) as tensors,
        form.loader(everything, 8, shuffle=True, seed=1) as loader,
    ):
        batches = 0
        for expected, batch in zip(tensors, form.begin(loader), strict=True):
            columns = form.read(batch)
            assert list(columns) == list(expected)
            for name, value in expected.items():
                assert_same(columns[name], leaves(value), name)
            batches += 1
        assert batches == len(loader) == 8
        assert loader.state_dict() == tensors.state_dict()


def test_fields_of_a_schema_and_their_masks(form: Form, tmp_path: Path) -> None:
    write_dataset(kind_rows(40), str(tmp_path), KINDS)
    with BatchedDataLoader(str(tmp_path), 16) as tensors, form.loader(str(tmp_path), 16) as loader:
        for expected, batch in zip(tensors, form.begin(loader), strict=True):
            columns = form.read(batch)
            valid = expected["score_valid"].numpy()
            if form.nulls:
                assert "score_valid" not in columns
                score = batch["score"]
                is_null = score.is_null() if hasattr(score, "is_null") else score.isna()
                assert np.array_equal(~valid, np.asarray(is_null))
                if form.name == "pandas":
                    columns["score"] = [batch["score"].fillna(0).to_numpy(np.float32)]
                else:
                    columns["score"] = [np.asarray(score.fill_null(0))]
                columns["score_valid"] = [valid]
            for name, value in expected.items():
                assert_same(columns[name], leaves(value), name)


def test_batches_that_are_cut_from_windows_are_those_of_tensors_and_stay_so(form: Form, numbers: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 2, "window_rows": 320}
    with BatchedDataLoader(numbers, 16, **options) as tensors, form.loader(numbers, 16, **options) as loader:
        for _ in range(2):
            expected = [{name: leaves(value) for name, value in batch.items()} for batch in tensors]
            kept = list(form.begin(loader))
            assert loader.state_dict() == tensors.state_dict()
            gc.collect()
            for batch, columns in zip(kept, expected, strict=True):
                for name, arrays in form.read(batch).items():
                    assert_same(arrays, columns[name], name)


def test_a_state_within_a_window_that_is_cut_continues_with_the_next_batch(form: Form, numbers: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 2, "window_rows": 320}
    with BatchedDataLoader(numbers, 16, **options) as loader:
        whole = [batch["id"].tolist() for batch in loader]
    for taken in (1, 2, 19, 20, 21):
        with form.loader(numbers, 16, **options) as loader, form.loader(numbers, 16, **options) as resumed:
            batches = form.begin(loader)
            seen = ids_of(form, [next(batches) for _ in range(taken)])
            resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
            del batches
            assert seen + ids_of(form, form.begin(resumed)) == whole


def changed(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {
        "id": columns["id"],
        "text": np.array([f"row {row}" for row in columns["id"]], object),
        "noise": rng.standard_normal(len(columns["id"])),
        "id_valid": columns["id"] % 2 == 0,
    }


def test_a_transform_decides_what_columns_are(form: Form, everything: str) -> None:
    schema = Schema({"id": Scalar("int64", null="mask")}, extra="infer")
    options: dict[str, Any] = {"shuffle": True, "transform": changed, "schema": schema, "columns": ["id"]}
    with BatchedDataLoader(everything, 8, **options) as tensors, form.loader(everything, 8, **options) as loader:
        for expected, batch in zip(tensors, form.begin(loader), strict=True):
            columns = form.read(batch)
            for name, value in expected.items():
                assert_same(columns[name], leaves(value), name)


def test_a_kept_batch_never_changes(form: Form, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40,) * 20,), ("wide", "ragged", "text"))
    kept = []
    with form.loader(str(tmp_path), 16, shuffle=True, window_rows=80) as loader:
        for _ in range(2):
            for batch in form.begin(loader):
                copies = {name: [a.copy() for a in arrays] for name, arrays in form.read(batch).items()}
                kept.append((batch, copies))
    gc.collect()
    assert len(kept) == 100
    for batch, copies in kept:
        for name, arrays in form.read(batch).items():
            assert_same(arrays, copies[name], name)


def test_a_state_taken_after_any_batch_continues_with_the_next(form: Form, numbered: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "window_rows": 16}
    with BatchedDataLoader(numbered, 8, **options) as loader:
        whole = [batch["id"].tolist() for _ in range(2) for batch in loader]
    with form.loader(numbered, 8, **options) as loader, form.loader(numbered, 8, **options) as resumed:
        for taken in range(1, 9):
            loader.seek(0, 0)
            batches = form.begin(loader)
            seen = ids_of(form, [next(batches) for _ in range(taken)])
            resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
            del batches
            rest = ids_of(form, form.begin(resumed))
            assert seen + rest == whole[: 8 if taken < 8 else 16]


def test_ranks_get_each_row_once_in_equally_many_batches(form: Form, numbered: str) -> None:
    seen, steps = [], set()
    for rank in range(3):
        with form.loader(numbered, 4, shuffle=True, shard=Shard(rank, 3)) as loader:
            ids = ids_of(form, form.begin(loader))
        steps.add(len(ids))
        seen += [row for batch in ids for row in batch]
    assert len(steps) == 1
    assert sorted(seen) == list(range(57))


def test_an_early_end_leaves_no_thread(form: Form, numbered: str) -> None:
    def workers() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("parquet_loader")]

    with form.loader(numbered, 8, shuffle=True, window_rows=16) as loader:
        first = []
        for _ in range(2):
            for batch in form.begin(loader):
                first += ids_of(form, [batch])
                break
            del batch
            gc.collect()
            assert not workers()
        whole = ids_of(form, form.begin(loader))
    with BatchedDataLoader(numbered, 8, shuffle=True, window_rows=16) as loader:
        epochs = [[batch["id"].tolist() for batch in loader] for _ in range(3)]
    assert first == [epochs[0][0], epochs[1][0]]
    assert whole == epochs[2]


def test_an_error_of_reading_names_file_and_row_group(form: Form, tmp_path: Path) -> None:
    files = write_numbered(str(tmp_path), ((20,), (20, 20)), ("wide",))
    with form.loader(str(tmp_path), 8, window_rows=16) as loader:
        data = Path(files[1]).read_bytes()
        Path(files[1]).write_bytes(data[:4] + bytes(len(data) - 1000) + data[-996:])
        seen: list[list[int]] = []
        with pytest.raises(Exception, match=r"part-001\.parquet, row group 0"):
            collect(form, loader, seen)
        assert all(batch == list(range(8 * n, 8 * n + 8)) for n, batch in enumerate(seen))


def test_an_error_of_a_transform_reaches_the_caller(form: Form, numbered: str) -> None:
    def fails(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if 20 in columns["id"]:
            raise ZeroDivisionError("row 20")
        return changed(columns, rng)

    with form.loader(numbered, 8, transform=fails) as loader:
        seen: list[list[int]] = []
        with pytest.raises(Exception, match="row 20"):
            collect(form, loader, seen)
        assert seen == [list(range(8)), list(range(8, 16))]
