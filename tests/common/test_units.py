"""Numbers formatted for people."""

from __future__ import annotations

import pytest

from parquet_loader.common import format_count, parse_bytes
from parquet_loader.errors import ConfigurationError


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (1000, "row group", "1,000 row groups"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
    ],
)
def test_counts_have_the_ending_of_their_number(count: int, noun: str, text: str) -> None:
    assert format_count(count, noun) == text


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "9" * 400 + "GB", "inf", "1 g", 0, "0", True])
def test_other_than_a_number_of_bytes_is_refused_by_name(value: float | str) -> None:
    with pytest.raises(ConfigurationError, match=r"^max_bytes="):
        parse_bytes(value, "max_bytes")
