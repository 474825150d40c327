"""CRC-32C, the checksum of TFRecord files: by a kernel, or in Python, which is more than a hundred times slower."""

from __future__ import annotations

from functools import cache

from parquet_loader.common import KERNELS

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes, length: int) -> int:
    """Return the checksum of the first `length` bytes."""
    assert length <= len(data)
    if KERNELS is not None:
        return int(KERNELS.crc32c(data, length))
    return crc32c_in_python(data, length)


def crc32c_in_python(data: bytes, length: int) -> int:
    """Return the checksum of the first `length` bytes, without kernels."""
    table, checksum = _table(), 0xFFFFFFFF
    for byte in memoryview(data)[:length]:
        checksum = checksum >> 8 ^ table[(checksum ^ byte) & 255]
    return checksum ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        return value

    return tuple(entry(byte) for byte in range(256))
