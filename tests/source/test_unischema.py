"""Petastorm's data sets load as they are: every codec, nulls, partitions; equal to what Petastorm itself read."""

from __future__ import annotations

import io
import shutil
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parquet_loader import BatchedDataLoader, Category, DataError, Encoded, Ragged, Schema, SchemaError, write_dataset
from parquet_loader.decode.array_formats import BlobProblem, image_array, npy_array, npz_array
from parquet_loader.decode.encoded_columns import unpack
from parquet_loader.schema.encode.blobs import encode_array
from parquet_loader.source.unischema.metadata_files import UNISCHEMA_KEY
from tests.support import footers
from tests.support import petastorm_oracle as oracle


def rows_of(batches: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the rows of batches by id: nulls as None, `Ragged` as nested lists, tensors as arrays."""
    found: dict[int, dict[str, Any]] = {}
    for batch in batches:
        columns = {name: column.to_list() if isinstance(column, Ragged) else column for name, column in batch.items()}
        for row, number in enumerate(batch["id"].tolist()):
            values = {}
            for name, column in columns.items():
                if name.endswith("_valid"):
                    continue
                valid = columns.get(f"{name}_valid")
                values[name] = None if valid is not None and not valid[row] else as_plain(column[row])
            found[number] = values
    return found


def as_plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return value


def assert_delivered(found: Any, wanted: Any, where: str) -> None:
    """Compare a value of a batch with the one that Petastorm's row reader returned."""
    if isinstance(wanted, float) and np.isnan(wanted):
        assert found is None, where  # a null: pandas, which Petastorm reads with, makes it NaN
    elif isinstance(wanted, Decimal):
        assert float(found) == float(wanted), where
    elif isinstance(wanted, np.datetime64):
        days = found.dtype == np.int32
        assert int(found) == wanted.astype("M8[D]" if days else "M8[ns]").astype(np.int64), where
    elif isinstance(wanted, str | bytes):
        assert found == wanted, where
    elif isinstance(wanted, np.ndarray) and wanted.dtype.kind in "US":
        assert found == wanted.tolist(), where
    elif wanted is None:
        assert found is None, where
    else:
        oracle.assert_same(found, wanted, where)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [5, 24])
def test_every_codec_reads_equal_to_petastorm(shuffle: bool, batch_size: int) -> None:
    with BatchedDataLoader(oracle.EVERYTHING, batch_size, shuffle=shuffle, num_threads=2) as loader:
        found = rows_of(list(loader))
        assert len(loader.schema) == 36
    assert sorted(found) == list(range(oracle.ROWS))
    for wanted in oracle.rows():
        row = found[int(wanted["id"])]
        assert set(row) == set(wanted)
        for name, value in wanted.items():
            missing = isinstance(value, np.floating) and np.isnan(value)
            assert_delivered(row[name], None if missing else value, f"row {wanted['id']}, {name}")


def test_what_batches_hold_follows_from_the_schema_alone() -> None:
    with BatchedDataLoader(oracle.EVERYTHING, 4, num_threads=1) as loader:
        batch = next(iter(loader))
    assert batch["matrix"].shape == (4, 3, 4)
    assert batch["grey16"].dtype == torch.uint16
    assert batch["colour16"].shape == (4, 4, 5, 3)
    assert isinstance(batch["wild"], list)
    assert isinstance(batch["png_any"], list)
    assert batch["points"].values.shape[1:] == (3,)
    assert batch["decimal"].dtype == torch.float64


def test_columns_and_filters_work_as_on_any_data_set() -> None:
    import pyarrow.compute as pc

    with BatchedDataLoader(
        oracle.EVERYTHING, 4, columns=["id", "matrix"], filters=(pc.field("part") == "p_1") & (pc.field("id") > 20)
    ) as loader:
        (batch,) = list(loader)
    assert batch["id"].tolist() == [21, 22, 23]
    assert set(batch) == {"id", "matrix"}


