"""Metrics of loaders: names that stay, text that parses, trackers that get them, and a server that ends."""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    EpisodeLoader,
    Episodes,
    LoaderStateError,
    MixedLoader,
    OutputOptions,
    TokenLoader,
)
from parquet_loader.loader.metrics import (
    MetricsServer,
    lightning_callback,
    lineage_of,
    log_mlflow,
    log_tensorboard,
    log_wandb,
    metrics_of,
    observe,
    openmetrics_text,
)

NAMES = {
    "epoch", "rows", "batches", "seconds", "wait_seconds", "first_batch_seconds", "longest_wait_seconds",
    "idle_seconds", "read_cpu_seconds", "permute_cpu_seconds", "gather_cpu_seconds", "process_cpu_seconds",
    "blocked_seconds", "read_bytes", "disk_bytes", "row_groups", "skipped_row_groups", "replaced_rows", "held_bytes",
    "peak_bytes", "memory_limit_bytes", "threads", "rows_per_second", "wait_ratio",
}  # fmt: skip


@pytest.fixture
def loader(tmp_path: Path) -> Any:
    pq.write_table(pa.table({"x": np.arange(1000.0)}), tmp_path / "a.parquet", row_group_size=100)
    with BatchedDataLoader(
        str(tmp_path), 100, shuffle=True, seed=3, output_options=OutputOptions(format="numpy")
    ) as made:
        yield made


def an_epoch(loader: BatchedDataLoader) -> None:
    for _ in loader:
        pass


def fetched(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_names_stay_and_values_are_those_of_stats(loader: BatchedDataLoader) -> None:
    an_epoch(loader)
    stats = loader.stats()
    found = metrics_of(stats)
    assert set(found) == NAMES
    assert (found["rows"], found["batches"], found["epoch"]) == (1000, 10, 0)
    assert found["wait_seconds"] == stats.wait_s
    assert found["peak_bytes"] == stats.peak_bytes


def test_stats_as_a_dict_are_json_with_the_same_keys_in_each_epoch(loader: BatchedDataLoader) -> None:
    keys = []
    for _ in range(2):
        an_epoch(loader)
        found = loader.stats().to_dict()
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        keys.append(list(found))
    assert keys[0] == keys[1]


def test_lineage_is_the_same_for_the_same_rows_in_the_same_order(loader: BatchedDataLoader, tmp_path: Path) -> None:
    before = lineage_of(loader)
    an_epoch(loader)
    assert lineage_of(loader) == before
    assert json.loads(json.dumps(before)) == before
    with BatchedDataLoader(str(tmp_path), 100, shuffle=True, seed=4) as other:
        assert {k for k, v in lineage_of(other).items() if v != before[k]} == {"seed"}


def test_text_is_open_metrics(loader: BatchedDataLoader) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="needs prometheus_client")
    an_epoch(loader)
    name = 'a "name"\\ with\nlines'
    families = {f.name: f for f in parser.text_string_to_metric_families(openmetrics_text({name: loader.stats()}))}
    assert set(families) == {f"parquet_loader_{n}" for n in NAMES}
    rows = families["parquet_loader_rows"]
    assert rows.type == "counter"
    assert [(s.name, s.labels, s.value) for s in rows.samples] == [
        ("parquet_loader_rows_total", {"loader": name}, 1000.0)
    ]
    assert families["parquet_loader_held_bytes"].unit == "bytes"


def test_text_ends_as_it_must_and_escapes_names(loader: BatchedDataLoader) -> None:
    an_epoch(loader)
    text = openmetrics_text({'"\\\n': loader.stats()})
    assert text.endswith("\n# EOF\n")
    assert 'parquet_loader_rows_total{loader="\\"\\\\\\n"} 1000.0\n' in text
    assert openmetrics_text({}) == "# EOF\n"


