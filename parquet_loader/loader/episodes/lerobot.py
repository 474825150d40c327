"""`LeRobotDataset`: reads the data sets of LeRobot, version 3, as they are."""

from __future__ import annotations

import json
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parquet_loader.collate import Batch
from parquet_loader.common import Shard, check_int, in_threads
from parquet_loader.dataset import default_num_threads, settings_of
from parquet_loader.decode import BlobProblem, VideoDecoderCache
from parquet_loader.engine import LocalFile
from parquet_loader.errors import ArgumentTypeError, ConfigurationError, DataError, SourceError, UnsupportedError
from parquet_loader.loader.episodes.episodes import Episodes
from parquet_loader.loader.episodes.video_frames import FilePart, VideoFrames
from parquet_loader.loader.parquet_dataset import ParquetDataset
from parquet_loader.read import Filters

# The columns of ``meta/episodes`` with the file and the time of a camera's frames.
_OF_CAMERA = ("chunk_index", "file_index", "from_timestamp")
# Files hold up to about an hour of film, of 640 x 480 pixels: about 20 decoders or more.
_DECODERS_BYTES = 2**28


class LeRobotDataset(ParquetDataset):
    """A local data set of LeRobot, version 3: a `ParquetDataset` of ``data/`` that also reads ``meta/``.

    ``batches(64, episodes=data.samples(...))`` delivers two columns for each camera whose frames are in video files:
    ``<camera>_path``, a `Ragged` of B texts, and ``<camera>_timestamp``, the seconds from the beginning of that file,
    float64 ``[B, T]`` or ``[B]``. `deltas` may also name cameras. `frames` decodes the frames.

    Args:
        root: The directory, which holds ``meta/info.json``.
        episodes: The episodes to read; default: all.
        columns: Names to read, except cameras; default: all columns except images.
        filters: As in `ParquetDataset`.
        shard: As in `ParquetDataset`.

    Attributes:
        root: The directory.
        info: ``meta/info.json``.
        fps: Rows a second.
        cameras: The names of the features whose frames are in video files.
        tasks: The texts of the tasks, by ``task_index``.

    Raises:
        SourceError: The directory has no such data set, or invalid metadata.
        UnsupportedError: The data set has another version.
        SchemaError, ConfigurationError: As in `ParquetDataset`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        episodes: Sequence[int] | None = None,
        *,
        columns: Sequence[str] | None = None,
        filters: Filters | None = None,
        shard: Shard | None = None,
    ) -> None:
        self.root = Path(root)
        self.info = _info(self.root)
        self.fps = float(self.info["fps"])
        features: Mapping[str, Any] = self.info["features"]
        self.cameras = tuple(name for name, feature in features.items() if feature.get("dtype") == "video")
        self.tasks = _tasks(self.root)
        if columns is None:
            columns = [name for name, feature in features.items() if feature.get("dtype") not in ("video", "image")]
        super().__init__(str(self.root / "data"), columns=columns, filters=filters, shard=shard)
        self._videos = _videos(self.root, self.info, self.cameras)
        self._decoders = VideoDecoderCache(_DECODERS_BYTES)
        if episodes is not None:
            if isinstance(episodes, str) or not isinstance(episodes, Iterable):
                raise ArgumentTypeError(f"episodes={episodes!r:.80}: expected a list of episode numbers")
            chosen = [check_int("episodes", number, 0, 2**62) for number in episodes]
            missing = sorted(set(chosen) - set(self._videos.ids.tolist()))
            if missing:
                raise ConfigurationError(f"episodes: there is no episode {missing[0]}")
            self._filters = settings_of(self).combined(pc.field("episode_index").isin(chosen))

    def samples(
        self,
        history: int = 0,
        future: int = 0,
        *,
        deltas: Mapping[str, Sequence[float]] | None = None,
        stride: int = 1,
        pad: Literal["mask", "drop"] = "mask",
    ) -> Episodes:
        """Return `Episodes` for `batches`: by ``episode_index``, in the order of ``frame_index``.

        Args:
            history, future, stride, pad: As in `Episodes`.
            deltas: Seconds by column or camera, like LeRobot's ``delta_timestamps``.
        """
        fps = None if deltas is None else self.fps
        return Episodes(
            "episode_index",
            history=history,
            future=future,
            stride=stride,
            pad=pad,
            deltas=deltas,
            fps=fps,
            order="frame_index",
        )

    def frames(
        self, batch: Batch, camera: str, *, size: tuple[int, int] | None = None, num_threads: int | None = None
    ) -> Any:
        """Decode the frames that a batch names, several files at a time.

        Args:
            batch: A batch of an `EpisodeLoader` over this data set, of tensors or of arrays.
            camera: The camera.
            size: ``(height, width)`` to which frames are scaled; None to keep their size.
            num_threads: Threads; default: the processors, at most 8.

        Returns:
            uint8 ``[B, T, height, width, 3]`` or ``[B, height, width, 3]``, a tensor if the batch has tensors.

        Raises:
            ConfigurationError: The batch has no such camera.
            MissingPackageError: PyAV is not installed.
            DataError: A file is damaged, or has no frame within half a frame's time of a timestamp.
            SourceError: A file cannot be read.
        """
        if f"{camera}_timestamp" not in batch:
            raise ConfigurationError(f"camera={camera!r:.80}: the batch has none of its timestamps; there are "
                                     f"{', '.join(self.cameras) or 'no cameras'}")  # fmt: skip
        given = batch[f"{camera}_timestamp"]
        times = np.asarray(given.cpu() if hasattr(given, "cpu") else given, np.float64)
        named = batch[f"{camera}_path"]  # in a `transform`, an array of texts
        paths = named if isinstance(named, np.ndarray) else np.array(named.to_list(), object)
        flat = times.reshape(len(times), -1)

        def decoded(path: str) -> tuple[Any, Any, Any]:
            rows = np.flatnonzero(paths == path)
            unique, inverse = np.unique(flat[rows], return_inverse=True)
            return rows, self._decoded(path, unique, size), inverse.reshape(len(rows), -1)

        files = list(dict.fromkeys(paths.tolist()))
        found = in_threads(decoded, files, num_threads or default_num_threads(), "parquet_loader-frames")
        shapes = {pixels.shape[1:] for _, pixels, _ in found}
        if len(shapes) > 1:
            raise DataError(f"camera {camera!r}: frames differ in size: {sorted(shapes)}; pass size=(height, width)")
        out = np.empty((*flat.shape, *(next(iter(shapes)) if shapes else (0, 0, 3))), np.uint8)
        for rows, pixels, inverse in found:
            out[rows] = pixels[inverse]
        out = out.reshape(*times.shape, *out.shape[2:])
        if isinstance(given, np.ndarray):
            return out
        import torch  # noqa: PLC0415  (the batch has tensors)

        return torch.from_numpy(out).to(given.device)

    def _decoded(self, path: str, times: npt.NDArray[np.float64], size: tuple[int, int] | None) -> Any:
        """Return the frames of a file at these times, uint8 ``[times, height, width, 3]``."""
        try:
            with self._decoders.decoder(self._opened(path)) as decoder:
                pixels, found = decoder.frames(times, size)
        except BlobProblem as error:
            raise DataError(f"{path}: {error}") from error
        far = np.abs(found - times)
        if len(far) and far.max() > 0.5 / self.fps:
            at = int(far.argmax())
            raise DataError(f"{path}: the frame nearest to {times[at]:.4f} s is at {found[at]:.4f} s")
        return pixels

    @staticmethod
    def _opened(path: str) -> LocalFile:
        try:
            return LocalFile(path, None)
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _info(root: Path) -> dict[str, Any]:
    """Read ``meta/info.json``.

    Raises:
        SourceError: The file is missing, or is not the metadata of a data set of LeRobot.
        UnsupportedError: The data set has another version.
    """
    path = root / "meta" / "info.json"
    try:
        info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror}); pass the local directory of a data set of LeRobot"
        ) from error
    except ValueError as error:
        raise SourceError(f"{path}: is not JSON: {error}") from error
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if not isinstance(version, str):
        raise SourceError(f"{path}: has no codebase_version; a data set of LeRobot has one")
    if not version.startswith("v3."):
        is_older = version.startswith(("v1.", "v2."))
        remedy = "convert it with LeRobot's convert_dataset_v21_to_v30" if is_older else "a newer release may read it"
        raise UnsupportedError(f"{path}: the data set has version {version}, this reads version 3; {remedy}")
    fps, features = info.get("fps"), info.get("features")
    is_number = isinstance(fps, int | float) and not isinstance(fps, bool) and 0 < fps < float("inf")
    if not is_number or not isinstance(features, dict) or not all(isinstance(f, dict) for f in features.values()):
        raise SourceError(f"{path}: fps is {fps!r}, and features are {features!r:.80}; expected a number, and a dict")
    return info


def _tasks(root: Path) -> list[str]:
    """Return the texts of ``meta/tasks.parquet`` by their numbers."""
    path = root / "meta" / "tasks.parquet"
    if not path.exists():
        return []
    table = _table(path)
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(texts) != 1:
        raise SourceError(f"{path}: has columns {table.column_names}; expected task_index, and the texts")
    found = dict(zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True))
    if sorted(found) != list(range(len(found))):
        raise SourceError(f"{path}: task_index is {sorted(found)!r:.80}; expected numbers from 0")
    return [found[number] for number in range(len(found))]


def _videos(root: Path, info: dict[str, Any], cameras: Sequence[str]) -> VideoFrames:
    """Return the files and times of each episode's frames, from ``meta/episodes``."""
    files = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise SourceError(f"{root / 'meta' / 'episodes'}: there are no Parquet files")
    names = ["episode_index", "length"]
    names += [f"videos/{camera}/{name}" for camera in cameras for name in _OF_CAMERA]
    types = {name: pa.float64() if name.endswith("/from_timestamp") else pa.int64() for name in names}
    table = pa.concat_tables([_numbers(file, types) for file in files])
    table = table.sort_by("episode_index")
    numbers = {name: table[name].to_numpy() for name in names}
    ids = numbers["episode_index"]
    if (np.diff(ids) <= 0).any():
        raise SourceError(f"{root / 'meta' / 'episodes'}: an episode_index is there twice")
    paths: dict[str, int] = {}
    parts = {}
    for camera in cameras:
        chunk, file, begin = (numbers[f"videos/{camera}/{name}"] for name in _OF_CAMERA)
        named = [_path(root, info, camera, c, f) for c, f in zip(chunk.tolist(), file.tolist(), strict=True)]
        path = np.array([paths.setdefault(name, len(paths)) for name in named], np.int64)
        parts[camera] = FilePart(path, begin)
    return VideoFrames(float(info["fps"]), ids, numbers["length"], tuple(paths), parts)