def test_a_data_set_with_summary_metadata_and_a_single_file_of_it_load() -> None:
    rows = oracle.rows("series")
    for source in (oracle.SERIES, sorted(oracle.SERIES.glob("*.parquet")), str(oracle.SERIES / "*.parquet")):
        with BatchedDataLoader(source, 30) as loader:
            (batch,) = list(loader)
        assert batch["ts"].tolist() == [int(r["ts"]) for r in rows]
        assert torch.equal(batch["vector"], torch.tensor(np.stack([r["vector"] for r in rows])))


def test_a_partition_of_a_petastorm_data_set_loads_by_itself() -> None:
    with BatchedDataLoader(oracle.EVERYTHING / "part=p_1", 12, columns=["id", "matrix"]) as loader:
        (batch,) = list(loader)
    assert batch["id"].tolist() == list(range(12, 24))
    assert batch["matrix"].shape == (12, 3, 4)


def test_names_of_directories_take_the_types_of_the_unischema(tmp_path: Path) -> None:
    """Directory names that look like numbers stay text where the Unischema says text."""
    folder = tmp_path / "ds"
    shutil.copytree(oracle.EVERYTHING, folder)
    (folder / "part=p_0").rename(folder / "part=007")
    (folder / "part=p_1").rename(folder / "part=08")
    with BatchedDataLoader(folder, 24, columns=["part"]) as loader:
        (batch,) = list(loader)
    assert set(batch["part"].to_list()) == {"007", "08"}


def test_words_of_a_schema_come_before_the_types_of_the_unischema(tmp_path: Path) -> None:
    """The Unischema says int64 for `ts`."""
    shutil.copytree(oracle.SERIES, tmp_path / "ds", ignore=shutil.ignore_patterns("*.parquet"))
    for number, path in enumerate(sorted(oracle.SERIES.glob("*.parquet"))[:2], 1):
        (tmp_path / "ds" / f"ts={number}").mkdir()
        pq.write_table(pq.read_table(path).drop(["ts"]).slice(0, 1), tmp_path / "ds" / f"ts={number}" / "a.parquet")
    schema = Schema({"ts": Category(["1", "2"])}, extra="infer")
    with BatchedDataLoader(tmp_path / "ds", 2, schema=schema) as loader:
        (batch,) = list(loader)
    assert batch["ts"].tolist() == [0, 1]


def test_a_null_where_the_unischema_allows_none_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(oracle.SERIES, folder)
    path = sorted(folder.glob("*.parquet"))[1]
    table = pq.read_table(path)
    blobs = table["vector"].to_pylist()
    blobs[3] = None
    pq.write_table(table.set_column(2, "vector", pa.array(blobs)), path)
    with (
        pytest.raises(DataError, match=r"part-00001.*row group 0, column 'vector', row 3: is null"),
        BatchedDataLoader(folder, 30) as loader,
    ):
        list(loader)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"junk", "as np.save writes"),
        (encode_array(np.zeros(3, np.float32), "npy"), r"holds float32 of shape \(3,\), expected float of \(2,\)"),
        (encode_array(np.zeros(2, np.float64), "npy"), "holds float64"),
        (encode_array(np.zeros(2, np.float32), "npy")[:-1], "takes 8 bytes, found 7"),
    ],
)
def test_bytes_that_are_no_such_array_are_named(tmp_path: Path, blob: bytes, message: str) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(oracle.SERIES, folder)
    path = sorted(folder.glob("*.parquet"))[1]
    table = pq.read_table(path)
    blobs = table["vector"].to_pylist()
    blobs[3] = blob
    pq.write_table(table.set_column(2, "vector", pa.array(blobs)), path)
    with (
        pytest.raises(DataError, match=rf"part-00001.*row group 0, column 'vector', row 3: .*{message}"),
        BatchedDataLoader(folder, 30) as loader,
    ):
        list(loader)


