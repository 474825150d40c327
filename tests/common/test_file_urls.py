"""A local path may be given as a URL in each form that programs write."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader


@pytest.mark.parametrize("form", ["file:{}", "FILE:{}", "file://{}", "file://localhost{}"])
@pytest.mark.parametrize("below", ["", "/*.parquet", "/a%20b.parquet", "/a b.parquet"])
def test_each_form_of_a_file_url_names_the_files(tmp_path: Path, form: str, below: str) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a b.parquet")
    with BatchedDataLoader(form.format(tmp_path) + below, batch_size=2) as loader:
        assert next(iter(loader))["id"].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["S3", "HDFS", "File"])
def test_a_directory_named_like_a_scheme_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), Path(name, "a.parquet"))
    with BatchedDataLoader(name, batch_size=2) as loader:
        assert next(iter(loader))["id"].tolist() == [1, 2]
