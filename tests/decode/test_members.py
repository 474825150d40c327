"""Members of structs are decoded to the window like columns, null where a struct around them is."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    Category,
    DataError,
    Group,
    OutputOptions,
    ParquetDataset,
    Ragged,
    RaggedList,
    ReadOptions,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tests.dataset.test_opening_reads_footers import LoggedFiles, read_of_columns
from tests.source.tables.made_tables import deleting, table
from tests.support.examples import examples
from tests.support.footers import BINARY, ThriftStruct, metadata_of, rewrite_footer

WORDS = ["a", "bb", "", "ccc"]


def member(name: str, rows: int, seed: int) -> pa.Array:
    rng = np.random.default_rng(seed)
    few = rng.integers(0, 4, rows)
    return {
        "number": pa.array(few, pa.int32()),
        "real": pa.array(rng.random(rows)),
        "flag": pa.array(few == 1),
        "text": pa.array([WORDS[n] for n in few]),
        "money": pa.array(few).cast(pa.decimal128(38, 2)),
        "moment": pa.array(few, pa.timestamp("us")),
    }[name]


FIELDS: dict[str, Any] = {
    "number": Scalar("float32", null="mask", fill=-1),
    "real": Scalar("float64", null="mask", fill=-1.5),
    "flag": Scalar("bool", null="mask"),
    "text": Text(null="mask", fill="-"),
    "money": Scalar("float64", null="mask", fill=7.0),
    "moment": Scalar("timestamp[us]", null="mask"),
}
FILLS = {"number": -1, "real": -1.5, "flag": False, "text": "-", "money": 7.0, "moment": 0}


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(1, 700),
    names=st.sets(st.sampled_from(list(FIELDS)), min_size=1),
    asked=st.randoms(use_true_random=False),
    shares=st.tuples(*[st.sampled_from([0, 0.1, 0.9, 1])] * 3),
    nullable=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    version=st.sampled_from(["1.0", "2.0"]),
    coded=st.booleans(),
    statistics=st.booleans(),
    depth=st.integers(1, 4),
)
def test_members_are_those_that_arrow_flattens(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    names: set[str],
    asked: Any,
    shares: tuple[float, ...],
    nullable: tuple[bool, ...],
    version: str,
    coded: bool,
    statistics: bool,
    depth: int,
) -> None:
    rng = np.random.default_rng(rows)

    def mask(level: int) -> Any:
        return pa.array(rng.random(rows) < shares[level % 3]) if nullable[level % 3] else None

    def of(array: pa.Array, level: int) -> pa.Array:
        is_null = mask(level)
        return array if is_null is None else pc.if_else(is_null, pa.scalar(None, array.type), array)

    fields, arrays = [], []
    for number, name in enumerate(sorted(names)):
        arrays.append(of(member(name, rows, number), 0))
        fields.append(pa.field(name, arrays[-1].type, nullable=nullable[0]))
    for level in range(1, depth + 1):
        array = pa.StructArray.from_arrays(arrays, fields=fields, mask=mask(level))
        arrays, fields = [array], [pa.field("s", array.type, nullable=nullable[level % 3])]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    path = tmp_path_factory.mktemp("members") / "a.parquet"
    pq.write_table(
        table,
        path,
        data_page_version=version,
        use_dictionary=coded,
        write_statistics=statistics,
        data_page_size=300,
        write_batch_size=40,
        row_group_size=400,
    )
    flat = table
    while any(pa.types.is_struct(type_) for type_ in flat.schema.types):
        flat = flat.flatten()
    prefix = "s." * depth
    some = sorted(names)[: asked.randint(1, len(names))]
    schema = Schema({prefix + name: FIELDS[name] for name in some})
    with BatchedDataLoader(path, 64, schema=schema, output_options=OutputOptions(format="numpy")) as loader:
        batches = [dict(batch) for batch in loader]
    for name in some:
        parts = [batch[prefix + name] for batch in batches]
        found = [row for part in parts for row in (part.to_list() if isinstance(part, Ragged) else part.tolist())]
        column = flat[prefix + name]
        column = column.cast(pa.int64()) if name == "moment" else column
        column = column.cast(pa.float64()) if name == "money" else column
        assert found == [FILLS[name] if value is None else value for value in column.to_pylist()]
        valid = np.concatenate([batch[f"{prefix}{name}_valid"] for batch in batches])
        assert valid.tolist() == column.is_valid().to_pylist()


LISTS: dict[str, tuple[Any, Any]] = {
    "floats": (pa.list_(pa.float32()), RaggedList(Scalar("float32", fill=-1), fill=())),
    "large": (pa.large_list(pa.int64()), RaggedList(Scalar("int64", fill=-2), fill=())),
    "converted": (pa.list_(pa.int16()), RaggedList(Scalar("float32", fill=-3), fill=())),
    "required": (pa.list_(pa.field("item", pa.int32(), nullable=False)), RaggedList(Scalar("int32"), fill=())),
    "refused": (pa.list_(pa.float64()), RaggedList(Scalar("float64"))),
    "rows": (pa.list_(pa.int32()), Tensor("int32", (3,), storage="list")),
    "fixed": (pa.list_(pa.float32(), 3), Tensor("float32", (3,), storage="list")),
}


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(1, 500),
    names=st.sets(st.sampled_from(list(LISTS)), min_size=1),
    shares=st.tuples(*[st.sampled_from([0, 0, 0.1, 0.9])] * 3),
    nullable=st.tuples(*[st.booleans()] * 3),
    version=st.sampled_from(["1.0", "2.0"]),
    coded=st.booleans(),
    depth=st.integers(1, 6),
    shuffle=st.booleans(),
)
def test_lists_in_structs_are_those_that_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    names: set[str],
    shares: tuple[float, ...],
    nullable: tuple[bool, ...],
    version: str,
    coded: bool,
    depth: int,
    shuffle: bool,
) -> None:
    rng = np.random.default_rng(rows)
    lists_null, elements_null, structs_null = shares

    def row(name: str) -> Any:
        if nullable[0] and rng.random() < lists_null:
            return None
        count = 3 if name in ("rows", "fixed") else int(rng.integers(0, 5))
        may_be_null = name != "required"
        return [None if may_be_null and rng.random() < elements_null / 4 else int(n) for n in rng.integers(0, 9, count)]

    arrays = [pa.array([row(name) for _ in range(rows)], LISTS[name][0]) for name in sorted(names)]
    fields = [
        pa.field(name, array.type, nullable=nullable[0]) for name, array in zip(sorted(names), arrays, strict=True)
    ]
    for level in range(depth):
        mask = pa.array(rng.random(rows) < structs_null / 2) if nullable[1 + level % 2] else None
        array = pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)
        arrays, fields = [array], [pa.field("s", array.type, nullable=nullable[1 + level % 2])]
    path = tmp_path_factory.mktemp("lists") / "a.parquet"
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=pa.schema(fields)),
        path,
        data_page_version=version,
        use_dictionary=coded,
        data_page_size=300,
        write_batch_size=40,
        row_group_size=300,
    )
    prefix = "s." * depth
    schema = Schema({prefix + name: LISTS[name][1] for name in sorted(names)})
    ways = [delivered(path, schema, ReadOptions(verify_checksums=arrow), shuffle=shuffle) for arrow in (False, True)]
    assert ways[0] == ways[1]


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(1, 300),
    nullable=st.tuples(*[st.booleans()] * 4),
    share=st.sampled_from([0, 0.1, 0.6]),
    version=st.sampled_from(["1.0", "2.0"]),
    coded=st.booleans(),
    is_large=st.booleans(),
    is_member=st.booleans(),
    shuffle=st.booleans(),
)
def test_members_of_lists_of_structs_are_those_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    nullable: tuple[bool, ...],
    share: float,
    version: str,
    coded: bool,
    is_large: bool,
    is_member: bool,
    shuffle: bool,
) -> None:
    rng = np.random.default_rng(rows)
    of_list, of_struct, of_inner, of_number = nullable

    def some(value: Any, *, may_be_null: bool) -> Any:
        return None if may_be_null and rng.random() < share else value

    def number() -> Any:
        return some(int(rng.integers(0, 9)), may_be_null=of_number)

    inner = pa.struct([pa.field("y", pa.int32(), nullable=of_number)])
    members = [
        pa.field("x", pa.int64(), nullable=of_number),
        pa.field("in", inner, nullable=of_inner),
        pa.field("text", pa.string()),
        pa.field("list", pa.list_(pa.int32())),
    ]
    element = pa.field("element", pa.struct(members), nullable=of_struct)
    field = pa.field("m", pa.large_list(element) if is_large else pa.list_(element), nullable=of_list)

    def struct() -> dict[str, Any]:
        y = some({"y": number()}, may_be_null=of_inner)
        return {"x": number(), "in": y, "text": "ab"[: rng.integers(0, 3)], "list": [1, 2][: rng.integers(0, 3)]}

    lists = [
        some([some(struct(), may_be_null=of_struct) for _ in range(rng.integers(0, 4))], may_be_null=of_list)
        for _ in range(rows)
    ]
    column = pa.chunked_array([lists], field.type)
    if is_member:
        column = pa.chunked_array([pa.StructArray.from_arrays([chunk], fields=[field]) for chunk in column.chunks])
        field = pa.field("s", column.type)
    path = tmp_path_factory.mktemp("members") / "a.parquet"
    pq.write_table(
        pa.Table.from_arrays([column, pa.array(range(rows))], schema=pa.schema([field, pa.field("n", pa.int64())])),
        path,
        data_page_version=version,
        use_dictionary=coded,
        data_page_size=200,
        write_batch_size=20,
        row_group_size=200,
    )
    head = "s.m" if is_member else "m"
    schema = Schema(
        {
            "n": Scalar("int64"),
            f"{head}.in.y": RaggedList(Scalar("int32", fill=-1), fill=()),
            f"{head}.text": RaggedList(Text(fill="-"), fill=()),
            f"{head}.x": RaggedList(Scalar("float64", fill=-2), fill=()),
            f"{head}.list": RaggedList(RaggedList("int32", fill=()), fill=()),
        }
    )

    def expected(row: Any, *, member: Any, fill: Any) -> list[Any]:
        values = [None if one is None else member(one) for one in row or []]
        return [fill if value is None else value for value in values]

    wanted = {
        f"{head}.in.y": [expected(row, member=lambda one: (one["in"] or {"y": None})["y"], fill=-1) for row in lists],
        f"{head}.text": [expected(row, member=lambda one: one["text"], fill="-") for row in lists],
        f"{head}.x": [expected(row, member=lambda one: one["x"], fill=-2) for row in lists],
        f"{head}.list": [expected(row, member=lambda one: one["list"], fill=[]) for row in lists],
    }
    for names in (list(wanted), [f"{head}.x"], [f"{head}.text", f"{head}.in.y"]):
        for arrow in (False, True):
            options = ReadOptions(verify_checksums=arrow)
            found = delivered(path, schema.select(["n", *names]), options, shuffle=shuffle)
            for name in names:
                assert [plain(found[name][place]) for place in np.argsort(found["n"])] == wanted[name]


def plain(row: Any) -> Any:
    """Return a row as lists."""
    row = row.tolist() if isinstance(row, np.ndarray) else row
    return [plain(one) for one in row] if isinstance(row, list) else row


def delivered(path: Path, schema: Schema, read_options: ReadOptions, *, shuffle: bool) -> Any:
    """The rows of each column, or the error instead of them."""
    options = OutputOptions(format="numpy")
    with BatchedDataLoader(
        path, 64, schema=schema, shuffle=shuffle, read_options=read_options, output_options=options, num_threads=1
    ) as loader:
        try:
            batches = [dict(batch) for batch in loader]
        except DataError as error:
            return re.sub("column '.*", "", str(error), flags=re.DOTALL)  # the column that is named may differ
    return {name: [row for batch in batches for row in rows_of(batch[name])] for name in schema}


def rows_of(column: Any) -> list[Any]:
    rows: list[Any] = column.to_list() if isinstance(column, Ragged) else column.tolist()
    return [row.tolist() if isinstance(row, np.ndarray) else row for row in rows]


def test_groups_and_categories_of_members_and_a_null_that_is_refused(tmp_path: Path) -> None:
    rows = [{"x": n / 2, "y": n, "word": "ab"[n % 2]} for n in range(1000)]
    structs: list[Any] = [*rows, None]
    pq.write_table(pa.table({"s": structs, "n": range(1001)}), tmp_path / "a.parquet")
    group = Group({"s.x": Scalar("float32"), "s.y": Scalar("float32")})
    options: dict[str, Any] = {"filters": [("n", "<", 1000)], "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(
        tmp_path, 100, schema=Schema({"g": group, "s.word": Category(["b", "a"])}), **options
    ) as loader:
        batches = [dict(batch) for batch in loader]
    xy = np.concatenate([batch["g"] for batch in batches])
    np.testing.assert_array_equal(xy, [[n / 2, n] for n in range(1000)])
    assert np.concatenate([batch["s.word"] for batch in batches]).tolist() == [1, 0] * 500
    refused = pytest.raises(DataError, match=r"column 's\.x', row 1000: is null")
    with BatchedDataLoader(tmp_path, 100, schema=Schema({"s.x": Scalar("float64")})) as loader, refused:
        list(loader)


def test_a_column_with_a_dot_in_its_name_beside_a_struct_of_that_name(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1, 2], "a": [{"c": 3}, {"c": 4}]})
    pq.write_table(table, tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 2, output_options=OutputOptions(format="numpy")) as loader:
        (batch,) = loader
    assert {name: array.tolist() for name, array in batch.items()} == {"a.b": [1, 2], "a.c": [3, 4]}


class Numbers(pa.ExtensionType):  # type: ignore[misc]
    """Lists of numbers under another name."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.float32()), "tests.numbers")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, *_: Any) -> Numbers:
        return cls()


