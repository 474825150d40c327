"""Which decoder of JPEG is used, chosen by tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from parquet_loader.decode import jpeg

DECODERS: dict[str, type] = {"kernels": jpeg._PillowsLibrary, "simplejpeg": jpeg._Simplejpeg, "Pillow": type(None)}


@contextmanager
def decoded_by(name: str) -> Iterator[None]:
    """Decode by one of `DECODERS`; the test is skipped if it cannot be loaded here."""
    with pytest.MonkeyPatch.context() as patch:
        if name != "kernels":
            patch.setattr(jpeg, "KERNELS", None)
        if name == "Pillow":
            patch.setitem(sys.modules, "simplejpeg", None)  # as if it were not installed
        jpeg._decoder.cache_clear()
        try:
            if not isinstance(jpeg._decoder(), DECODERS[name]):
                pytest.skip(f"JPEG cannot be decoded by {name} here")
            yield
        finally:
            jpeg._decoder.cache_clear()
