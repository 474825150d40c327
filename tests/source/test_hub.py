"""`hf://datasets/...`: the commit that was newest at opening, one listing, ranges of bytes, and errors that help."""

from __future__ import annotations

import io
import json
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DeltaSource,
    EpisodeLoader,
    Episodes,
    HubSource,
    LocalCache,
    ParquetDataset,
    ParquetLoaderError,
    ReadOptions,
    RemoteError,
    RemoteOptions,
    ResumeError,
    SourceError,
    UnsupportedError,
    rewrite_dataset,
    write_dataset,
)
from tests.support.hub import Hub, Repository, serving

PATIENT = ReadOptions(remote=RemoteOptions(stall_s=60, deadline_s=100, hedge=False))
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_OIDC_RESOURCE", "HF_HUB_OFFLINE")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    for name in TOKENS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def parquet(first: int, rows: int = 100, group_rows: int = 25) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(range(first, first + rows), pa.int64())}), sink, row_group_size=group_rows)
    return sink.getvalue()


def standard(hub: Hub, **options: Any) -> Repository:
    repository = hub.repository("org/name", **options)
    train = {f"data/train-0000{n}-of-00003.parquet": parquet(n * 100) for n in range(3)}
    repository.commit({**train, "data/test-00000-of-00001.parquet": parquet(1000), "README.md": b"# name"})
    return repository


def ids(source: Any, **options: Any) -> list[int]:
    with BatchedDataLoader(source, 16, read_options=PATIENT, **options) as loader:
        return sorted(int(value) for batch in loader for value in batch["id"])


def test_a_repository_is_listed_once_and_each_file_asked_for_once_at_the_hub(hub: Hub) -> None:
    standard(hub)
    data = ParquetDataset("hf://datasets/org/name", split="train", read_options=PATIENT)
    with data.batches(10, shuffle=True) as loader:
        for _ in range(3):
            assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(300))
    assert hub.count("revision") == hub.count("tree") == 1
    asked = Counter(request.path.rpartition("/")[2] for request in hub.requests if request.kind == "resolve")
    assert asked == {f"train-0000{n}-of-00003.parquet": 1 for n in range(3)} | {"README.md": 1}
    of_files = [request for request in hub.requests if request.kind in ("resolve", "cdn")]
    assert all(request.range is not None for request in of_files)
    assert hub.count("cdn") == 3 + 3 * 12  # a footer each, and each row group in each epoch


def test_files_that_the_hub_serves_itself_are_read(hub: Hub) -> None:
    hub.lfs = False
    standard(hub)
    assert ids("hf://datasets/org/name", split="train") == list(range(300))
    assert hub.count("cdn") == 0


def test_many_paths_of_one_repository_cost_one_listing(hub: Hub) -> None:
    standard(hub)
    names = [f"hf://datasets/org/name/data/train-0000{n}-of-00003.parquet" for n in range(3)]
    assert ids(names) == list(range(300))
    assert hub.count("revision") == hub.count("tree") == 1
    assert ids("hf://datasets/org/name/data/train-*") == list(range(300))
    assert ids("hf://datasets/org/name/data", split="test") == list(range(1000, 1100))
    assert ids("hf://datasets/org/name@main/data/test-00000-of-00001.parquet") == list(range(1000, 1100))


def test_a_listing_of_several_pages_is_read_to_its_end(hub: Hub) -> None:
    hub.page_entries = 7
    hub.repository("org/many").commit({f"part={n % 4}/{n:02}.parquet": parquet(n, 1, 1) for n in range(40)})
    data = ParquetDataset("hf://datasets/org/many", read_options=PATIENT)
    assert data.num_rows == 40
    assert hub.count("tree") == 7  # 40 files and 4 directories
    hub.requests.clear()
    assert ids("hf://datasets/org/many/part=2/*.parquet") == list(range(2, 40, 4))
    # The first page, the directory, and what lies next to it: for tables, and for Petastorm's metadata.
    assert hub.count("tree") == 1 + 2 + 2


def test_several_repositories_are_one_source(hub: Hub) -> None:
    hub.repository("org/one").commit({"a.parquet": parquet(0)})
    hub.repository("org/two").commit({"b.parquet": parquet(100)})
    assert ids(["hf://datasets/org/one", "hf://datasets/org/two/b.parquet"]) == list(range(200))


