"""Common mistakes with a loader get one line that names what to use: sources, keywords, items, torch's wrappers."""

from __future__ import annotations

import inspect
import re
from collections import UserList
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

import parquet_loader
from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DatasetWriter,
    MixedLoader,
    ParquetIterable,
    Scalar,
    Schema,
    Tensor,
    from_pandas,
    write_dataset,
)
from parquet_loader.common.hints import LOADER_KEYWORDS, WRITER_KEYWORDS


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_dataset({"a": np.arange(10)}, tmp_path / "data")
    return str(tmp_path / "data")


@pytest.fixture
def loader(path: str) -> Iterator[BatchedDataLoader]:
    with BatchedDataLoader(path, 4) as made:
        yield made


def first(items: Any) -> Any:
    return next(iter(items))


@pytest.mark.parametrize(
    "use",
    [
        lambda loader: loader[0],
        lambda loader: loader[1:],
        lambda loader: first(DataLoader(loader)),
        lambda loader: first(DataLoader(loader, batch_size=None)),
        lambda loader: first(DataLoader(loader, batch_size=2, shuffle=True)),
        lambda loader: first(DataLoader(loader, num_workers=1)),
        lambda loader: random_split(loader, [0.5, 0.5])[0][0],
        lambda loader: Subset(loader, [0])[0],
        lambda loader: ConcatDataset([loader, loader])[0],
        lambda loader: MixedLoader({"a": loader}, {"a": 1})[0],
    ],
)
def test_item_access_names_iteration_and_what_replaces_torchs_wrappers(
    use: Callable[[Any], Any], loader: BatchedDataLoader
) -> None:
    with pytest.raises(TypeError) as caught:
        use(loader)
    last = str(caught.value).splitlines()[-1]
    for advice in (
        "iterate over the loader itself",
        "ParquetIterable(loader)",
        "filters=split(...)",
        "a list of paths",
    ):
        assert advice in last


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"num_workers": 1, "multiprocessing_context": "fork"}])
def test_a_dataloader_that_would_stack_batches_names_batch_size(options: Any, loader: BatchedDataLoader) -> None:
    mixed = MixedLoader({"a": loader}, {"a": 1}, named=True)
    for each in (loader,) if "num_workers" in options else (loader, mixed):
        with pytest.raises(ConfigurationError, match=r"pass DataLoader\(dataset, batch_size=None\)"):
            first(DataLoader(ParquetIterable(each), **options))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "multiprocessing_context": "fork"}])
def test_batches_of_a_dataloader_are_plain_dicts(options: Any, loader: BatchedDataLoader) -> None:
    assert type(first(DataLoader(ParquetIterable(loader), batch_size=None, **options))) is dict


def test_next_of_a_loader_names_iter(loader: BatchedDataLoader) -> None:
    for each in (loader, MixedLoader({"a": loader}, {"a": 1})):
        with pytest.raises(TypeError, match=r"batches = iter\(loader\) begins an epoch"):
            next(each)


def test_the_length_of_the_dataset_is_its_rows(loader: BatchedDataLoader) -> None:
    assert len(loader.dataset) == 10


@pytest.mark.parametrize("use", [lambda rows: rows[0], list, lambda rows: Subset(rows, [0])[0]])
def test_rows_of_the_dataset_name_what_reads_them(use: Callable[[Any], Any], loader: BatchedDataLoader) -> None:
    with pytest.raises(TypeError, match=r"it has a length, but no rows; ParquetDataset\(source\)\[i\] reads rows"):
        use(loader.dataset)


