"""Pages compressed by Snappy with tags that its own compressor seldom or never writes, and with wrong ones."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.decode import NativeChunks, NotDecodedError, decodable_chunks
from tests.support.footers import metadata_of
from tests.support.page_rewriter import INT32, PAGE_BYTES, pages_of, varint

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")

ROWS = 3000
STREAMS = 200


def _copy(rng: random.Random, made: int, left: int) -> tuple[bytes, int]:
    """Return the tag of a match, with the bytes behind it, and its length; one of 300 is wrong."""
    offset = rng.randint(1, min(made, 20)) if rng.random() < 0.3 else rng.randint(1, made)
    if rng.random() < 1 / 300:
        offset = rng.choice([0, made + 1, made + 40])
    kind = rng.choice([1, 2, 2, 3])
    if kind == 1 and left >= 4 and offset < 2048:
        length = rng.randint(4, min(left, 11))
        return bytes([offset >> 8 << 5 | (length - 4) << 2 | 1, offset & 255]), length
    length = rng.randint(1, min(left, 64))
    return bytes([(length - 1) << 2 | max(kind, 2)]) + offset.to_bytes(4 if kind == 3 else 2, "little"), length


def _literal(rng: random.Random, left: int) -> tuple[bytes, int]:
    length = min(left, rng.choice([rng.randint(1, 60), rng.randint(1, 300)]))
    shortest = 0 if length <= 60 else 1 if length <= 256 else 2
    nbytes = max(shortest, rng.choice([0, 0, 0, 1, 2, 3, 4]))
    tag = (
        bytes([(59 + nbytes) << 2]) + (length - 1).to_bytes(nbytes, "little") if nbytes else bytes([(length - 1) << 2])
    )
    return tag + rng.randbytes(length), length


def _stream(rng: random.Random) -> bytes:
    """Return a stream that decompresses to a byte for each row; one of five was damaged afterwards."""
    out, made, share = bytearray(varint(ROWS)), 0, rng.random()
    while made < ROWS:
        if made and rng.random() < share:
            tag, length = _copy(rng, made, ROWS - made)
        else:
            tag, length = _literal(rng, ROWS - made)
        out += tag
        made += length
    if rng.random() < 0.2:
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A file in which each stream is the only page of a row group."""
    path = tmp_path_factory.mktemp("snappy") / "a.parquet"
    rng = random.Random(7)
    schema = pa.schema([pa.field("x", pa.binary(1), nullable=False)])
    table = pa.table({"x": pa.array([b"x"] * ROWS * STREAMS, pa.binary(1))}, schema=schema)
    pq.write_table(table, path, compression="snappy", use_dictionary=False, row_group_size=ROWS, write_statistics=False)
    file, made = pages_of(path), [_stream(rng) for _ in range(STREAMS)]
    for chunk, stream in zip(file.chunks, made, strict=True):
        (page,) = chunk.pages
        page.body = stream
        page.header[PAGE_BYTES] = (INT32, len(stream))
    file.write(path)
    return path, made


def test_any_stream_gives_what_arrow_decompresses_or_is_left_to_it(streams: tuple[Path, list[bytes]]) -> None:
    path, made = streams
    footer, decoded = metadata_of(path), 0
    for group, stream in enumerate(made):
        try:
            expected: bytes | None = pa.Codec("snappy").decompress(stream, ROWS, asbytes=True)
        except OSError:
            expected = None
        chunks = decodable_chunks(footer, group, ["x"], footer.schema.arrow)
        with NativeChunks(str(path), chunks) as native_chunks:
            try:
                (found,) = native_chunks.read(ROWS)
            except NotDecodedError:
                assert expected is None
            else:
                assert found.buffers()[1].to_pybytes()[:ROWS] == expected
                decoded += 1
    assert STREAMS * 0.5 < decoded < STREAMS * 0.95
