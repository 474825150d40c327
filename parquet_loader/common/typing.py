"""Aliases of array types."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]


Digests: TypeAlias = npt.NDArray[np.uint64]


BoolArray: TypeAlias = npt.NDArray[np.bool_]
