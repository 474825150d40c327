"""Categories: filters take words, vocabularies of integers, files that other tools read, and files written earlier."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Subset

from parquet_loader import (
    BatchedDataLoader,
    Category,
    ConfigurationError,
    DataError,
    DatasetWriter,
    Group,
    MixedLoader,
    OutputOptions,
    ParquetDataset,
    ParquetIterable,
    ParquetRows,
    SampleStore,
    Scalar,
    Schema,
    SchemaError,
    Tensor,
    Text,
    rewrite_dataset,
    write_dataset,
)
from parquet_loader.schema import METADATA_KEY

NUMPY = OutputOptions(format="numpy")
CITIES = ("Paris", "Bergen", "Cork")
ROWS = ["Cork", "Paris", "Paris", "Bergen", "Cork", "Bergen"]
CODES = [2, 0, 0, 1, 2, 1]


def codes_of(path: Path, name: str = "city", **options: Any) -> list[Any]:
    with BatchedDataLoader(path, 4, output_options=NUMPY, **options) as loader:
        return [value for batch in loader for value in batch[name].tolist()]


def write(path: Path, field: Category, rows: list[Any]) -> None:
    schema = Schema({"city": field, "id": Scalar("int64")})
    write_dataset({"city": rows, "id": np.arange(len(rows))}, path, schema)


def file_of(path: Path) -> Path:
    return next(path.glob("*.parquet"))


# ---- storage -------------------------------------------------------------------------------------------------------


def test_other_tools_read_the_words(tmp_path: Path) -> None:
    duckdb, pd, pl = (pytest.importorskip(name) for name in ("duckdb", "pandas", "polars"))
    write(tmp_path / "d", Category(CITIES), ROWS)
    file = file_of(tmp_path / "d")
    assert pq.read_table(file)["city"].to_pylist() == ROWS
    assert pd.read_parquet(file)["city"].tolist() == ROWS
    assert pl.read_parquet(file)["city"].to_list() == ROWS
    with duckdb.connect() as connection:
        assert [row[0] for row in connection.execute(f"select city from '{file}' order by id").fetchall()] == ROWS
    chunk = pq.read_metadata(file).row_group(0).column(0)
    assert chunk.has_dictionary_page
    assert codes_of(tmp_path / "d") == CODES


def test_codes_are_stored_for_whoever_asks(tmp_path: Path) -> None:
    write(tmp_path / "d", Category(CITIES, storage="codes"), ROWS)
    assert pq.read_table(file_of(tmp_path / "d"))["city"].to_pylist() == CODES
    assert codes_of(tmp_path / "d") == CODES


def test_files_written_with_codes_load_as_before(tmp_path: Path) -> None:
    """Earlier versions wrote such footers, without the storage of the category."""
    field = {"name": "city", "kind": "Category", "vocabulary": list(CITIES), "dtype": "int64"}
    carried = json.dumps({"version": 1, "fields": [field]}, separators=(",", ":"))
    table = pa.table({"city": pa.array(CODES, pa.int8())}).replace_schema_metadata({METADATA_KEY: carried})
    pq.write_table(table, tmp_path / "a.parquet")
    assert codes_of(tmp_path) == CODES
    assert codes_of(tmp_path, schema=Schema({"city": Category(CITIES)})) == CODES


def test_codes_are_read_by_the_words_they_stand_for(tmp_path: Path) -> None:
    write(tmp_path / "a", Category(CITIES, storage="codes"), ROWS)
    write(tmp_path / "b", Category(("Cork", "Oslo"), storage="codes"), ["Oslo", "Cork"])
    both = Schema({"city": Category(("Oslo", *CITIES))})
    assert codes_of(tmp_path, schema=both) == [3, 1, 1, 2, 3, 2, 0, 3]


@pytest.mark.parametrize(
    "field", [Scalar("int64"), Scalar("float32"), Group({"city": Scalar("int64")}), Scalar("int64", aliases=["city"])]
)
def test_codes_of_several_vocabularies_are_not_read_as_numbers(tmp_path: Path, field: Any) -> None:
    write(tmp_path / "a", Category(CITIES, storage="codes"), ROWS)
    write(tmp_path / "b", Category(CITIES, storage="codes"), ROWS)
    schema = Schema({"new" if field.aliases or isinstance(field, Group) else "city": field})
    name = next(iter(schema))
    assert np.ravel(codes_of(tmp_path, name, schema=schema)).tolist() == [*CODES, *CODES]
    write(tmp_path / "c", Category(CITIES[::-1], storage="codes"), ROWS)
    with pytest.raises(SchemaError, match=r"^column .*/a/.* and .*/c/.* different vocabularies.* Category"):
        BatchedDataLoader(tmp_path, 4, schema=schema)


def test_codes_and_words_are_not_read_as_the_same_integers(tmp_path: Path) -> None:
    write(tmp_path / "a", Category([10, 20], storage="codes"), [10, 20])
    write(tmp_path / "b", Category([10, 20]), [10, 20])
    with pytest.raises(SchemaError, match="codes of different vocabularies"):
        BatchedDataLoader(tmp_path, 4, schema=Schema({"city": Scalar("int64")}))
    assert codes_of(tmp_path, schema=Schema({"city": Category([10, 20])})) == [0, 1, 0, 1]


def test_packed_codes_of_several_vocabularies_are_not_read_as_a_tensor(tmp_path: Path) -> None:
    for folder, words in (("a", CITIES), ("b", CITIES[::-1])):
        packed = Schema({"g": Group(["x", "y"], Category(words), storage="packed")})
        write_dataset({"x": ROWS, "y": ROWS}, tmp_path / folder, packed)
    schema = Schema({"g": Tensor("int64", [2])})
    assert codes_of(tmp_path / "a", "g", schema=schema) == [[code, code] for code in CODES]
    with pytest.raises(SchemaError, match=r"column .g.: .* codes of different vocabularies"):
        BatchedDataLoader(tmp_path, 4, schema=schema)


def test_other_vocabularies_of_packed_codes_are_refused(tmp_path: Path) -> None:
    packed = Schema({"g": Group({"a": Category(CITIES), "b": Category(CITIES)}, storage="packed")})
    write_dataset({"a": ROWS, "b": ROWS}, tmp_path, packed)
    other = Category(CITIES[::-1])
    with pytest.raises(SchemaError, match="holds codes of member 'a' in another vocabulary"):
        BatchedDataLoader(tmp_path, 4, schema=Schema({"g": Group({"a": other, "b": other}, storage="packed")}))


def test_codes_of_members_and_of_integers_are_written_by_their_words(tmp_path: Path) -> None:
    group = Schema({"g": Group(["a"], Category(CITIES, storage="codes")), "n": Category([2, 1, 0], storage="codes")})
    write_dataset({"a": ROWS, "n": CODES}, tmp_path / "codes", group)
    table = pq.read_table(tmp_path / "codes")
    assert table["n"].to_pylist() != CODES
    other = Schema({"g": Group(["a"], Category(CITIES[::-1])), "n": Category([0, 1, 2])})
    write_dataset(table, tmp_path / "other", other)
    assert codes_of(tmp_path / "other", "g") == [[2 - code] for code in CODES]
    assert codes_of(tmp_path / "other", "n") == CODES


def test_vocabularies_that_differ_between_files_are_refused_without_a_schema(tmp_path: Path) -> None:
    write(tmp_path / "a", Category(CITIES), ROWS)
    write(tmp_path / "b", Category(("Cork", "Oslo")), ["Oslo"])
    with pytest.raises(
        SchemaError, match=r"column 'city' differs: .*Category\(\('Paris', .*Category\(\('Cork', 'Oslo'\)\)"
    ):
        BatchedDataLoader(tmp_path, 4)


# ---- integers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["words", "codes"])
def test_integers_are_a_vocabulary(tmp_path: Path, storage: Any) -> None:
    field = Category([30, 10, 20], storage=storage, unknown=10, null="mask")
    write(tmp_path / "d", field, [10, 20, None, 99, 30])
    assert codes_of(tmp_path / "d") == [1, 2, 0, 1, 0]
    assert codes_of(tmp_path / "d", "city_valid") == [True, True, False, True, True]
    stored = pq.read_table(file_of(tmp_path / "d"))["city"].to_pylist()
    assert stored == ([10, 20, None, 10, 30] if storage == "words" else [1, 2, None, 1, 0])


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint64(), pa.int64()], ids=str)
def test_integers_of_other_programs_are_words(tmp_path: Path, type_: pa.DataType) -> None:
    pq.write_table(pa.table({"city": pa.array([20, 10, 30], type_)}), tmp_path / "a.parquet")
    assert codes_of(tmp_path, schema=Schema({"city": Category([-1, 10, 20, 30])})) == [2, 1, 3]


def test_an_integer_that_is_not_in_the_vocabulary_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"city": pa.array([20, 11])}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, column 'city', row 1: holds 11, which is not among"):
        codes_of(tmp_path, schema=Schema({"city": Category([10, 20])}))


@pytest.mark.parametrize("vocabulary", [[], [1, "a"], [1.5], [True], "abc", [2**63], [1, 1]])
def test_other_vocabularies_are_refused(vocabulary: Any) -> None:
    with pytest.raises(ConfigurationError, match="vocabulary"):
        Category(vocabulary)


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_has_no_order_for_codes(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the vocabulary is a set, which has no order.*pass sorted"):
        Category(kind(["Bergen", "Cork"]))
    with pytest.raises(ConfigurationError, match=r"names is a set, which has no order"):
        Scalar("int64", names=kind(["Bergen", "Cork"]))
    assert Category({"Bergen": 1, "Cork": 2}).code("Cork") == 1  # type: ignore[arg-type]


# ---- filters -------------------------------------------------------------------------------------------------------

CITY = pc.field("city")
FILTERS = [
    (CITY == "Paris", [0, 0]),
    (CITY != "Paris", [2, 1, 2, 1]),
    (CITY.isin(["Paris", "Cork", "Rome"]), [2, 0, 0, 2]),
    ((CITY == "Bergen") & (pc.field("id") > 3), [1]),
    (~(CITY == "Cork"), [0, 0, 1, 1]),
    ([("city", "==", "Paris")], [0, 0]),
    ([("city", "in", ["Bergen"]), ("id", "<", 4)], [1]),
    ([[("city", "=", "Bergen")], [("id", "==", 0)]], [2, 1, 1]),
    (("city", "!=", "Cork"), [0, 0, 1, 1]),
]


@pytest.mark.parametrize("storage", ["words", "codes"])
@pytest.mark.parametrize(("filters", "expected"), FILTERS, ids=[str(f) for f, _ in FILTERS])
def test_filters_take_words(tmp_path: Path, storage: Any, filters: Any, expected: list[int]) -> None:
    write(tmp_path / "d", Category(CITIES, storage=storage), ROWS)
    assert codes_of(tmp_path / "d", filters=filters) == expected


@pytest.mark.parametrize("storage", ["words", "codes"])
def test_filters_take_integers_of_the_vocabulary(tmp_path: Path, storage: Any) -> None:
    write(tmp_path / "d", Category([30, 10, 20], storage=storage), [10, 20, 30, 20])
    assert codes_of(tmp_path / "d", filters=CITY == 20) == [2, 2]
    assert codes_of(tmp_path / "d", filters=CITY < 30) == [1, 2, 2]


def test_files_of_codes_and_of_words_are_filtered_together(tmp_path: Path) -> None:
    write(tmp_path / "a", Category(CITIES, storage="codes"), ROWS)
    write(tmp_path / "b", Category(CITIES), ROWS)
    schema = Schema({"city": Category(CITIES)})
    assert codes_of(tmp_path, schema=schema, filters=CITY == "Bergen") == [1, 1, 1, 1]


def test_words_that_look_like_codes_are_words(tmp_path: Path) -> None:
    write(tmp_path / "d", Category(("2", "1", "0"), storage="codes"), ["0", "1", "2"])
    assert codes_of(tmp_path / "d", filters=CITY == "2") == [0]


def test_row_groups_are_not_ruled_out_by_the_statistics_of_codes(tmp_path: Path) -> None:
    write(tmp_path / "d", Category(CITIES, storage="codes"), ["Cork"] * 5)
    assert codes_of(tmp_path / "d", filters=CITY == "Cork") == [2] * 5


@pytest.mark.parametrize("storage", ["words", "codes"])
@pytest.mark.parametrize("filters", [CITY < "Paris", CITY >= "Paris", pc.scalar("Paris") > CITY], ids=str)
def test_words_are_not_compared_by_order(tmp_path: Path, storage: Any, filters: pc.Expression) -> None:
    write(tmp_path / "d", Category(CITIES, storage=storage), ROWS)
    with pytest.raises(SchemaError, match="the words of the Category 'city' have no order"):
        codes_of(tmp_path / "d", filters=filters)


def test_a_word_that_is_not_in_the_vocabulary_is_refused_in_a_filter(tmp_path: Path) -> None:
    write(tmp_path / "d", Category(CITIES), ROWS)
    with pytest.raises(SchemaError, match=r"'Pariss', which is not among the 3 words.* Did you mean 'Paris'"):
        codes_of(tmp_path / "d", filters=CITY == "Pariss")


def test_a_word_outside_the_vocabulary_may_be_filtered_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"city": [*ROWS, "N/A"]}), tmp_path / "a.parquet")
    schema = Schema({"city": Category(CITIES)})
    assert codes_of(tmp_path, schema=schema, filters=CITY != "N/A") == CODES
    unknown = Schema({"city": Category(CITIES, unknown="Cork")})
    assert codes_of(tmp_path, schema=unknown, filters=CITY == "N/A") == [2]


def test_words_are_not_compared_with_numbers(tmp_path: Path) -> None:
    write(tmp_path / "d", Category(CITIES), ROWS)
    with pytest.raises(SchemaError, match=r"of these types: .*; compare each column with values of its own type"):
        codes_of(tmp_path / "d", filters=CITY == 1)


# ---- dictionaries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int16(), pa.string())], ids=str)
@pytest.mark.parametrize("rows_of_a_group", [3, 100])
def test_words_of_other_programs_become_codes(
    tmp_path: Path, dictionary: bool, type_: pa.DataType, rows_of_a_group: int
) -> None:
    rows = [*ROWS, None, "Paris"] * 5
    table = pa.table({"city": pa.array(rows).dictionary_encode().cast(type_)})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=dictionary, row_group_size=rows_of_a_group)
    schema = Schema({"city": Category(CITIES, null="mask", fill="Bergen")})
    assert codes_of(tmp_path, schema=schema) == [*CODES, 1, 0] * 5
    assert codes_of(tmp_path, "city_valid", schema=schema) == [row is not None for row in rows]


@pytest.mark.parametrize("limit", ["1GiB", "6MiB"])
def test_a_dictionary_that_gives_way_to_plain_pages_is_read_on(tmp_path: Path, limit: str) -> None:
    words = [f"word-{number:05d}" for number in range(2000)]
    positions = np.random.default_rng(0).integers(0, len(words), 50_000)
    table = pa.table({"city": pa.array(words).take(pa.array(positions)), "id": positions})
    pq.write_table(table, tmp_path / "a.parquet", dictionary_pagesize_limit=4096, data_page_size=4096)
    schema = Schema({"city": Category(words), "id": Scalar("int64")})
    with BatchedDataLoader(tmp_path, 500, schema=schema, shuffle=True, memory_limit=limit) as loader:
        assert all((batch["city"] == batch["id"]).all() for batch in loader)


def test_words_of_a_dictionary_that_no_row_uses_do_not_matter(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([1, 1], pa.int8()), pa.array(["Rome", "Cork"]))
    pq.write_table(pa.table({"city": words}), tmp_path / "a.parquet")
    assert codes_of(tmp_path, schema=Schema({"city": Category(CITIES)})) == [2, 2]


def test_a_word_that_is_not_in_the_vocabulary_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"city": [*ROWS, "Rome"]}), tmp_path / "a.parquet", row_group_size=5)
    with pytest.raises(DataError, match=r"a\.parquet, row group 1, column 'city', row 1: holds 'Rome', which is not"):
        codes_of(tmp_path, schema=Schema({"city": Category(CITIES)}))


# ---- the ways of writing -------------------------------------------------------------------------------------------


def test_rewriting_keeps_words_as_words(tmp_path: Path) -> None:
    write(tmp_path / "d", Category(CITIES), ROWS)
    rewrite_dataset(tmp_path / "d", tmp_path / "new", shuffle=False)
    assert pq.read_table(file_of(tmp_path / "new"))["city"].to_pylist() == ROWS
    assert codes_of(tmp_path / "new") == CODES


def test_rewriting_codes_under_another_vocabulary_keeps_the_words(tmp_path: Path) -> None:
    write(tmp_path / "d", Category(CITIES, storage="codes"), ROWS)
    schema = Schema({"city": Category(CITIES[::-1], storage="codes")})
    rewrite_dataset(tmp_path / "d", tmp_path / "new", schema=schema, shuffle=False)
    assert codes_of(tmp_path / "new") == [2 - code for code in CODES]


def test_a_store_holds_words(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s", schema=Schema({"city": Category(CITIES)}), max_bytes="1GB")
    with store.writer() as writer:
        writer.write({"city": ROWS})
    file = next((tmp_path / "s").rglob("*.parquet"))
    assert pq.read_table(file)["city"].to_pylist() == ROWS
    with BatchedDataLoader(store, 10, output_options=NUMPY) as loader:
        assert [batch["city"].tolist() for batch in loader] == [CODES]


def test_delivered_batches_are_written_again(tmp_path: Path) -> None:
    schema = Schema({"city": Category(CITIES)})
    with DatasetWriter(tmp_path / "d", schema) as writer:
        writer.write({"city": np.array(CODES)})
    assert pq.read_table(file_of(tmp_path / "d"))["city"].to_pylist() == ROWS


def test_a_group_given_as_a_matrix_holds_codes(tmp_path: Path) -> None:
    member = Category([30, 10, 20])
    write_dataset({"g": np.array([[0, 1], [2, 0]])}, tmp_path / "d", Schema({"g": Group(["a", "b"], member)}))
    assert pq.read_table(file_of(tmp_path / "d")).to_pydict() == {"a": [30, 20], "b": [10, 30]}
    assert codes_of(tmp_path / "d", "g") == [[0, 1], [2, 0]]


def test_jobs_of_dask_write_words(tmp_path: Path) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    from parquet_loader.write.dask import write_dask

    frame = dd.from_pandas(pd.DataFrame({"city": pd.Categorical(ROWS)}), npartitions=2)
    write_dask(frame, tmp_path / "d", Schema({"city": Category(CITIES)}), scheduler="synchronous")
    words = [w for file in sorted((tmp_path / "d").rglob("*.parquet")) for w in pq.read_table(file)["city"].to_pylist()]
    assert sorted(words) == sorted(ROWS)


# ---- adding rows to what earlier versions wrote ---------------------------------------------------------------------


@pytest.mark.parametrize("there", ["codes", "words"])
def test_rows_are_added_as_the_files_there_store_them(tmp_path: Path, there: Any) -> None:
    from parquet_loader.write.dask import write_dask

    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    write_dataset({"city": ROWS}, tmp_path / "d", Schema({"city": Category(CITIES, storage=there)}))
    schema = Schema({"city": Category(CITIES)})
    write_dataset({"city": ROWS}, tmp_path / "d", schema, mode="append")
    frame = dd.from_pandas(pd.DataFrame({"city": ROWS}), npartitions=1)
    write_dask(frame, tmp_path / "d", schema, mode="append", scheduler="synchronous")
    kinds = {pq.read_schema(file).field("city").type for file in (tmp_path / "d").rglob("*.parquet")}
    assert kinds == {pa.int8() if there == "codes" else pa.string()}
    assert sorted(codes_of(tmp_path / "d")) == sorted(CODES * 3)


def test_a_store_of_codes_is_opened_again_by_the_same_script(tmp_path: Path) -> None:
    SampleStore(tmp_path / "s", schema=Schema({"city": Category(CITIES, storage="codes")}), max_bytes="1GB")
    store = SampleStore(tmp_path / "s", schema=Schema({"city": Category(CITIES)}, extra="drop"))
    with store.writer() as writer:
        writer.write({"city": ROWS, "junk": ROWS})
    with BatchedDataLoader(store, 10, output_options=NUMPY) as loader:
        assert [batch["city"].tolist() for batch in loader] == [CODES]


# ---- directories ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["1"], ["1", "a"], ["01", "1", "a"]])
def test_directories_are_words_whichever_others_there_are(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / "d" / f"city={name}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [0]}), tmp_path / "d" / f"city={name}" / "a.parquet")
    words = Category(["1", "a", "01"])
    schema = Schema({"city": words})
    assert codes_of(tmp_path / "d", schema=schema) == [words.code(name) for name in names]
    assert codes_of(tmp_path / "d", schema=schema, filters=pc.field("city") == "1") == [0]
    rewrite_dataset(tmp_path / "d", tmp_path / "new", schema=schema)
    assert codes_of(tmp_path / "new") == [words.code(name) for name in names]


@pytest.mark.parametrize(("name", "field"), [("zip", Text()), ("code", Text(aliases=["zip"]))])
def test_text_reads_integers_of_directories_as_they_are_written(tmp_path: Path, name: str, field: Text) -> None:
    for number, folder in enumerate(("zip=01234", "zip=10001")):
        (tmp_path / "d" / folder).mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), tmp_path / "d" / folder / "a.parquet")
    schema = Schema({name: field}, extra="infer")
    with BatchedDataLoader(tmp_path / "d", 2, schema=schema) as loader:
        assert next(iter(loader))[name].to_list() == ["01234", "10001"]
    with BatchedDataLoader(tmp_path / "d", 2, schema=schema, filters=pc.field(name) == "01234") as loader:
        assert next(iter(loader))["id"].tolist() == [0]
    rewrite_dataset(tmp_path / "d", tmp_path / "new", schema=schema)
    with BatchedDataLoader(tmp_path / "new", 2) as loader:
        assert next(iter(loader))[name].to_list() == ["01234", "10001"]


def test_integers_of_directories_are_codes_of_words_that_are_none(tmp_path: Path) -> None:
    pq.write_to_dataset(pa.table({"id": CODES, "city": CODES}), tmp_path / "d", partition_cols=["city"])
    assert codes_of(tmp_path / "d", schema=Schema({"city": Category(CITIES)})) == sorted(CODES)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data.batches(2),
        lambda data: MixedLoader({"a": data.batches(2)}, {"a": 1}),
        lambda data: ParquetIterable(data.batches(2)),
        lambda data: DataLoader(ParquetIterable(data.batches(2)), batch_size=None),
        lambda data: DataLoader(ParquetRows(data), batch_size=2),
        lambda data: DataLoader(ParquetRows(data), batch_size=None),
        lambda data: DataLoader(ParquetRows(data), sampler=BatchSampler(range(4), 2, False), batch_size=None),
        lambda data: DataLoader(Subset(ParquetRows(data), range(4)), batch_size=2),
        lambda data: DataLoader(ConcatDataset([ParquetRows(data)]), batch_size=2),
    ],
    ids=[
        *("loader", "MixedLoader", "ParquetIterable", "DataLoader", "ParquetRows", "single rows", "batches"),
        *("Subset", "ConcatDataset"),
    ],
)
def test_codes_of_a_loader_are_written_as_its_words(make: Callable[[Any], Any], tmp_path: Path) -> None:
    rows = {"city": ["a", "b", "c", "a"], "size": [30, 10, 20, 30]}
    write_dataset(rows, tmp_path / "first", Schema({"city": Text(), "size": Scalar("int64")}))
    own = Schema({"city": Category(["a", "b", "c"]), "size": Category([10, 20, 30])})
    other = Schema({"city": Category(["c", "b", "a"]), "size": Category([20, 30, 10])})
    write_dataset(make(ParquetDataset(tmp_path / "first", own)), tmp_path / "second", other)
    assert pq.read_table(tmp_path / "second").to_pydict() == rows


def test_parts_with_codes_of_different_vocabularies_are_refused(tmp_path: Path) -> None:
    write_dataset({"city": ["a", "b"]}, tmp_path / "first", Schema({"city": Category(["a", "b"])}))
    loaders = {
        str(number): BatchedDataLoader(tmp_path / "first", 2, schema=Schema({"city": Category(words)}))
        for number, words in enumerate((["a", "b"], ["b", "a"]))
    }
    mixed = MixedLoader(loaders, {"0": 1, "1": 1})
    with pytest.raises(SchemaError, match=r"the parts of MixedLoader have codes of 'city' by different vocabularies"):
        write_dataset(mixed, tmp_path / "second", Schema({"city": Category(["a", "b"])}))


def test_codes_of_a_loader_are_as_the_schema_says_after_a_transform(tmp_path: Path) -> None:
    def reversed_codes(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"city": 1 - columns["city"]}

    write_dataset({"city": ["a", "b"]}, tmp_path / "first", Schema({"city": Category(["a", "b"])}))
    with BatchedDataLoader(tmp_path / "first", 2, transform=reversed_codes) as loader:
        write_dataset(loader, tmp_path / "second", Schema({"city": Category(["b", "a"])}))
    assert pq.read_table(tmp_path / "second").to_pydict() == {"city": ["a", "b"]}


def test_the_matrix_of_a_group_with_codes_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    def group(words: list[str]) -> Schema:
        return Schema({"both": Group({"x": Scalar("int64"), "city": Category(words)})})

    write_dataset({"x": [1, 2], "city": ["a", "b"]}, tmp_path / "first", group(["a", "b"]))
    with BatchedDataLoader(tmp_path / "first", 2) as loader:
        write_dataset(loader, tmp_path / "second", group(["a", "b"]))
        with pytest.raises(SchemaError, match=r"field 'both': the matrix has codes of 'city' by another vocabulary"):
            write_dataset(loader, tmp_path / "third", group(["b", "a"]))
    assert pq.read_table(tmp_path / "second").to_pydict() == {"x": [1, 2], "city": ["a", "b"]}