def test_refused_metadata_name_the_file_and_the_way_round_it(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(oracle.SERIES, folder)
    schema = pa.schema([("a", pa.int8())], metadata={UNISCHEMA_KEY: b"cos\nsystem\n(S'true'\ntR."})
    pq.write_metadata(schema, folder / "_common_metadata")
    with pytest.raises(DataError, match=r"_common_metadata: .*'os\.system'.*schema="):
        BatchedDataLoader(folder, 4)
    with BatchedDataLoader(folder, 4, schema=Schema({"vector": Encoded("float32", (2,))})) as loader:
        assert next(iter(loader))["vector"].shape == (4, 2)


def test_metadata_of_others_is_no_unischema(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    pq.write_metadata(pa.schema([("a", pa.int64())]), tmp_path / "_common_metadata")
    with BatchedDataLoader(tmp_path, 2) as loader:
        assert next(iter(loader))["a"].tolist() == [1, 2]


def test_metadata_may_state_rows_without_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    pq.write_metadata(pa.schema([("a", pa.int64())]), tmp_path / "_common_metadata")
    footers.rewrite_footer(str(tmp_path / "_common_metadata"), lambda footer: footers.put(footer, 3, 2))  # fastparquet
    with BatchedDataLoader(tmp_path, 2) as loader:
        assert next(iter(loader))["a"].tolist() == [1, 2]


def test_data_sets_of_different_unischemas_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="different Unischemas"):
        BatchedDataLoader([str(oracle.SERIES), str(oracle.EVERYTHING)], 4)


# -- arrays kept as bytes --


numbers = st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float32", ">f8", ">i4", "float64"])
arrays = numbers.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))


@given(arrays, st.booleans(), st.sampled_from(["npy", "npz"]))
def test_arrays_come_back_as_numpy_wrote_them(array: np.ndarray[Any, Any], fortran: bool, encoding: str) -> None:
    given_ = np.asfortranarray(array) if fortran and array.ndim else array
    found = (npy_array if encoding == "npy" else npz_array)(encode_array(given_, encoding))
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)


@given(st.binary(max_size=200), st.integers(0, 330), st.sampled_from(["npy", "npz"]))
def test_damaged_arrays_raise_nothing_but_our_error(noise: bytes, at: int, encoding: str) -> None:
    data = encode_array(np.arange(6, dtype=np.int16).reshape(2, 3), encoding)
    damaged = data[:at] + noise + data[at + len(noise) :]
    try:
        found = (npy_array if encoding == "npy" else npz_array)(damaged)
    except BlobProblem:
        return
    assert found.nbytes <= max(len(damaged), 2**16)


def test_archives_that_numpy_does_not_write_are_refused() -> None:
    array = encode_array(np.arange(6), "npy")
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", kind) as archive:
            archive.writestr("arr.npy", array)
        with pytest.raises(BlobProblem, match=f"number {kind}"):
            npz_array(out.getvalue())
    data = encode_array(np.arange(6), "npz")
    end = data.rindex(b"PK\x05\x06")
    place = data[end + 16 : end + 20]
    with pytest.raises(BlobProblem, match="not an archive"):
        npz_array(data[: end + 16] + (int.from_bytes(place, "little") + 9).to_bytes(4, "little") + data[end + 20 :])
    name = data.rindex(b"arr.npy")
    flags = name - 46 + 8  # in the directory's entry: the name is UTF-8
    changed = data[:flags] + b"\x00\x08" + data[flags + 2 : name] + b"\xff" + data[name + 1 :]
    with pytest.raises(BlobProblem, match="not an archive"):
        npz_array(changed)


def test_text_of_characters_that_there_are_not_is_refused() -> None:
    data = bytearray(encode_array(np.array(["ab"]), "npy"))
    data[-4:] = b"\xff" * 4
    with pytest.raises(BlobProblem, match="code points above"):
        npy_array(bytes(data))