def test_a_member_of_an_extension_type_that_holds_lists(tmp_path: Path) -> None:
    rows = [[float(n)] * (n % 4) for n in range(300)]
    pa.register_extension_type(Numbers())
    try:
        array = pa.ExtensionArray.from_storage(Numbers(), pa.array(rows, pa.list_(pa.float32())))
        structs = pa.StructArray.from_arrays([array], fields=[pa.field("x", array.type)])
        pq.write_table(pa.table({"s": structs, "x": array}), tmp_path / "a.parquet")
        with BatchedDataLoader(tmp_path, 50, output_options=OutputOptions(format="numpy")) as loader:
            batches = [dict(batch) for batch in loader]
    finally:
        pa.unregister_extension_type("tests.numbers")
    for name in ("s.x", "x"):
        assert [row.tolist() for batch in batches for row in batch[name].to_list()] == rows


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes([n]) * 16 for n in range(8)], pa.binary(16)))


def lists_of(values: pa.Array, each: int, mask: list[bool] | None = None) -> pa.Array:
    """Cut values to lists of one length."""
    offsets = pa.array(range(0, len(values) + 1, each), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=None if mask is None else pa.array(mask))


MASK = [False, True, True, False]
LISTS_OF_UUIDS = {
    "lists": ("x", lists_of(UUIDS, 2, MASK)),
    "lists of lists": ("x", lists_of(lists_of(UUIDS, 1), 2, MASK)),
    "lists of structs": ("x.u", lists_of(pa.StructArray.from_arrays([UUIDS], ["u"]), 2, MASK)),
    "maps": ("x.value", pa.MapArray.from_arrays([0, None, None, 6, 8], pa.array(range(8)), UUIDS)),
}