def test_the_commit_of_the_opening_is_read_to_the_end(hub: Hub) -> None:
    repository = standard(hub)
    first = repository.revisions["main"]
    with BatchedDataLoader("hf://datasets/org/name", 10, split="train", read_options=PATIENT) as loader:
        batches = iter(loader)
        found = [int(i) for i in next(batches)["id"]]
        repository.commit({"data/train-00000-of-00001.parquet": parquet(5000)})
        found += [int(i) for batch in batches for i in batch["id"]]
        assert sorted(found) == list(range(300))
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(300))
    assert ids("hf://datasets/org/name", split="train") == list(range(5000, 5100))
    assert ids(f"hf://datasets/org/name@{first}", split="train") == list(range(300))
    data = ParquetDataset(f"hf://datasets/org/name@{first}", split="test")
    assert data.locate([0])[0][0] == f"datasets/org/name@{first}/data/test-00000-of-00001.parquet"


@pytest.mark.parametrize(
    "written", ["refs%2Fconvert%2Fparquet", "refs/convert/parquet", "~parquet", "a%2Fbranch", "v1.0"]
)
def test_revisions_are_written_as_the_hub_writes_them(hub: Hub, written: str) -> None:
    revision = {"a%2Fbranch": "a/branch", "v1.0": "v1.0"}.get(written, "refs/convert/parquet")
    repository = standard(hub)
    repository.commit(
        {"default/train/0000.parquet": parquet(7000), "default/test/0000.parquet": parquet(8000)}, revision
    )
    assert ids(f"hf://datasets/org/name@{written}", split="train") == list(range(7000, 7100))
    assert ids(f"hf://datasets/org/name@{written}/default/test/0000.parquet") == list(range(8000, 8100))


def test_a_repository_without_an_organization_is_found(hub: Hub) -> None:
    hub.repository("squad").commit({"plain/train.parquet": parquet(0)})
    for path in ("", "/plain", "/plain/train.parquet", "@main/plain/*"):
        assert ids(f"hf://datasets/squad{path}") == list(range(100))


def test_a_renamed_repository_is_read_under_its_new_name(hub: Hub) -> None:
    standard(hub)
    hub.renamed["old"] = "org/name"
    hub.requests.clear()
    assert ids("hf://datasets/old", split="test") == list(range(1000, 1100))
    assert all("/old/" not in request.path for request in hub.requests if request.kind != "revision")


def test_the_configurations_of_a_readme_are_told_apart(hub: Hub) -> None:
    readme = b"---\nconfigs:\n- config_name: en\n  data_dir: en\n- config_name: fr\n  data_dir: fr\n---\n"
    hub.repository("org/two").commit({"en/a.parquet": parquet(0), "fr/a.parquet": parquet(100), "README.md": readme})
    with pytest.raises(
        SourceError, match=r"mixes the configurations 'en', 'fr'.*such as 'hf://datasets/org/two@.*/en'"
    ):
        ids("hf://datasets/org/two")
    assert ids("hf://datasets/org/two/fr") == list(range(100, 200))
    converted = {f"{name}/train/0000.parquet": parquet(n) for n, name in enumerate(("en", "fr"))}
    hub.repositories["org/two"].commit(converted, "refs/convert/parquet")
    with pytest.raises(SourceError, match=r"mixes the configurations 'en', 'fr'.*CONFIGURATION/SPLIT"):
        ids("hf://datasets/org/two@~parquet")


def test_directories_named_key_value_are_columns(hub: Hub) -> None:
    hub.repository("org/hive").commit({f"lang={lang}/a.parquet": parquet(0, 10) for lang in ("de", "en")})
    with BatchedDataLoader("hf://datasets/org/hive", 64) as loader:
        assert sorted({text for batch in loader for text in batch["lang"].to_list()}) == ["de", "en"]


def test_a_table_in_a_repository_is_recognised(hub: Hub) -> None:
    files = {"t/_delta_log/00000000000000000000.json": b"{}", "t/part-0.parquet": parquet(0)}
    hub.repository("org/table").commit(files)
    for path in ("/t", "/t/part-0.parquet", ""):
        with pytest.raises(SourceError, match="Delta"):
            ids(f"hf://datasets/org/table{path}")
    hub.page_entries = 1
    with pytest.raises(SourceError, match="Delta"):
        ids("hf://datasets/org/table/t/part-0.parquet")
    hub.repository("org/iceberg").commit({"metadata/v1.metadata.json": b"{}", "data/part-0.parquet": parquet(0)})
    for source in ("hf://datasets/org/table/t", DeltaSource("hf://datasets/org/table/t"), "hf://datasets/org/iceberg"):
        with pytest.raises(SourceError, match="of the Hub is not read; download the repository and pass"):
            ids(source)


