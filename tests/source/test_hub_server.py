"""The tests' Hub server answers huggingface_hub's own client like the real Hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub import Hub, serving, sha

hub_client: Any = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
errors: Any = pytest.importorskip("huggingface_hub.errors")


@pytest.fixture
def hub() -> Any:
    with serving() as server:
        yield server


def api(hub: Hub, token: str | bool = False) -> Any:
    return hub_client.HfApi(endpoint=hub.url, token=token)


def test_the_client_finds_revisions_and_pages_of_files(hub: Hub) -> None:
    repository = hub.repository("org/name")
    files = {f"data/{number:03}.parquet": os.urandom(30 + number) for number in range(25)}
    commit = repository.commit({**files, "README.md": b"# name"})
    newer = repository.commit({"only.parquet": b"1"}, "refs/convert/parquet")
    hub.page_entries = 10
    client = api(hub)
    assert client.dataset_info("org/name", revision="main").sha == commit
    assert client.dataset_info("org/name").sha == commit
    assert client.dataset_info("org/name", revision="refs/convert/parquet").sha == newer
    listed = list(client.list_repo_tree("org/name", repo_type="dataset", revision=commit, recursive=True))
    found = {entry.path: (entry.size, entry.lfs and entry.lfs.sha256) for entry in listed if hasattr(entry, "size")}
    assert found == {name: (len(content), sha(content)) for name, content in files.items()} | {"README.md": (6, None)}
    assert hub.count("tree") == 3
    below = list(client.list_repo_tree("org/name", "data", repo_type="dataset", revision="main"))
    assert len(below) == 25


def test_the_client_downloads_through_the_redirect(hub: Hub, tmp_path: Path) -> None:
    content = os.urandom(5000)
    hub.repository("org/name").commit({"data/a b.parquet": content, "README.md": b"# name"})
    url = hub_client.hf_hub_url("org/name", "data/a b.parquet", repo_type="dataset", endpoint=hub.url)
    found = hub_client.get_hf_file_metadata(url, token=False)
    assert (found.size, found.etag) == (5000, sha(content))
    files = hub_client.HfFileSystem(endpoint=hub.url, token=False)
    assert files.cat_file("datasets/org/name/data/a b.parquet", start=100, end=200) == content[100:200]
    assert hub.count("cdn") >= 1


@pytest.mark.parametrize(
    ("options", "token", "error"),
    [
        ({"gated": True}, "hf_good", "GatedRepoError"),
        ({"private": True}, "hf_good", "RepositoryNotFoundError"),
    ],
)
def test_the_client_names_what_may_not_be_read(hub: Hub, options: dict[str, bool], token: str, error: str) -> None:
    hub.repository("org/name", **options).commit({"a.parquet": b"1234"})
    url = hub_client.hf_hub_url("org/name", "a.parquet", repo_type="dataset", endpoint=hub.url)
    with pytest.raises(getattr(errors, error)):
        hub_client.get_hf_file_metadata(url, token=token)


def test_the_client_names_what_is_missing(hub: Hub) -> None:
    hub.repository("org/name").commit({"a.parquet": b"1234"})
    client = api(hub, "hf_good")
    with pytest.raises(errors.RepositoryNotFoundError):
        client.dataset_info("org/nothing", revision="main")
    with pytest.raises(errors.RevisionNotFoundError):
        client.dataset_info("org/name", revision="v9")
    with pytest.raises(errors.EntryNotFoundError):
        list(client.list_repo_tree("org/name", "nothing", repo_type="dataset", revision="main"))
