"""Which decoder of JPEG is used, chosen by tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from parquet_loader.decode import jpeg

DECODERS: dict[str, tuple[type, ...]] = {
    "simplejpeg and kernels": (jpeg._Simplejpeg, jpeg._PillowsLibrary),
    "kernels": (jpeg._PillowsLibrary, jpeg._PillowsLibrary),
    "simplejpeg": (jpeg._Simplejpeg, jpeg._Simplejpeg),
    "Pillow": (),
}
"""The decoders of whole images and of parts, by name; none if Pillow decodes all."""


@contextmanager
def decoded_by(name: str) -> Iterator[None]:
    """Decode by one of `DECODERS`; the test is skipped if it cannot be loaded here."""
    with pytest.MonkeyPatch.context() as patch:
        if "kernels" not in name:
            patch.setattr(jpeg, "KERNELS", None)
        if "simplejpeg" not in name:
            patch.setitem(sys.modules, "simplejpeg", None)  # as if it were not installed
        jpeg._decoders.cache_clear()
        try:
            if tuple(map(type, jpeg._decoders() or ())) != DECODERS[name]:
                pytest.skip(f"JPEG cannot be decoded by {name} here")
            yield
        finally:
            jpeg._decoders.cache_clear()
