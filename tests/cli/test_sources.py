"""``inspect``, ``doctor`` and ``simulate`` say of S3, the Hub and Iceberg tables what they say of the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from tests.support.command_line import run_here

ROWS = 4000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in tiny row groups, with nulls."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "x": rng.normal(size=ROWS).astype(np.float32),
            "count": pa.array(rng.integers(0, 9, ROWS), mask=rng.random(ROWS) < 0.1),
            "name": [f"row {number}" for number in range(ROWS)],
        }
    )
    for number in range(2):
        pq.write_table(table.slice(number * ROWS // 2, ROWS // 2), folder / f"{number}.parquet", row_group_size=50)
    return folder


@pytest.fixture
def s3(files: Path, tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("obstore")
    archive = pytest.importorskip("demo.archive")
    try:
        archive.find_rclone()
    except RuntimeError as error:
        pytest.skip(str(error))
    shutil.copytree(files, tmp_path / "served" / "bucket" / "train")
    with archive.Server(tmp_path / "served") as server:
        user = f"{archive.ACCESS_KEY}:{archive.SECRET_KEY}"
        yield f"s3://{user}@bucket/train?endpoint_override={server.endpoint}&scheme=http&region=other"


@pytest.fixture
def hub(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from tests.support.hub import serving

    monkeypatch.setenv("HF_HOME", str(tmp_path))  # no token of this machine
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.repository("org/rows").commit({f"data/{path.name}": path.read_bytes() for path in files.iterdir()})
        yield "hf://datasets/org/rows"


@pytest.fixture
def iceberg(files: Path, tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("db")
    paths = sorted(map(str, files.iterdir()))
    table = catalog.create_table("db.rows", pq.read_schema(paths[0]))
    table.add_files(paths)
    yield table.location().removeprefix("file://")
    catalog.close()


def said(command: str, *arguments: object) -> Any:
    done = run_here(command, *arguments, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["s3", "hub", "iceberg"])
def test_commands_say_the_same_of_other_sources(kind: str, files: Path, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(kind)
    here, there = said("inspect", files), said("inspect", source)
    for name in ("rows", "row_groups", "columns", "fields", "problems"):
        assert there[name] == here[name], name
    assert [column["becomes"] for column in there["delivered"]] == [column["becomes"] for column in here["delivered"]]
    assert (there["table"] or {}).get("format") == (None if kind == "s3" else kind)

    found = [said("doctor", where, "--batch-size", 100, "--seconds", 0)["findings"] for where in (files, source)]
    causes = [[finding["cause"] for finding in findings] for findings in found]
    assert causes[0][0] == causes[1][0]
    assert set(causes[1]) >= set(causes[0])

    forecast = said("simulate", source, "--columns", "x,name", "--seconds", 0.05, "--run")
    assert forecast["predicted"]["rows"] == ROWS
    assert (forecast["measured"]["requests"] > 0) == (kind != "iceberg")