def test_objects_records_and_bombs_are_no_arrays() -> None:
    out = io.BytesIO()
    np.save(out, np.array([print], object), allow_pickle=True)
    with pytest.raises(BlobProblem, match="expected one of an array"):
        npy_array(out.getvalue())
    head = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")

    def with_header(text: str) -> bytes:
        return head + text.ljust(117).encode() + b"\n"

    for shape in ("(1000000000000,)", "(65536, 65536, 65536)", "(99999999999999999999999,)", "(-1,)", "(1e9,)"):
        with pytest.raises(BlobProblem):
            npy_array(with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"))
    for text in (
        "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|V8', 'fortran_order': False, 'shape': (1,), }",
        "__import__('os').system('true')",
    ):
        with pytest.raises(BlobProblem, match="expected one of an array"):
            npy_array(with_header(text))
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "arr.npy", with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }") + bytes(9**7)
        )
    assert npz_array(bomb.getvalue()).tolist() == [0, 0]  # only what the header claims is decompressed
    other = io.BytesIO()
    np.savez(other, other=np.zeros(1))
    with pytest.raises(BlobProblem, match=r"holds no 'arr\.npy'"):
        npz_array(other.getvalue())


@given(
    st.sampled_from([np.uint8, np.uint16]).flatmap(
        lambda d: hnp.arrays(d, st.sampled_from([(1, 1), (3, 5), (4, 3, 3), (1, 7, 3), (2, 2, 4)]))
    )
)
def test_png_keeps_every_pixel_of_8_and_16_bits(pixels: np.ndarray[Any, Any]) -> None:
    if pixels.dtype == np.uint16 and pixels.shape[-1] == 4 and pixels.ndim == 3:
        return  # Pillow keeps 8 bits of these
    found = image_array(encode_array(pixels, "png"))
    assert found.dtype == pixels.dtype
    np.testing.assert_array_equal(found, pixels)


@given(st.data())
def test_columns_of_arrays_are_cut_as_one_by_one(data: st.DataObject) -> None:
    """The values are the same for equal and different headers, in Fortran's order and in another byte order."""
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=3))
    rows = data.draw(st.lists(hnp.arrays(np.int32, shape), max_size=6))
    changes = data.draw(
        st.lists(st.sampled_from(["", "fortran", "big", "null"]), min_size=len(rows), max_size=len(rows))
    )
    blobs = []
    for row, change in zip(rows, changes, strict=True):
        changed = np.asfortranarray(row) if change == "fortran" else row.astype(">i4") if change == "big" else row
        blobs.append(None if change == "null" else encode_array(changed, "npy"))
    array = pa.array([b"before", *blobs], pa.binary()).slice(1)
    found = unpack(array, Encoded("int32", shape))
    assert [v.as_py() for v in found] == [
        None if change == "null" else row.tobytes() for row, change in zip(rows, changes, strict=True)
    ]
    varying = unpack(array, Encoded("int32", (None, *shape[1:])))
    assert varying.is_null().to_pylist() == [change == "null" for change in changes]


def test_fields_of_encoded_arrays_can_be_written_and_read(tmp_path: Path) -> None:
    schema = Schema(
        {
            "depth": Encoded("uint16", (2, 3), "png"),
            "cloud": Encoded("float32", (None, 2), "npz", null="mask"),
            "any": Encoded("int8", (None, None)),
        }
    )
    assert Schema.from_json(schema.to_json()) == schema
    depth = [np.full((2, 3), 1000 * n, np.uint16) for n in range(3)]
    cloud = [np.ones((n, 2), np.float32) if n else None for n in range(3)]
    any_ = [np.ones((n, 2), np.int8) for n in range(3)]
    write_dataset({"depth": depth, "cloud": cloud, "any": any_}, tmp_path / "ds", schema)
    with BatchedDataLoader(tmp_path / "ds", 3) as loader:
        assert loader.schema == schema
        (batch,) = list(loader)
    np.testing.assert_array_equal(batch["depth"].numpy(), np.stack(depth))
    assert batch["cloud_valid"].tolist() == [False, True, True]
    assert batch["cloud"].lengths.tolist() == [0, 1, 2]
    assert [tuple(a.shape) for a in batch["any"]] == [(0, 2), (1, 2), (2, 2)]