@pytest.mark.parametrize("first", [None, 1, 4])
@pytest.mark.parametrize("kind", LISTS_OF_UUIDS)
def test_lists_of_uuids_may_all_be_null_or_filtered_out(tmp_path: Path, kind: str, first: int | None) -> None:
    name, array = LISTS_OF_UUIDS[kind]
    pq.write_table(pa.table({"x": array, "n": range(4)}), tmp_path / "a.parquet", row_group_size=1)
    schema, options = Schema.infer(tmp_path, nulls="fill"), OutputOptions(format="numpy")
    expected = {0: 6 if kind == "maps" else 2, 1: 0, 2: 0, 3: 2}
    filters = None if first is None else pc.field("n") >= first
    with BatchedDataLoader(tmp_path, 1, schema=schema, filters=filters, output_options=options) as loader:
        found = {int(batch["n"][0]): len(batch[name][0]) for batch in loader}
    assert found == {row: length for row, length in expected.items() if row >= (first or 0)}
    batch = ParquetDataset(tmp_path, schema=schema).take([1, 2, 3], output_options=options)
    assert [len(row) for row in batch[name]] == [0, 0, 2]


def of_other_writers(footer: ThriftStruct, layout: str) -> None:
    """Give the levels of lists the names of other writers, or leave out the level of their elements."""
    elements, left_out = footer[2][1], list[Any]()
    for element, after in itertools.pairwise(elements[1:]):
        if element[4][1] == b"list" and layout == "bag":
            element[4], after[4] = (BINARY, b"bag"), (BINARY, b"array_element")
        elif element[4][1] == b"list" and layout == "two levels":
            element[4] = BINARY, b"array"
            element[5] = after[5]
            left_out.append(after)
    elements[:] = [elements[0], *(one for one in elements[1:] if not any(one is other for other in left_out))]


