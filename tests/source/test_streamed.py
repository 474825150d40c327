"""A file streamed from a store, a part of each column at a time, gives the same bytes within its memory limit."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.remote.client import Bytes
from parquet_loader.source.remote.streaming_file import _LEAST_PART_BYTES, StreamedFile
from tests.support.examples import examples

CONTENT = np.random.default_rng(0).integers(0, 256, 4 * 2**20, np.uint8)


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 2**20), min_size=1, max_size=4),
    held_bytes=st.sampled_from([0, 2**17, 2**19, 2**22]),
    request_bytes=st.sampled_from([1000, 2**18, 2**24]),
    seed=st.integers(0, 2**32 - 1),
)
def test_columns_read_side_by_side_come_whole_and_in_bounded_memory(
    sizes: list[int], held_bytes: int, request_bytes: int, seed: int
) -> None:
    starts = np.cumsum([4, *sizes])[:-1].tolist()
    chunks = [
        ByteRange(start, min(start + size + 100, len(CONTENT))) for start, size in zip(starts, sizes, strict=True)
    ]
    asked: list[ByteRange] = []

    def fetch_into(ranges: Sequence[ByteRange], places: Sequence[Bytes]) -> None:
        for span, place in zip(ranges, places, strict=True):
            assert len(place) == span.size > 0
            place[:] = CONTENT[span.start : span.stop]
            asked.append(span)

    file = StreamedFile(fetch_into, len(CONTENT), chunks, held_bytes, request_bytes)
    assert file.seek(0, os.SEEK_END) == len(CONTENT)
    rng = np.random.default_rng(seed)
    at = [start for start, _ in zip(starts, sizes, strict=True)]
    stops = [start + size for start, size in zip(starts, sizes, strict=True)]
    least = min(_LEAST_PART_BYTES, request_bytes)
    most = held_bytes + 2 * len(chunks) * (2 * least + 100 + len(sizes))
    while left := [number for number in range(len(sizes)) if at[number] < stops[number]]:
        number = int(rng.choice(left))
        nbytes = min(int(rng.integers(1, 2**17)), stops[number] - at[number])
        file.seek(at[number])
        assert file.read(nbytes).to_pybytes() == CONTENT[at[number] : at[number] + nbytes].tobytes()
        at[number] += nbytes
        assert file.tell() == at[number]
        assert sum(len(part) for chunk in file._chunks for part in chunk.held.values()) <= most
    assert max((span.size for span in asked), default=0) <= 2 * max(request_bytes, least) + 100
    assert sum(span.size for span in asked) <= sum(chunk.size for chunk in chunks) + 300 * len(chunks)
    file.close()


def test_what_was_not_foreseen_is_fetched_as_it_is() -> None:
    def fetch_into(ranges: Sequence[ByteRange], places: Sequence[Bytes]) -> None:
        for span, place in zip(ranges, places, strict=True):
            place[:] = CONTENT[span.start : span.stop]

    file = StreamedFile(fetch_into, 1000, [ByteRange(100, 200)], 2**20, 2**20)
    for start, nbytes in ((0, 50), (150, 100), (900, 200), (1000, 10)):
        file.seek(start)
        assert file.read(nbytes).to_pybytes() == CONTENT[start : min(start + nbytes, 1000)].tobytes()
