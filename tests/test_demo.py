"""The demo without its download: the join, the split of other data, and training that learns something."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from demo.prepare import join
from demo.prepare_job import part, with_dask
from demo.regression import report
from demo.task import own_data
from demo.train import train
from parquet_loader import write_dataset
from schemas.flights import FLIGHTS

KNOWN_ONLY_AFTERWARDS = {"dep_time", "arr_time", "air_time"}


def flights_frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "year": 2013,
            "month": [1, 1, 7],
            "day": [1, 2, 31],
            "sched_dep_time": [515, 2355, 1200],
            "sched_arr_time": [819, 132, 1350],
            "dep_delay": [2.0, np.nan, -5.0],
            "arr_delay": [11.0, np.nan, -12.0],
            "carrier": ["UA", "AA", "WN"],
            "tailnum": ["N1", "N2", None],
            "origin": ["EWR", "JFK", "LGA"],
            "dest": ["IAH", "MIA", "MDW"],
            "distance": [1400, 1089, 725],
            "time_hour": ["2013-01-01T10:00:00Z", "2013-01-03T04:00:00Z", "2013-07-31T16:00:00Z"],
        }
    )


def weather_frame() -> pd.DataFrame:
    numbers = dict.fromkeys(["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"], 1.5)
    when = {"year": 2013, "month": 1, "day": 1, "hour": 10, "time_hour": "2013-01-01T10:00:00Z"}
    return pd.DataFrame([{"origin": "EWR", **when, **numbers}])


def planes_frame() -> pd.DataFrame:
    plane = {"year": 1999.0, "type": "Fixed wing multi engine", "seats": 149, "engine": "Turbo-fan"}
    return pd.DataFrame([{"tailnum": "N1", **plane}])


def joined() -> pd.DataFrame:
    return join(flights_frame(), weather_frame(), planes_frame())


def test_join_keeps_each_flight_that_arrived_once() -> None:
    assert joined().dest.tolist() == ["IAH", "MDW"]


def test_join_leaves_nulls_where_nothing_matches() -> None:
    rows = joined()
    assert rows.engine.isna().tolist() == [False, True]
    assert rows.pressure.isna().tolist() == [False, True]


def test_join_computes_planned_minutes_and_weekday() -> None:
    rows = joined()
    assert rows.sched_minutes.tolist() == [184, 110]
    assert rows.weekday.tolist() == ["Tuesday", "Wednesday"]


def test_joined_rows_can_be_written_with_the_schema(tmp_path: Path) -> None:
    names = FLIGHTS.arrow_schema().names
    write_dataset(joined()[names], str(tmp_path / "flights"), FLIGHTS)
    assert pq.read_table(tmp_path / "flights").num_rows == 2


def test_no_feature_is_known_only_after_arrival() -> None:
    assert not KNOWN_ONLY_AFTERWARDS & set(FLIGHTS.arrow_schema().names)


@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")
def test_the_job_on_dask_prepares_the_same_rows(tmp_path: Path) -> None:
    dask = pytest.importorskip("dask", reason="dask is not installed")
    tables = flights_frame(), weather_frame(), planes_frame()
    targets = {"train": tmp_path / "train", "validation": tmp_path / "validation"}
    with dask.config.set(scheduler="synchronous"):
        with_dask(*tables, targets)
    for name, held_out in (("train", False), ("validation", True)):
        expected = part(*tables, held_out=held_out)
        write_dataset(expected, tmp_path / "expected", FLIGHTS, mode="overwrite")
        assert pq.read_table(targets[name]).equals(pq.read_table(tmp_path / "expected"))
    assert sum(pq.read_table(target).num_rows for target in targets.values()) == len(joined())


def numbers_table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    x, k = rng.normal(size=rows), rng.integers(0, 10, rows).astype(np.int32)
    y = (2 * x + k + rng.normal(size=rows)).astype(np.float32)
    return pa.table({"x": x, "k": k, "flag": k > 5, "name": ["a"] * rows, "y": y, "row": np.arange(rows)})


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would spin while they wait for processors that other tests use
    yield tmp_path
    torch.set_num_threads(threads)


def test_last_files_of_other_data_are_held_out(directory: Path) -> None:
    table = numbers_table(500)
    for index in range(5):
        pq.write_table(table.slice(index * 100, 100), directory / f"{index}.parquet")
    task = own_data(str(directory), "y")
    assert isinstance(task.train, list)
    assert isinstance(task.validation, list)
    assert [Path(file).name for file in task.validation] == ["4.parquet"]
    assert len(task.train) == 4
    assert task.dense == ("x", "k", "flag", "row")


def test_single_file_is_split_row_by_row_without_loss(directory: Path) -> None:
    pq.write_table(numbers_table(1000), directory / "one.parquet")
    task = own_data(str(directory / "one.parquet"), "y")
    train_rows, held_out = (pq.read_table(str(part))["row"].to_pylist() for part in (task.train, task.validation))
    assert sorted(train_rows + held_out) == list(range(1000))
    assert 150 < len(held_out) < 250


def test_target_that_is_no_number_is_refused(directory: Path) -> None:
    pq.write_table(numbers_table(10), directory / "one.parquet")
    with pytest.raises(SystemExit, match="'name' is not one of"):
        own_data(str(directory / "one.parquet"), "name")


def test_constant_columns_nulls_and_infinities_do_no_harm(directory: Path) -> None:
    table = numbers_table(20_000).drop_columns("row")
    holes = pc.if_else(pc.greater(table["x"], 2), None, table["x"])
    table = table.append_column("constant", pa.array([2013] * 20_000)).append_column("holes", holes)
    table = table.append_column("infinite", pa.array([np.inf] * 20_000))
    for index in range(2):
        pq.write_table(table.slice(index * 10_000, 10_000), directory / f"{index}.parquet")
    errors = train(own_data(str(directory), "y"), epochs=2)
    assert errors["model"].mse < 0.5 * errors["the mean"].mse


def test_training_beats_predicting_the_mean(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(2):
        pq.write_table(numbers_table(20_000).drop_columns("row"), directory / f"{index}.parquet")
    errors = train(own_data(str(directory), "y"), epochs=2)
    assert errors["model"].mse < 0.5 * errors["the mean"].mse
    report(errors)
    assert "% less" in capsys.readouterr().out


@pytest.mark.slow
def test_a_language_model_that_is_stopped_has_the_losses_of_one_that_is_not(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[demo-lm]'")
    from demo.language_model import documents, train

    texts = list(islice(documents(), 12))
    assert all(text["text"] and text["source"].startswith("topic") for text in texts)
    losses, again = train(tmp_path, texts, steps=10, vocabulary=300, length=64, batch_tokens=256)
    assert len(losses) == 10
    assert again == pytest.approx(losses[5:], abs=1e-3)
    assert losses[-1] < losses[0]
