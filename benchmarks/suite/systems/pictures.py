"""Decodes JPEG in the same way for every system. Needs numpy and Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def decode(encoded: Any) -> npt.NDArray[np.uint8]:
    """Return ``[height, width, 3]``."""
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))


def decode_all(images: Iterable[Any]) -> npt.NDArray[np.uint8]:
    """Return ``[images, height, width, 3]``."""
    return np.stack([decode(encoded) for encoded in images])
