"""Iceberg tables from catalogs that are servers: REST, which hands out credentials of the store, and AWS Glue."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from demo.archive import ACCESS_KEY, SECRET_KEY, Server
from parquet_loader import BatchedDataLoader, IcebergSource, OutputOptions, ParquetDataset, SourceError
from tests.source.tables.iceberg_rows import delivered
from tests.source.tables.iceberg_tables import HandTable
from tests.source.test_remote_opening import needs_servers

NUMPY = OutputOptions(format="numpy")


class _Rest(BaseHTTPRequestHandler):
    """The two answers of the REST catalog's protocol that reading needs, for one table.

    Attributes:
        table: What the catalog says of the table.
        asked: Paths, and the header that asks for credentials.
    """

    table: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        path, delegation = self.path.partition("?")[0], self.headers.get("X-Iceberg-Access-Delegation")
        self.asked.append((path, delegation))
        if path.endswith("/config"):
            self._answer(200, {"defaults": {}, "overrides": {"prefix": "lake"}})
        elif path != "/v1/lake/namespaces/db/tables/sales":
            self._answer(404, {"error": {"message": "no such table", "type": "NoSuchTableException", "code": 404}})
        else:
            self._answer(200, self.table)

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _told(table: HandTable) -> dict[str, Any]:
    """Return a catalog's answer about a table, without the configuration of its store."""
    location = f"{table.location}/metadata/{table.metadata_file.name}"
    told: dict[str, Any] = json.loads(json.dumps({"metadata-location": location, "metadata": table.metadata()}))
    return told


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Serve a table; return the catalog's URL, and what it is to say after the next commit."""
    table = HandTable(tmp_path / "bucket" / "sales", [("id", "long")], version=2, location="s3://bucket/sales")
    table.insert([{1: number} for number in range(30)])
    table.delete({path: {3} for path in table.files}, together=True)
    before = _told(table)
    table.insert([{1: 100}])  # now, because the server of the store remembers its directories
    with Server(tmp_path) as store, ThreadingHTTPServer(("127.0.0.1", 0), _Rest) as server:
        config = {
            "s3.endpoint": f"http://{store.endpoint}",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": "other",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        }
        _Rest.table = {**before, "config": config}
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", {**_told(table), "config": config}
        server.shutdown()
        thread.join()


@needs_servers
def test_credentials_that_a_rest_catalog_hands_out_are_used_and_renewed(
    rest: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-somebody-else")
    url, after = rest
    catalog = load_catalog("rest", type="rest", uri=url, token="t")
    live = [number for number in range(30) if number != 3]
    for source in (catalog.load_table("db.sales"), IcebergSource("db.sales", catalog=catalog)):
        assert sorted(row[0] for row in delivered(source, ["id"])) == live
    assert ("/v1/lake/namespaces/db/tables/sales", "vended-credentials") in _Rest.asked
    source = IcebergSource("db.sales", catalog=catalog, follow=True)
    with BatchedDataLoader(source, 16, output_options=NUMPY) as loader:
        assert sorted(int(value) for batch in loader for value in batch["id"]) == live
        _Rest.table = after
        _Rest.asked.clear()
        assert sorted(int(value) for batch in loader for value in batch["id"]) == [*live, 100]
        assert _Rest.asked == [("/v1/lake/namespaces/db/tables/sales", "vended-credentials")]
    with pytest.raises(SourceError, match=r"db\.gone: the catalog has no such table"):
        ParquetDataset(IcebergSource("db.gone", catalog=catalog))


@pytest.mark.slow
def test_a_table_of_a_glue_catalog_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    moto = pytest.importorskip("moto.server", reason="moto[server,glue,s3] is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-somebody-else")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"access-key-id": "a", "secret-access-key": "b", "region": "us-east-1", "endpoint": url}
        boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket="lake")
        properties = {f"{service}.{name}": value for service in ("glue", "s3") for name, value in keys.items()}
        catalog = load_catalog("glue", type="glue", warehouse="s3://lake/warehouse", **properties)
        catalog.create_namespace("db")
        table = catalog.create_table("db.sales", schema=pa.schema([("id", pa.int64())]))
        table.append(pa.table({"id": range(50)}))
        table.delete("id < 10")
        for source in (table, IcebergSource("db.sales", catalog=catalog)):
            assert sorted(row[0] for row in delivered(source, ["id"])) == list(range(10, 50))
        first = IcebergSource("db.sales", catalog=catalog, snapshot_id=table.snapshots()[0].snapshot_id)
        assert ParquetDataset(first).num_rows == 50
    finally:
        server.stop()
