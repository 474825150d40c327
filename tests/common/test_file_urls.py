"""A local path may be given as a URL in each form that programs write; names in a store may have any character."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, LocalCache
from parquet_loader.common.storage.filesystem import resolve
from parquet_loader.errors import ConfigurationError


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


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("run#2", "run#2"),
        ("city=New York", "city=New York"),
        ("city=New%20York", "city=New York"),
        ("city=New%2520York", "city=New%20York"),
        ("größe/50%/a+b", "größe/50%/a+b"),
        ("run#2/*.parquet", "run#2/*.parquet"),
    ],
)
def test_a_url_of_a_store_names_the_object_as_it_is_typed(typed: str, name: str) -> None:
    _, path = resolve(f"gs://anonymous@bucket/{typed}")
    assert path == f"bucket/{name}"


def test_a_local_directory_is_not_a_url() -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket/cache: this is a URL; expected a local path"):
        LocalCache("s3://bucket/cache", "1GB")