@pytest.mark.parametrize("layout", ["list", "bag", "two levels"])
def test_only_the_named_members_of_lists_of_structs_are_read(tmp_path: Path, layout: str) -> None:
    rng = np.random.default_rng(1)
    lists = [[{"role": "ab"[n % 2], "id": n, "content": rng.bytes(2000)}] * (n % 3) for n in range(600)]
    struct = pa.struct([("role", pa.string()), ("id", pa.int32()), ("content", pa.binary())])
    column = pa.array(lists, pa.list_(pa.field("element", struct, nullable=False)))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"m": column}), path, store_schema=False, row_group_size=200)
    rewrite_footer(str(path), lambda footer: of_other_writers(footer, layout))
    footer = metadata_of(path)
    sizes = [footer.stored_bytes(0, [leaf]) for leaf in range(3)]
    assert footer.names == ("m.role", "m.id", "m.content")
    assert footer.paths[0] == {"list": "m.list.element", "bag": "m.bag.array_element"}.get(layout, "m.array") + ".role"
    wanted = {f"m.{name}": [[one[name] for one in row] for row in lists] for name in ("role", "id")}
    options = OutputOptions(format="numpy")
    for names in (["m.role"], ["m.id"], ["m.id", "m.role"]):
        log = LoggedFiles()
        for filesystem in (None, pafs.PyFileSystem(log)):
            data = ParquetDataset(str(path), columns=names, filesystem=filesystem)
            with data.batches(50, output_options=options) as loader:
                batches = [dict(batch) for batch in loader]
                assert loader.stats().bytes_read < sizes[2] / 20
            for name in names:
                assert [plain(row) for batch in batches for row in batch[name].to_list()] == wanted[name]
                batch = data.take([5, 599, 302], output_options=options)
                assert [plain(row) for row in batch[name].to_list()] == [wanted[name][n] for n in (5, 599, 302)]
        assert sum(stop - start for _, start, stop in read_of_columns(log)) < sizes[2] / 20