@pytest.mark.parametrize("kind", ["tokens", "episodes"])
def test_metrics_of_a_loader_with_an_index_are_those_of_its_stats(tmp_path: Path, kind: str) -> None:
    rows = np.arange(20_000)
    table = pa.table({"episode": rows // 4, "x": rows, "tokens": [[1, 2, 3]] * len(rows)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5_000)
    arguments: dict[str, Any] = {"memory_limit": "64MiB", "output_options": OutputOptions(format="numpy")}
    made: BatchedDataLoader
    if kind == "tokens":
        made, index_bytes = TokenLoader(tmp_path, tokens="tokens", length=64, batch_size=16, **arguments), 4 * len(rows)
    else:
        episodes = Episodes(by="episode", history=1, future=0)
        made, index_bytes = EpisodeLoader(tmp_path, 16, episodes=episodes, columns=["x"], **arguments), 8 * 5_000
    with made, MetricsServer({"train": made}) as server:
        an_epoch(made)
        stats, text = made.stats(), fetched(server.url)[1]
        assert stats.memory_limit_bytes == 64 * 2**20
        assert f'parquet_loader_memory_limit_bytes{{loader="train"}} {float(64 * 2**20)}\n' in text
        assert f'parquet_loader_peak_bytes{{loader="train"}} {float(stats.peak_bytes)}\n' in text
        assert stats.held_bytes >= index_bytes


def test_a_server_answers_before_during_and_after_an_epoch(loader: BatchedDataLoader) -> None:
    with MetricsServer({"train": loader}) as server:
        assert fetched(server.url)[1] == "# EOF\n"
        iterator = iter(loader)
        next(iterator)
        kind, text = fetched(server.url)
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert 'parquet_loader_rows_total{loader="train"} 100.0\n' in text
        list(iterator)
        assert 'parquet_loader_rows_total{loader="train"} 1000.0\n' in fetched(server.url)[1]
        with pytest.raises(urllib.error.HTTPError, match="404") as raised:
            fetched(server.url.replace("/metrics", "/other"))
        raised.value.close()
    assert not [t for t in threading.enumerate() if t.name == "parquet_loader-metrics"]
    with pytest.raises(OSError):
        fetched(server.url)
    server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
def test_a_server_listens_at_an_address_of_either_family(loader: BatchedDataLoader, host: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with MetricsServer({"train": loader}, host=host) as server:
        assert fetched(server.url)[1] == "# EOF\n"


def test_a_server_keeps_no_loader_alive(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(10.0)}), tmp_path / "a.parquet")
    loader = BatchedDataLoader(str(tmp_path), 5, output_options=OutputOptions(format="numpy"))
    an_epoch(loader)
    with MetricsServer({"train": loader}) as server:
        assert "rows_total" in fetched(server.url)[1]
        loader.close()
        del loader
        gc.collect()
        assert fetched(server.url)[1] == "# EOF\n"


def test_a_silent_client_does_not_block_the_end(loader: BatchedDataLoader) -> None:
    server = MetricsServer({"train": loader})
    port = int(server.url.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(b"GET /metr")
        server.close()
    assert not [t for t in threading.enumerate() if t.name == "parquet_loader-metrics"]


def test_a_server_needs_loaders_and_a_free_port(loader: BatchedDataLoader) -> None:
    with pytest.raises(ConfigurationError, match="dict of loaders by name"):
        MetricsServer({})
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        MetricsServer({"train": loader}, port=taken.getsockname()[1])


def test_a_client_that_resets_its_connection_prints_nothing(
    loader: BatchedDataLoader, capfd: pytest.CaptureFixture[str]
) -> None:
    with MetricsServer({"train": loader}) as server:
        address = ("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))
        with socket.create_connection(address) as first:  # the server waits for it, and meanwhile the other one is gone
            with socket.create_connection(address) as gone:
                gone.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            first.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert first.recv(12) == b"HTTP/1.0 200"
        assert fetched(server.url)[1] == "# EOF\n"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("take", [MetricsServer, observe])
def test_a_mixture_is_refused_and_its_loaders_are_not(loader: BatchedDataLoader, take: Any) -> None:
    mixture = MixedLoader({"a": loader}, {"a": 1})
    for given in ({"train": mixture}, {1: loader}, {"train": None}, {"train": BatchedDataLoader}, {}):
        with pytest.raises(ConfigurationError, match=r"has no stats\(\); pass loaders|dict of loaders by name"):
            take(given)
    an_epoch(loader)
    with MetricsServer(mixture.loaders) as server:
        assert 'rows_total{loader="a"} 1000.0' in fetched(server.url)[1]


class Writer:
    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars[name] = value, step


def test_tensorboard_gets_scalars(loader: BatchedDataLoader) -> None:
    writer = Writer()
    with pytest.raises(LoaderStateError):
        log_tensorboard(loader, writer, 0)
    an_epoch(loader)
    log_tensorboard(loader, writer, 7)
    assert writer.scalars["loader/rows"] == (1000.0, 7)
    assert {name.removeprefix("loader/") for name in writer.scalars} == NAMES


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_weights_and_biases_get_figures_and_lineage(
    loader: BatchedDataLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    an_epoch(loader)
    run = wandb.init(mode="offline", dir=tmp_path, project="p")
    try:
        log_wandb(loader, run, 1)
        assert run.config["loader"]["seed"] == 3
    finally:
        run.finish()
        wandb.teardown()
    [written] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"loader/rows" in written.read_bytes()


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_mlflow_gets_figures_and_lineage(
    loader: BatchedDataLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    an_epoch(loader)
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    with mlflow.start_run() as run:
        log_mlflow(loader, 2)
    found = mlflow.get_run(run.info.run_id).data
    assert found.metrics["loader.rows"] == 1000
    assert found.tags["loader.seed"] == "3"
    assert found.tags["loader.files"] == str(lineage_of(loader)["files"])


def test_open_telemetry_reads_the_figures(loader: BatchedDataLoader) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="needs opentelemetry-sdk")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    observe({"train": loader}, provider.get_meter("test"))
    an_epoch(loader)
    data = reader.get_metrics_data()
    found = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert set(found) == {f"parquet_loader.{name}" for name in NAMES}
    [point] = found["parquet_loader.rows"].data.data_points
    assert (point.value, dict(point.attributes)) == (1000, {"loader": "train"})
    assert found["parquet_loader.peak_bytes"].unit == "By"
    provider.shutdown()


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")  # of Lightning itself
def test_lightning_logs_at_the_end_of_each_epoch(loader: BatchedDataLoader, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning")
    torch = pytest.importorskip("torch")
    from lightning.pytorch.loggers import CSVLogger

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch["x"].float()[:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

    with BatchedDataLoader(os.fspath(tmp_path), 100, shuffle=True, seed=3) as data:
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=CSVLogger(tmp_path), enable_progress_bar=False,
            enable_checkpointing=False, enable_model_summary=False, callbacks=[lightning_callback(data)],
        )  # fmt: skip
        trainer.fit(Model(), data)
    assert trainer.logger is not None
    logged = (Path(trainer.logger.log_dir) / "metrics.csv").read_text()
    assert "loader/rows" in logged.splitlines()[0]
    assert len(logged.splitlines()) == 3
    assert "loader/seed: 3" in (Path(trainer.logger.log_dir) / "hparams.yaml").read_text()