FRAME = pd.DataFrame({"a": [1, 2]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: FRAME, "source is a pandas.DataFrame; from_pandas(data, batch_size)"),
        (lambda _: FRAME["a"], "to_frame() makes it a frame; from_pandas"),
        (lambda _: pl.DataFrame(FRAME), "source is a polars.DataFrame; from_pandas(data, batch_size)"),
        (lambda _: pl.DataFrame(FRAME).lazy(), "collect() makes it a frame; from_pandas"),
        (lambda _: pa.table(FRAME), "source is a pyarrow.Table; from_pandas(data, batch_size)"),
        (lambda _: pa.table(FRAME).to_reader(), "source is a pyarrow.RecordBatchReader; write_dataset(data, path)"),
        (pads.dataset, "BatchedDataLoader(dataset.files, batch_size)"),
        (lambda path: pq.ParquetFile(next(iter(Path(path).iterdir()))), "pass the path of the file"),
        (lambda _: {"a": np.arange(3)}, "source is a dict; from_pandas(data, batch_size)"),
        (lambda _: [{"a": 1}], "source is a list that holds a dict; write_dataset(data, path)"),
        (lambda _: [FRAME], "source is a list that holds a pandas.DataFrame; write_dataset(data, path)"),
        (lambda _: np.zeros(3), "from_pandas({'x': array}, batch_size)"),
        (lambda path: np.array([path]), "of paths, pass a list: source.tolist()"),
        (lambda path: pd.Series([path]), "of paths, pass a list: source.tolist()"),
        (lambda _: pd.Series([{"a": 1}]), "from_pandas({'x': source}, batch_size) makes a loader of values"),
        (lambda _: torch.zeros(3), "from_pandas({'x': array}, batch_size)"),
        (lambda _: TensorDataset(torch.zeros(3)), "write_dataset(({'x': x, 'y': y} for x, y in data), path)"),
        (lambda _: TensorDataset(torch.zeros(3)), "write_dataset((data[n] for n in range(len(data))), path)"),
        (lambda _: (row for row in [{"a": 1}]), "source is a generator; of paths, pass a list: list(paths); of rows"),
        (lambda path: Path(path).glob("*.parquet"), "of paths, pass a list: list(paths)"),
        (lambda path: map(str, Path(path).iterdir()), "source is a map; of paths, pass a list"),
        (lambda _: None, "source is None; expected a path"),
        (lambda _: 3, "source is an int; expected a path"),
        (lambda _: b"path", "expected a path"),
        (lambda _: [1, 2], "source is a list that holds an int; expected paths or URLs"),
    ],
)
def test_a_source_of_another_kind_names_what_reads_it(make: Callable[[str], Any], message: str, path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        BatchedDataLoader(make(path), 2)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dask_frame_is_sent_to_from_dask() -> None:
    frame = pytest.importorskip("dask.dataframe").from_pandas(FRAME, npartitions=1)
    with pytest.raises(ConfigurationError, match=r"from_dask\(data, batch_size\)"):
        BatchedDataLoader(frame, 2)
    with pytest.raises(ConfigurationError, match=r"from_dask\(data, batch_size\)"):
        from_pandas(frame, 2)


def test_a_path_given_to_from_pandas_is_sent_to_the_loader(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"BatchedDataLoader\(path, batch_size\) reads files"):
        from_pandas(path, 2)


@pytest.mark.parametrize(
    ("keyword", "equivalent"),
    [
        ("num_workers", "num_threads=<n>"),
        ("pin_memory", "device='cuda'"),
        ("collate_fn", "transform="),
        ("sampler", "shuffle=True, seed=<n>"),
        ("batch_sampler", "shard=Shard(rank, world_size)"),
        ("worker_init_fn", "transform="),
        ("generator", "seed=<n>"),
        ("prefetch_factor", "memory_limit=<bytes>"),
        ("persistent_workers", "leave it out"),
        ("reader_pool_type", "isolation='process'"),
        ("workers_count", "num_threads=<n>"),
        ("num_epochs", "for batch in loader"),
        ("schema_fields", "columns=[<names>]"),
        ("cur_shard", "shard=Shard(rank, world_size)"),
        ("predicate", "filters="),
        ("verify_checksums", "read_options=ReadOptions(verify_checksums=<value>)"),
        ("logical_shards", "shard_options=ShardOptions(logical_shards=<value>)"),
        ("row_numbers", "output_options=OutputOptions(row_numbers=<value>)"),
        ("deadline_s", "remote=RemoteOptions(deadline_s=<value>)"),
        ("episodes", "EpisodeLoader(source, batch_size, episodes=Episodes(<column>))"),
        ("sampler", "DataLoader(ParquetRows(data), sampler=...)"),
        ("streaming", "leave it out"),
        ("suffle", "Did you mean 'shuffle'"),
        ("path", "There are: 'source', 'batch_size', 'schema', 'columns', 'filters',"),
    ],
)
def test_a_keyword_of_another_loader_names_the_equivalent(keyword: str, equivalent: str, path: str) -> None:
    given: dict[str, Any] = {keyword: 1}
    with pytest.raises(TypeError) as caught:
        BatchedDataLoader(path, 4, **given)
    assert f"BatchedDataLoader: there is no argument {keyword!r}" in str(caught.value)
    assert equivalent in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_pandas_refuses_an_unknown_keyword_before_it_writes(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="num_threads=<n>"):
        from_pandas(FRAME, 2, cache_dir=tmp_path / "frames", num_workers=2)
    assert not (tmp_path / "frames").exists()


@pytest.mark.parametrize("make", [lambda path, **k: write_dataset({}, path, **k), DatasetWriter])
def test_a_keyword_of_another_writer_names_the_equivalent(make: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"options=WriteOptions\(compression=<codec>\)"):
        make(tmp_path / "data", compression="zstd")
    assert not (tmp_path / "data").exists()


def test_the_equivalents_that_messages_name_exist() -> None:
    loader_names = set(inspect.signature(BatchedDataLoader).parameters)
    assert not loader_names & set(LOADER_KEYWORDS)
    for advice in LOADER_KEYWORDS.values():
        argument = re.match(r"(\w+)=", advice)
        assert argument is None or argument[1] in loader_names
    for advice in (*LOADER_KEYWORDS.values(), *WRITER_KEYWORDS.values()):
        for name in re.findall(r"=([A-Z]\w+)\(", advice):
            assert hasattr(parquet_loader, name)


def test_signatures_are_those_of_the_functions() -> None:
    assert list(inspect.signature(BatchedDataLoader).parameters)[:3] == ["source", "batch_size", "schema"]
    assert list(inspect.signature(write_dataset).parameters)[:3] == ["data", "path", "schema"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": lambda columns: columns}, "is called with (columns, rng), and too many positional arguments"),
        ({"schema": {"a": "int64"}}, "expected a Schema, such as Schema({'x': Scalar('float32')}), or S"),
        ({"schema": pa.schema([("a", pa.int64())])}, "Schema.from_arrow(...) of a pyarrow.Schema"),
        ({"shard": (0, 2)}, "expected a Shard, such as Shard(rank=0, world_size=2)"),
        (
            {"read_options": {"verify_checksums": True}},
            "a ReadOptions, such as ReadOptions(verify_checksums=True)",
        ),
        ({"device": "gpu"}, "device='gpu': expected 'cpu' or 'cuda'"),
    ],
)
def test_a_value_of_another_kind_shows_an_example(options: dict[str, Any], message: str, path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        BatchedDataLoader(path, 2, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_transform_without_a_signature_is_taken(path: str) -> None:
    with BatchedDataLoader(path, 10, transform=lambda *both: both[0]) as loader:
        assert len(first(loader)["a"]) == 10


class AnnotatedForTypeCheckers:
    """On Python 3.14, a function with annotations that are imported under ``TYPE_CHECKING`` is such a `transform`."""

    @property
    def __signature__(self) -> inspect.Signature:
        raise NameError("name 'NDArray' is not defined")

    def __call__(self, columns: dict[str, Any], rng: Any) -> dict[str, Any]:
        return columns


def test_annotations_of_a_transform_need_not_be_importable(path: str) -> None:
    with BatchedDataLoader(path, 10, transform=AnnotatedForTypeCheckers()) as loader:
        assert len(first(loader)["a"]) == 10


def test_swapped_arguments_of_a_writer_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        write_dataset(tmp_path / "data", FRAME)
    assert str(caught.value).startswith("path is a pandas.DataFrame; expected a str")
    assert "\n" not in str(caught.value)


def test_types_of_torch_name_types_of_fields() -> None:
    assert Schema({"x": Tensor(torch.float16, (2,)), "y": Scalar(torch.int32)}) == Schema(
        {"x": Tensor("float16", (2,)), "y": Scalar("int32")}
    )
    with pytest.raises(ConfigurationError, match="bfloat16"):
        Scalar(torch.bfloat16)


def test_other_kinds_given_to_loaders_of_loaders_are_refused(loader: BatchedDataLoader, path: str) -> None:
    with pytest.raises(ConfigurationError, match="expected two dicts"):
        MixedLoader([loader], [1])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"ParquetIterable\(BatchedDataLoader\(source, 64\)\)"):
        ParquetIterable(path)  # type: ignore[arg-type]


def test_a_loader_can_be_looked_at_attribute_by_attribute(loader: BatchedDataLoader) -> None:
    members = dict(inspect.getmembers(loader))
    assert members["batch_size"] == 4
    assert all(hasattr(loader, name) for name in dir(loader))


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 5), ("seed", 1), ("shuffle", True), ("drop_last", False), ("num_threads", 1)]
)
def test_an_attribute_that_the_order_depends_on_is_not_changed(tmp_path: Path, name: str, value: Any) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 2, num_threads=2) as loader:
        before = getattr(loader, name)
        with pytest.raises(ConfigurationError, match=rf"^{name}: cannot be set .* another loader with {name}={value}$"):
            setattr(loader, name, value)
        assert getattr(loader, name) == before
        loader.my_own = 1  # type: ignore[attr-defined]