def _numbers(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Read columns of numbers of a file of metadata.

    Raises:
        SourceError: As `_table`, or a value has another type.
    """
    table = _table(path, list(types))
    arrays = []
    for name, kind in types.items():
        try:
            arrays.append(table[name].cast(kind))
        except pa.ArrowException as error:
            raise SourceError(f"{path}: column {name!r} does not hold {kind}: {error}") from error
    return pa.table(arrays, names=list(types))


def _table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file of metadata.

    Raises:
        SourceError: It cannot be read, lacks a column, or has a null.
    """
    try:
        schema = pq.read_schema(path)
        missing = [name for name in columns or () if name not in schema.names]
        if missing:
            raise SourceError(f"{path}: has no column {missing[0]!r}")
        table = pq.read_table(path, columns=None if columns is None else list(columns), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    for name in table.column_names:
        if table[name].null_count:
            raise SourceError(f"{path}: column {name!r} has nulls")
    return table


def _path(root: Path, info: Mapping[str, Any], camera: str, chunk: int, file: int) -> str:
    """Return the path of a video file.

    Raises:
        SourceError: The metadata has no valid path.
    """
    pattern = info.get("video_path")
    relative = PurePosixPath("..")
    with suppress(ValueError, IndexError, KeyError):
        names = {name for _, name, _, _ in string.Formatter().parse(pattern if isinstance(pattern, str) else "")}
        if isinstance(pattern, str) and names <= {None, "video_key", "chunk_index", "file_index"}:
            relative = PurePosixPath(pattern.format(video_key=camera, chunk_index=chunk, file_index=file))
    if relative.is_absolute() or ".." in relative.parts:
        raise SourceError(f"meta/info.json: video_path is {pattern!r:.120}; expected a relative path")
    return str(root / relative)