# ------------------------------------------------------------------ tokens and refusals


def refusal(source: str) -> str:
    with pytest.raises(ParquetLoaderError) as caught:
        ParquetDataset(source, read_options=PATIENT)
    return str(caught.value)


def test_tokens_come_from_the_standard_places(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    standard(hub, private=True, readers={"hf_good"})
    source = "hf://datasets/org/name/data/test-*"
    assert "hf auth login" in refusal(source)
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("hf_good\n")
    assert ids(source) == list(range(1000, 1100))
    (home / "token").unlink()
    (tmp_path / "elsewhere").write_text("hf_good")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert ids(source) == list(range(1000, 1100))
    monkeypatch.setenv("HF_TOKEN", "hf_other")  # it takes precedence over the file
    assert "may not read it" in refusal(source)
    monkeypatch.setenv("HF_TOKEN", " hf_good\n")
    assert ids(source) == list(range(1000, 1100))


def test_the_token_goes_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    standard(hub, private=True, readers={"hf_good"})
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert len(ids("hf://datasets/org/name", split="test")) == 100
    assert {(request.kind == "cdn", request.token) for request in hub.requests} == {(True, None), (False, "hf_good")}


def test_no_secret_is_in_an_error_a_state_or_a_pickle(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    standard(hub, private=True, readers={"hf_good"})
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    data = ParquetDataset("hf://datasets/org/name", split="test", read_options=PATIENT)
    with data.batches(10) as loader:
        next(iter(loader))
        texts = [str(loader.state_dict()), str(loader.stats()), repr(loader), repr(data)]
        texts.append(repr(pickle.dumps(data)))
        hub.failures["cdn"] = [(403, {})] * 50
        hub.failures["resolve"] = [(403, {"X-Error-Message": "no"})] * 50
        with pytest.raises(SourceError) as caught:
            list(loader)
        texts.append(str(caught.value))
    monkeypatch.setenv("HF_TOKEN", "hf_go od")
    texts.append(refusal("hf://datasets/org/name"))
    for text in texts:
        assert "hf_go" not in text
        assert "secret-" not in text


def test_refusals_say_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    standard(hub, gated=True, readers={"hf_good"})
    page = f"{hub.url}/datasets/org/name"
    assert f"'org/name' is gated; run `hf auth login`, or set HF_TOKEN, and accept its conditions at {page}" in refusal(
        "hf://datasets/org/name/data/test-*"
    )
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert f"gated; accept its conditions at {page} as the user whose token this is" in refusal(
        "hf://datasets/org/name/data/test-*"
    )
    assert "no repository 'org/nam'" in refusal("hf://datasets/org/nam")
    assert "has no revision 'v9'; see" in refusal("hf://datasets/org/name@v9")
    assert "no such file or directory" in refusal("hf://datasets/org/name/dta")
    assert "matches no" in refusal("hf://datasets/org/name/data/valid-*")
    hub.repository("org/json").commit({"train.json": b"{}"})
    assert "holds no Parquet files" in refusal("hf://datasets/org/json")
    assert "@~parquet" in refusal("hf://datasets/org/json")
    assert "expected hf://datasets/ORG/NAME" in refusal("hf://datasets/")
    assert "expected hf://datasets/ORG/NAME" in refusal("hf://datasets/org/name/../x")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not accept the token in HF_TOKEN" in refusal("hf://datasets/org/name")
    monkeypatch.setenv("HF_ENDPOINT", "huggingface.co")
    assert "HF_ENDPOINT='huggingface.co': expected a URL" in refusal("hf://datasets/org/name")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "connection refused" in refusal("hf://datasets/org/name")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in refusal("hf://datasets/org/name")


def test_the_hub_is_not_written_to(hub: Hub, tmp_path: Path) -> None:
    standard(hub)
    with pytest.raises(ParquetLoaderError, match="hf upload"):
        write_dataset(pa.table({"id": [1]}), "hf://datasets/org/name/new")
    rewrite_dataset("hf://datasets/org/name", tmp_path / "copy", split="test")
    assert ids(tmp_path / "copy") == list(range(1000, 1100))


# ------------------------------------------------------------------ what goes wrong on the way


def test_signed_urls_that_expire_are_signed_again(hub: Hub) -> None:
    standard(hub)
    with BatchedDataLoader("hf://datasets/org/name", 10, split="train", read_options=PATIENT) as loader:
        assert len(list(loader)) == 30
        hub.now_s += 2 * hub.signature_s
        hub.requests.clear()
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(300))
    assert 3 <= hub.count("resolve") <= 12
    assert sum(request.status == 403 for request in hub.requests) <= 12


@pytest.mark.parametrize("kind", ["revision", "tree", "resolve", "cdn"])
def test_what_fails_for_now_is_asked_for_again(hub: Hub, kind: str) -> None:
    standard(hub)
    hub.failures[kind] = [(503, {}), (500, {}), (502, {})]
    assert ids("hf://datasets/org/name/data/test-*") == list(range(1000, 1100))
    assert not hub.failures[kind]


@pytest.mark.parametrize("kind", ["tree", "cdn"])
def test_the_hub_says_how_long_to_wait(hub: Hub, kind: str) -> None:
    standard(hub)
    hub.failures[kind] = [(429, {"Retry-After": "1"})]
    began_s = time.monotonic()
    assert ids("hf://datasets/org/name/data/test-*") == list(range(1000, 1100))
    assert [request.status for request in hub.requests if request.kind == kind][:1] == [429]
    assert time.monotonic() - began_s >= 1


def test_a_hub_that_stays_down_is_an_error_that_says_so(hub: Hub) -> None:
    standard(hub)
    hub.failures["tree"] = [(503, {})] * 1000
    impatient = ReadOptions(remote=RemoteOptions(deadline_s=4))
    with pytest.raises(RemoteError, match=r"without success, the last: 503 Service Unavailable"):
        ParquetDataset("hf://datasets/org/name", read_options=impatient)


def test_history_that_was_rewritten_is_an_error(hub: Hub) -> None:
    repository = standard(hub)
    with BatchedDataLoader("hf://datasets/org/name", 10, split="train", read_options=PATIENT) as loader:
        repository.commits.clear()
        repository.commit({"data/train-00000-of-00001.parquet": parquet(0)})
        with pytest.raises(SourceError, match="has been rewritten"):
            list(loader)


def test_a_server_without_ranges_is_refused_for_large_files(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    standard(hub)
    monkeypatch.setattr(
        "tests.support.hub._Handler.ranged",
        lambda self, kind, content, headers: self.answer(kind, 200, content, headers),
    )
    assert ids("hf://datasets/org/name/data/test-*") == list(range(1000, 1100))  # a small file may come as a whole
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [0], "blob": [os.urandom(17 * 2**20)]}), sink, compression=None)
    hub.repository("org/large").commit({"a.parquet": sink.getvalue()})
    with pytest.raises(SourceError, match="does not support range requests"):
        ids("hf://datasets/org/large")