def test_a_number_too_large_for_a_filter_is_named(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"filters=\[\('a', '<', 1180591620717411303424\)\]: .* 64 bits"):
        BatchedDataLoader(path, 2, filters=[("a", "<", 2**70)])


@pytest.mark.parametrize(
    "filters", [[("a", "=>", 1)], ("a", "=>", 1), [["a", "=>", 1]], [[("a", "<", 1)], [("a", "=>", 1)]]], ids=str
)
def test_an_unknown_operator_of_a_filter_is_named(path: str, filters: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no operator '=>'; the operators are '==', '=', '!=', '<'"):
        BatchedDataLoader(path, 2, filters=filters)


@pytest.mark.parametrize("operator", ["in", "not in"])
def test_a_word_is_not_a_list_of_the_values_of_a_filter(path: str, operator: str) -> None:
    term: Any = ["b", operator, "no"]
    for filters in (term, [term], [[("a", "<", 1)], [tuple(term)]]):
        with pytest.raises(ConfigurationError, match=rf"a list of values; write \('b', '{operator}', \['no'\]\)"):
            BatchedDataLoader(path, 2, filters=filters)


@pytest.mark.parametrize("operator", ["==", "!=", "<"])
def test_a_filter_does_not_compare_with_none(path: str, operator: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no row passes a comparison with None; pc.field\('a'\).is_null\(\)"):
        BatchedDataLoader(path, 2, filters=("a", operator, None))
    with pytest.raises(ConfigurationError, match=r"no row passes a comparison with None; pc.field\('a'\).is_null\(\)"):
        BatchedDataLoader(path, 2, filters=[["a", operator, None]])


@pytest.mark.parametrize("sequence", [list, UserList])
def test_filters_of_a_file_of_settings_select_the_same_rows(path: str, sequence: Callable[[Any], Any]) -> None:
    either: list[list[tuple[str, str, Any]]] = [[("a", "<", 2)], [("a", ">", 2), ("a", "in", (3, 4))]]
    read = sequence(
        [
            sequence([sequence([*term[:2], sequence(term[2]) if term[1] == "in" else term[2]]) for term in terms])
            for terms in either
        ]
    )
    with BatchedDataLoader(path, 10, filters=either) as given, BatchedDataLoader(path, 10, filters=read) as same:
        assert [batch["a"].tolist() for batch in given] == [batch["a"].tolist() for batch in same] == [[0, 1, 3, 4]]
        same.load_state_dict(given.state_dict())


def test_a_term_of_a_filter_takes_the_path_of_a_member(tmp_path: Path) -> None:
    structs = [{"x": n, "in": {"y": n % 3}} for n in range(6)]
    pq.write_table(pa.table({"a": range(6), "s": structs}), tmp_path / "a.parquet")
    of_x, of_y = (("s", "x"), ">", 2), (("s", "in", "y"), "in", [0, 1])
    for filters in ([[of_x, of_y]], [("a", ">=", 0), of_x, of_y], ((of_x, of_y),), [[list(of_x), list(of_y)]]):
        with BatchedDataLoader(tmp_path, 10, columns=["a"], filters=filters) as loader:
            assert [batch["a"].tolist() for batch in loader] == [[3, 4]]
    for member, operator, value, advice in (
        (("s", "x"), "==", None, r"pc.field\(\('s', 'x'\)\).is_null"),
        (("s", "in", "y"), "=>", 1, "there is no operator '=>'"),
    ):
        with pytest.raises(ConfigurationError, match=advice):
            BatchedDataLoader(tmp_path, 10, filters=[[(member, operator, value)]])


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_a_filter_takes_times_of_numpy(tmp_path: Path, unit: str) -> None:
    days = np.arange("2020-01-01", "2020-01-11", dtype="M8[D]")
    pq.write_table(pa.table({"day": days.astype("M8[us]")}), tmp_path / "a.parquet")
    for filters in (
        [("day", ">=", days.astype(f"M8[{unit}]")[7])],
        [[("day", ">", days.astype(f"M8[{unit}]")[6])]],
        [["day", ">=", days.astype(f"M8[{unit}]")[7]]],
    ):
        with BatchedDataLoader(tmp_path, 10, filters=filters) as loader:
            assert [len(batch["day"]) for batch in loader] == [3]
