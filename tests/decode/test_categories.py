"""Words of a category become codes in the kernels, as Arrow looks them up."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, Category, DataError, OutputOptions, Schema
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.decode import NotDecodedError
from parquet_loader.decode.converters import convert
from parquet_loader.decode.encoded_columns import ValueProblem
from parquet_loader.decode.native.column_reader import Fills
from parquet_loader.decode.native.decodable import WindowForm, decodable_columns
from parquet_loader.decode.native.vocabulary import Vocabulary
from tests.support.chunks import read_in_steps
from tests.support.examples import examples, grid
from tests.support.footers import metadata_of

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="the kernels are not compiled")

WORDS = st.text(max_size=3) | st.text("ab", max_size=20) | st.builds("word {:09}".format, st.integers(0, 20))


@settings(max_examples=examples(200), deadline=None)
@given(
    data=st.data(),
    vocabulary=st.lists(WORDS, min_size=1, max_size=20, unique=True),
    strays=st.lists(WORDS, max_size=2),
    dtype=st.sampled_from(["int8", "uint16", "int32", "int64"]),
    unknown=st.booleans(),
    repeats=st.sampled_from([1, 1, 300]),
    encoding=st.sampled_from(["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]),
    is_categorical=st.booleans(),
    codec=st.sampled_from(["none", "snappy"]),
    page_bytes=st.sampled_from([64, 2**20]),
    dictionary_bytes=st.sampled_from([16, 2**20]),
    steps=st.lists(st.integers(1, 900), max_size=3),
)
def test_kernels_look_words_up_as_arrow_does_or_leave_them_to_it(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    vocabulary: list[str],
    strays: list[str],
    dtype: str,
    unknown: bool,
    repeats: int,
    encoding: str,
    is_categorical: bool,
    codec: str,
    page_bytes: int,
    dictionary_bytes: int,
    steps: list[int],
) -> None:
    entry = st.none() | st.sampled_from([*vocabulary, *strays])
    words = data.draw(st.lists(entry, min_size=1, max_size=30)) * repeats
    array = pa.array(words, pa.string())
    path = tmp_path_factory.mktemp("categories") / "a.parquet"
    coded = encoding == "dictionary"
    pq.write_table(
        pa.table({"x": array.dictionary_encode() if is_categorical else array}),
        path,
        compression=codec,
        use_dictionary=coded,
        column_encoding=None if coded else {"x": encoding},
        data_page_size=page_bytes,
        write_batch_size=max(1, page_bytes // 16),
        dictionary_pagesize_limit=dictionary_bytes,
    )
    other = vocabulary[-1] if unknown else None
    field = Category(vocabulary, dtype, fill=vocabulary[0], unknown=other)
    table = Vocabulary(field.words, -1 if other is None else field.code(other))
    footer = metadata_of(path)
    described = footer.of_row_group(0, ("x",), chunks=True, arrow=False)
    form = WindowForm(number=pa.from_numpy_dtype(dtype), vocabulary=pickle.loads(pickle.dumps(table)))
    chunks = decodable_columns(described, ["x"], footer.schema.arrow, len(words), {"x": form})
    del form, table  # the chunks keep it
    out = np.full(len(words) + 2, 77, dtype)
    fills = Fills.of_columns(["x"], {"x": np.zeros(1, dtype).tobytes()})

    try:
        expected = convert(pa.chunked_array([array]), field).to_numpy()
    except ValueProblem:
        with pytest.raises(NotDecodedError):
            read_in_steps(path, chunks, fills, out[1:-1], steps)
        return
    read_in_steps(path, chunks, fills, out[1:-1], steps)
    assert out[1:-1].tolist() == expected.tolist()
    assert (out[[0, -1]] == 77).all()


def test_any_number_of_words_is_found() -> None:
    words = [f"{'x' * (n % 40)}{n}" for n in range(20_000)]
    table = Vocabulary(pa.array(words).slice(5), -1)
    assert len(table._words) == 19_995
    assert np.count_nonzero(table._slots) == 19_995


@grid(
    "isolation, null, filters",
    ["thread", "process"],
    ["fill", "mask"],
    [None, [("n", ">", 20)]],
    everyday=lambda isolation, null, filters: isolation == "thread" or (null == "mask" and filters is not None),
)
def test_columns_of_words_are_delivered_as_codes(tmp_path: Path, filters: Any, null: str, isolation: Any) -> None:
    words = [None if n % 11 == 0 else f"w{n % 7}" for n in range(3000)]
    table = pa.table({"x": words, "n": range(3000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700, data_page_size=300, write_batch_size=60)
    vocabulary = [f"w{n}" for n in (3, 1, 0, 2, 4, 5, 6)]
    policy: Any = {"null": "mask"} if null == "mask" else {}
    schema = Schema({"x": Category(vocabulary, fill="w1", **policy)})
    options: dict[str, Any] = {"filters": filters, "isolation": isolation, "window_rows": 1000}
    with BatchedDataLoader(
        tmp_path, 100, schema=schema, output_options=OutputOptions(format="numpy"), **options
    ) as loader:
        batches = [dict(batch) for batch in loader]
    expected = words[21 if filters else 0 :]
    found = np.concatenate([batch["x"] for batch in batches])
    assert found.tolist() == [1 if word is None else vocabulary.index(word) for word in expected]
    if null == "mask":
        valid = np.concatenate([batch["x_valid"] for batch in batches])
        assert valid.tolist() == [word is not None for word in expected]


@pytest.mark.parametrize("encoding", [None, "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_a_word_outside_the_vocabulary_names_its_row(tmp_path: Path, encoding: str | None) -> None:
    table = pa.table({"x": ["a"] * 150 + ["ab"] + ["b"] * 20})
    encodings: Any = {"column_encoding": {"x": encoding}} if encoding else {}
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=encoding is None, **encodings)
    schema = Schema({"x": Category(["a", "b"])})
    refused = pytest.raises(DataError, match=r"column 'x', row 150: .*'ab'")
    with BatchedDataLoader(tmp_path, 10, schema=schema, window_rows=50) as loader, refused:
        list(loader)


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_words_of_which_arrow_builds_no_dictionary_are_codes(tmp_path: Path, encoding: str) -> None:
    table = pa.table({"x": ["a", "b"] * 20})
    encodings: Any = {"column_encoding": {"x": encoding}}
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="brotli", **encodings)
    with BatchedDataLoader(tmp_path, 40, schema=Schema({"x": Category(["b", "a"])})) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[1, 0] * 20]
