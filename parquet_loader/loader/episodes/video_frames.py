"""Finds the frames of rows in the video files of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.errors import DataError
from parquet_loader.plan import EpisodeSamples


class FilePart(NamedTuple):
    """The episodes of one camera; arrays have an element for each episode.

    Attributes:
        path: int64: the number of the file.
        begin: float64: the time of the episode's first frame in the file, in seconds.
    """

    path: IntArray
    begin: npt.NDArray[np.float64]


@dataclass(frozen=True)
class VideoFrames:
    """The video files of a data set. Frame `i` of an episode is `i / fps` seconds after its first one.

    Attributes:
        fps: Rows, and frames, a second.
        ids: int64 ``[episodes]``: the numbers of the episodes, rising.
        rows: int64 ``[episodes]``: the number of rows of each episode.
        paths: The files.
        cameras: The episodes of each camera, by its name.
    """

    fps: float
    ids: IntArray
    rows: IntArray
    paths: tuple[str, ...]
    cameras: Mapping[str, FilePart]

    def chosen(self, ids: pa.Array, samples: EpisodeSamples) -> VideoFrames:
        """Return the files of the episodes that samples have, in the order of the samples.

        Args:
            ids: The numbers of these episodes.
            samples: The samples.

        Raises:
            DataError: The metadata lacks an episode, or gives another number of rows for it.
        """
        numbers = ids.to_numpy(zero_copy_only=False).astype(np.int64)
        rows = np.diff(samples.bounds)
        at = np.minimum(np.searchsorted(self.ids, numbers), max(0, len(self.ids) - 1))
        if len(numbers) and (not len(self.ids) or (self.ids[at] != numbers).any()):
            number = numbers[0] if not len(self.ids) else numbers[self.ids[at] != numbers][0]
            raise DataError(f"meta/episodes: there is no episode {number}, of which data has rows")
        if len(numbers) and not np.array_equal(self.rows[at], rows):
            episode = int(np.flatnonzero(self.rows[at] != rows)[0])
            raise DataError(
                f"meta/episodes: episode {numbers[episode]} has {self.rows[at[episode]]} rows, in data it has "
                f"{rows[episode]}"
            )
        cameras = {name: FilePart(part.path[at], part.begin[at]) for name, part in self.cameras.items()}
        return VideoFrames(self.fps, numbers, rows, self.paths, cameras)