def test_answers_that_are_not_of_the_hub_are_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    standard(hub)
    monkeypatch.setattr(
        "tests.support.hub._HubHandler.revision", lambda self, *_: self.answer("revision", 200, b"<html>")
    )
    assert "not one of the Hugging Face Hub" in refusal("hf://datasets/org/name")


def test_a_file_of_another_size_than_listed_is_an_error(hub: Hub) -> None:
    repository = standard(hub)
    commit = repository.revisions["main"]
    with BatchedDataLoader("hf://datasets/org/name", 10, split="test", read_options=PATIENT) as loader:
        repository.commits[commit]["data/test-00000-of-00001.parquet"] += b"more"
        hub.now_s += 2 * hub.signature_s
        with pytest.raises(SourceError, match=r"had \d+ when it was listed"):
            list(loader)


# ------------------------------------------------------------------ with the rest of the library


def test_row_groups_are_kept_in_the_local_cache(hub: Hub, tmp_path: Path) -> None:
    repository = standard(hub)
    cache = LocalCache(tmp_path / "cache", max_bytes="1GiB")
    assert ids("hf://datasets/org/name", split="train", cache=cache) == list(range(300))
    hub.requests.clear()
    assert ids("hf://datasets/org/name", split="train", cache=cache) == list(range(300))
    assert hub.count("cdn") == 3  # footers
    # A new commit with the same files: what was cached is what it holds.
    files = repository.commits[repository.revisions["main"]]
    repository.commit({**files, "data/train-00003-of-00003.parquet": parquet(300)})
    hub.requests.clear()
    assert ids("hf://datasets/org/name", split="train", cache=cache) == list(range(400))
    assert hub.count("cdn") == 4 + 4