def test_a_table_that_changed_the_type_of_a_list_reads_only_the_named_members(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lists = [[{"id": n, "content": rng.bytes(2000)}] * (n % 3) for n in range(300)]
    stored = pa.list_(pa.struct([("id", pa.int32()), ("content", pa.binary())]))
    now = pa.list_(pa.struct([("id", pa.int64()), ("content", pa.binary()), ("new", pa.int32())]))
    source = table(tmp_path, [(pa.table({"m": pa.array(lists, stored)}), deleting(4))], pa.schema([("m", now)]))
    schema = Schema({"m.id": RaggedList("int64"), "m.new": RaggedList(Scalar("int32", fill=7))})
    with BatchedDataLoader(source, 50, schema=schema, output_options=OutputOptions(format="numpy")) as loader:
        batches = [dict(batch) for batch in loader]
        assert loader.stats().bytes_read < 60_000
    del lists[4]
    assert [plain(row) for batch in batches for row in batch["m.id"].to_list()] == [[d["id"] for d in r] for r in lists]
    assert [plain(row) for batch in batches for row in batch["m.new"].to_list()] == [[7] * len(row) for row in lists]


def test_a_column_with_a_dot_in_its_name_beside_a_list_of_structs_of_that_name(tmp_path: Path) -> None:
    columns = {"m": [[{"x": 1, "y": 2}], []], "m.x": [[5], [6, 7]], "n": [[{"x": 3}], [{"x": 4}]], "n.x": [8, 9]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    schema = Schema({"m.x": RaggedList("int64"), "m.y": RaggedList("int64"), "n.x": Scalar("int64")})
    found = delivered(tmp_path, schema, ReadOptions(), shuffle=False)
    assert found == {"m.x": [[5], [6, 7]], "m.y": [[2], []], "n.x": [8, 9]}
