"""Compares decoding audio and video by a loader and by hand, on two threads.

    python -m benchmarks.recordings [--rounds 7]

By hand means soundfile and soxr over bytes in memory, and over the same files PyAV, from the key frame before each
clip, and torchcodec if it is installed. The loader also reads Parquet and shuffles. All take turns. Also prints the
bytes that clips read from files, compared with the bytes of the groups of pictures that hold them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from parquet_loader import Audio, BatchedDataLoader, Bytes, OutputOptions, Schema, Video, write_dataset
from parquet_loader.decode import RangeFile, decode_clips
from tests.support.media import sound, tones, video

ROWS = {"audio": 768, "video": 96}
SECONDS, FRAMES, STEP, SIDE = 5, 8, 2, 112
THREADS = 2


def rate_of(work: Callable[[], int]) -> float:
    """Return the rows a second."""
    began = time.perf_counter()
    rows = work()
    return rows / (time.perf_counter() - began)


def compare(
    name: str, by_hand: dict[str, Callable[[int], None]], loaders: dict[str, BatchedDataLoader], rounds: int
) -> None:
    """Print the rates of loaders relative to decoding by hand, one row after another."""
    rows = len(next(iter(loaders.values())).dataset)
    pool = ThreadPoolExecutor(THREADS)

    def decoded(one: Callable[[int], None]) -> int:
        return len(list(pool.map(one, range(rows))))

    def epoch(loader: BatchedDataLoader) -> int:
        return sum(len(next(iter(batch.values()))) for batch in loader)

    works = {key: partial(decoded, one) for key, one in by_hand.items()}
    works |= {key: partial(epoch, loader) for key, loader in loaders.items()}
    rates: dict[str, list[float]] = {key: [] for key in works}
    for _ in range(rounds):
        for key, work in works.items():
            work()  # a loader that has been waiting has read ahead
            rates[key].append(rate_of(work))
    for key in loaders:
        for hand in by_hand:
            ratio = statistics.median(ours / theirs for ours, theirs in zip(rates[key], rates[hand], strict=True))
            medians = [statistics.median(rates[which]) for which in (key, hand)]
            print(f"{name}, {key}: {medians[0]:,.0f} rows/s, {hand} {medians[1]:,.0f}, ratio {ratio:.2f}")
    for loader in loaders.values():
        loader.close()


def opened(path: str, schema: Schema) -> BatchedDataLoader:
    """Return a shuffled loader that delivers numpy arrays."""
    numpy_arrays = OutputOptions(format="numpy")
    return BatchedDataLoader(path, 8, schema=schema, num_threads=THREADS, shuffle=True, output_options=numpy_arrays)


def audio(rounds: int) -> None:
    """Compare recordings of 5 s."""
    soundfile, soxr = importlib.import_module("soundfile"), importlib.import_module("soxr")
    rng = np.random.default_rng(0)
    for format_, stored, wanted in (
        ("FLAC", 16000, 16000),
        ("MP3", 16000, 16000),
        ("WAV", 16000, 16000),
        ("FLAC", 44100, 16000),
    ):
        noise = rng.normal(0, 0.02, (16, SECONDS * stored, 1)).astype(np.float32)
        files = [sound(tones(SECONDS, stored, seed=n) + noise[n], stored, format_) for n in range(16)]
        rows = [files[n % 16] for n in range(ROWS["audio"])]
        path = f"{format_}-{stored}"
        write_dataset([{"sound": row} for row in rows], path, Schema({"sound": Bytes()}))

        def by_hand(row: int, rows: list[bytes] = rows, wanted: int = wanted) -> None:
            samples, rate = soundfile.read(io.BytesIO(rows[row]), dtype="float32")
            if rate != wanted:
                soxr.resample(samples, rate, wanted)

        loader = opened(path, Schema({"sound": Audio(wanted, seconds=SECONDS)}))
        compare(f"{format_}, {stored} to {wanted} Hz", {"by hand": by_hand}, {"column": loader}, rounds)


def videos(rounds: int) -> None:
    """Compare clips of 8 frames of 320 x 240, H.264, a key frame every second."""
    av = importlib.import_module("av")
    film = video(300, size=(240, 320), key_every=30, noise=12.0, options={"preset": "veryfast"})
    rows = range(ROWS["video"])
    write_dataset([{"film": film} for _ in rows], "column", Schema({"film": Bytes()}))
    field = {size: Video(FRAMES, (SIDE, SIDE), step=STEP, storage=size) for size in ("bytes", "path")}
    write_dataset([{"film": f"films/{n}.mp4"} for n in rows], "files", Schema({"film": field["path"]}))
    Path("files/films").mkdir()
    for n in rows:
        Path(f"files/films/{n}.mp4").write_bytes(film)

    def clip(row: int) -> range:
        begin = 37 * row % (300 - (FRAMES - 1) * STEP)
        return range(begin, begin + FRAMES * STEP, STEP)

    def by_pyav(row: int) -> None:
        frames = clip(row)
        wanted = set(frames)
        with av.open(f"files/films/{row}.mp4") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            container.seek(int(frames[0] / 30 / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                number = round(float(frame.pts * stream.time_base) * 30)
                if number in wanted:
                    frame.reformat(width=SIDE, height=SIDE, format="rgb24", interpolation="BILINEAR").to_ndarray()
                    wanted.remove(number)
                if not wanted:
                    break

    def by_torchcodec(row: int) -> None:
        resized = [importlib.import_module("torchcodec.transforms").Resize((SIDE, SIDE))]
        open_video = importlib.import_module("torchcodec.decoders").VideoDecoder
        open_video(f"files/films/{row}.mp4", num_ffmpeg_threads=1, transforms=resized).get_frames_at(list(clip(row)))

    by_hand: dict[str, Callable[[int], None]] = {"PyAV": by_pyav}
    if importlib.util.find_spec("torchcodec") is None:
        print("torchcodec is not installed")
    else:
        by_hand["torchcodec"] = by_torchcodec
    loaders = {
        "files": opened("files", Schema({"film": field["path"]})),
        "column": opened("column", Schema({"film": field["bytes"]})),
    }
    compare(f"H.264 of {len(film) * 8 / 1e7:.1f} Mbit/s", by_hand, loaders, rounds)
    with av.open(io.BytesIO(film)) as container:
        packets = [(p.size, p.is_keyframe) for p in container.streams.video[0].index_entries]
    keys = [number for number, packet in enumerate(packets) if packet[1]]
    ratios = []
    for word in range(16):
        file = RangeFile(lambda begin, count: film[begin : begin + count], len(film))
        _, times = decode_clips(file, field["bytes"], word * 2**60)
        first, last = round(times[0] * 30), round(times[-1] * 30)
        groups = slice(max(k for k in keys if k <= first), min([k for k in keys if k > last], default=len(packets)))
        ratios.append(file.bytes_read / sum(size for size, _ in packets[groups]))
    print(f"bytes read of a file / bytes of the groups: median {statistics.median(ratios):.2f}, most {max(ratios):.2f}")


def main() -> None:
    """Measure in an empty directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        audio(rounds)
        videos(rounds)


if __name__ == "__main__":
    main()