def test_a_listing_that_is_remembered_costs_no_footers(hub: Hub, tmp_path: Path) -> None:
    repository = standard(hub)
    options = ReadOptions(remote=RemoteOptions(snapshot_cache=tmp_path / "listings"))
    for expected in (3, 0):
        hub.requests.clear()
        assert ParquetDataset("hf://datasets/org/name", split="train", read_options=options).num_rows == 300
        assert hub.count("cdn") == expected
    files = repository.commits[repository.revisions["main"]]
    repository.commit({**files, "data/train-00003-of-00003.parquet": parquet(300)})
    hub.requests.clear()
    assert ParquetDataset("hf://datasets/org/name", split="train", read_options=options).num_rows == 400
    assert hub.count("cdn") == 1


def test_a_child_process_reads_the_same_commit(hub: Hub) -> None:
    repository = standard(hub)
    with BatchedDataLoader(
        "hf://datasets/org/name", 10, split="train", isolation="process", read_options=PATIENT
    ) as loader:
        repository.commit({"data/train-00000-of-00001.parquet": parquet(5000)})
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(300))


def test_a_state_goes_on_where_it_was(hub: Hub) -> None:
    repository = standard(hub)
    source, commit = "hf://datasets/org/name", repository.revisions["main"]

    def loader_of(source: str) -> BatchedDataLoader:
        return BatchedDataLoader(source, 10, split="train", shuffle=True, seed=3, read_options=PATIENT)

    with loader_of(source) as loader:
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = loader.state_dict()
        rest = [batch["id"].tolist() for batch in batches]
    with loader_of(f"{source}@{commit}") as again:
        again.load_state_dict(state)
        assert [batch["id"].tolist() for batch in again] == rest


def test_a_state_of_another_commit_is_refused_with_the_way_to_open_it(hub: Hub) -> None:
    repository = standard(hub)
    source, first = "hf://datasets/org/name", repository.revisions["main"]
    with BatchedDataLoader(source, 10, split="train", read_options=PATIENT) as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["table"] == f"hub version {first}"
    assert len(json.dumps(state)) <= 1024
    files = repository.commits[first]
    second = repository.commit({**files, "data/train-00003-of-00003.parquet": parquet(300)})
    opening = f"hub version {second}' here.*open the state's version: '{source}@{first}'"
    with (
        BatchedDataLoader(source, 10, split="train", read_options=PATIENT) as newer,
        pytest.raises(ResumeError, match=opening),
    ):
        newer.load_state_dict(state)
    with BatchedDataLoader(f"{source}@{first}", 10, split="train", read_options=PATIENT) as again:
        again.load_state_dict(state)
        assert len(list(again)) == 29


def test_a_state_of_many_repositories_is_small(hub: Hub) -> None:
    for number in range(30):
        hub.repository(f"org/part{number}").commit({"a.parquet": parquet(number * 10, 10)})
    with BatchedDataLoader([f"hf://datasets/org/part{n}" for n in range(30)], 10, read_options=PATIENT) as loader:
        state = loader.state_dict()
    assert len(json.dumps(state)) <= 1024


def test_closing_ends_requests_that_are_under_way(hub: Hub) -> None:
    standard(hub)
    data = ParquetDataset("hf://datasets/org/name", split="train", read_options=PATIENT)
    hub.latency_s = 100.0
    loader = data.batches(10)
    batches = iter(loader)
    closing = threading.Timer(0.3, loader.close)
    closing.start()
    with pytest.raises(ParquetLoaderError):
        next(batches)
    closing.join(60)
    assert not closing.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("parquet_loader-worker")]


def followed(address: str = "hf://datasets/org/name", **options: Any) -> BatchedDataLoader:
    options = {"batch_size": 10, "split": "train", "read_options": PATIENT, **options}
    return BatchedDataLoader(HubSource(address, follow=True), **options)


def epoch(loader: BatchedDataLoader) -> list[int]:
    return sorted(int(value) for batch in loader for value in batch["id"])


def test_a_followed_branch_is_read_at_its_newest_commit_in_each_epoch(hub: Hub) -> None:
    repository = standard(hub)
    files = dict(repository.commits[repository.revisions["main"]])
    with followed() as loader:
        assert epoch(loader) == list(range(300))
        changed = {**files, "data/train-00001-of-00003.parquet": parquet(5000, 50)}
        second = repository.commit(changed)
        hub.requests.clear()
        assert epoch(loader) == [*range(100), *range(200, 300), *range(5000, 5050)]
        assert str(loader.stats().growth) == f"hub version {second}: +50 rows in 1 file, -100 rows in 1 file"
        assert hub.count("revision") == hub.count("tree") == 1
        hub.requests.clear()
        assert len(epoch(loader)) == 250
        assert str(loader.stats().growth) == f"hub version {second}: +0 rows in 0 files, -0 rows in 0 files"
        assert hub.count("resolve") <= 3


@pytest.mark.parametrize("filtered", [False, True])
def test_a_state_of_a_followed_branch_goes_on_with_its_commit(hub: Hub, filtered: bool) -> None:
    repository = standard(hub)
    options: dict[str, Any] = {"shuffle": True, "filters": pc.field("id") != 203 if filtered else None}
    files = dict(repository.commits[repository.revisions["main"]])
    with followed(**options) as loader:
        whole = [int(value) for batch in loader for value in batch["id"]]
    with followed(**options) as loader:
        batches = iter(loader)
        first = [int(value) for _ in range(4) for value in next(batches)["id"]]
        state = json.loads(json.dumps(loader.state_dict()))
        repository.commit({**files, "data/train-00000-of-00003.parquet": parquet(7000)})
        assert len(first + [int(value) for batch in batches for value in batch["id"]]) == len(whole)
    with followed(**options) as loader:
        loader.load_state_dict(state)
        assert first + [int(value) for batch in loader for value in batch["id"]] == whole
        after = [*range(100, 300), *range(7000, 7100)]
        assert epoch(loader) == [value for value in after if not filtered or value != 203]


def test_a_state_whose_commit_was_squashed_is_refused_or_skipped(hub: Hub) -> None:
    repository = standard(hub)
    with followed() as loader:
        next(iter(loader))
        state = loader.state_dict()
    first = repository.revisions["main"]
    repository.commit({"data/train-00000-of-00001.parquet": parquet(5000)})
    del repository.commits[first]
    with followed() as loader:
        with pytest.raises(ResumeError, match=f"the repository no longer has 'hub version {first}'"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, if_gone="next_epoch")
        assert loader.state_dict()["epoch"] == 1
        assert epoch(loader) == list(range(5000, 5100))


def test_new_directories_of_a_followed_branch_may_change_a_partition_column(hub: Hub) -> None:
    """The values of files that stay become text, and the filter counts their rows anew."""
    repository = hub.repository("org/name")
    files = {f"part=0{n}/0.parquet": parquet(n * 100) for n in (1, 2)}
    repository.commit(files)
    with followed(split=None, filters=pc.field("part").cast("string").isin(["1", "02"])) as loader:
        assert epoch(loader) == list(range(100, 200))
        repository.commit({**files, "part=b/0.parquet": parquet(900)})
        assert epoch(loader) == list(range(200, 300))


def test_what_is_followed_at_the_hub_is_a_branch(hub: Hub) -> None:
    repository = standard(hub)
    commit = repository.revisions["main"]
    with pytest.raises(ConfigurationError, match="a commit never changes; name a branch"):
        HubSource(f"hf://datasets/org/name@{commit}", follow=True)
    with pytest.raises(ConfigurationError, match="expected 'hf://datasets/ORG/NAME"):
        HubSource("s3://bucket/name", follow=True)
    with pytest.raises(SourceError, match="not the address of a data set"):
        HubSource("hf://models/org/name", follow=True)
    with pytest.raises(ConfigurationError, match="pass the table to BatchedDataLoader"):
        ParquetDataset(HubSource("hf://datasets/org/name", follow=True))
    with pytest.raises(UnsupportedError, match="changes from epoch to epoch"):
        EpisodeLoader(HubSource("hf://datasets/org/name", follow=True), 2, episodes=Episodes("id"))
    data = ParquetDataset(HubSource("hf://datasets/org/name"), split="test", read_options=PATIENT)
    assert data.num_rows == 100
    assert ids(HubSource(f"hf://datasets/org/name@{commit}"), split="train") == list(range(300))
