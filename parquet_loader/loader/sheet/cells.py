"""Rows as cells of a contact sheet. Media stay encoded; arrays that look like pictures become PNG.

The content of files is not trusted: signatures identify kinds of media, and text is shortened and stripped of control
characters.
"""

from __future__ import annotations

import io
import struct
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from parquet_loader.common import (
    SIGNATURE_BYTES,
    OutputOptions,
    ReadOptions,
    audio_kind,
    format_bytes,
    image_kind,
    shown,
    video_kind,
)
from parquet_loader.dataset import open_rows, settings_of
from parquet_loader.loader.layout.columns import becomes
from parquet_loader.loader.parquet_dataset import ParquetDataset
from parquet_loader.schema import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Field,
    Image,
    Ragged,
    Scalar,
    Schema,
    Video,
    describe,
    encode_png,
    with_nulls,
)

_MOST_TEXT = 400
_MOST_VALUE_BYTES = 8 * 2**20
_MOST_BYTES = 64 * 2**20
_POINTS = 160
_LEAST_SIDE = 8
_MOST_SIDE = 4096
_FRAMES = 4
_MOST_WORDS = 8

CellKind = Literal["text", "image", "frames", "audio", "video", "series"]
_TYPES = {
    "jpeg": "image/jpeg", "png": "image/png", "gif": "image/gif", "webp": "image/webp", "bmp": "image/bmp",
    "avif": "image/avif", "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "mp3": "audio/mpeg",
    "mp4": "video/mp4", "webm": "video/webm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a row.

    Attributes:
        kind: How it is shown.
        text: The value in words; for media, their kind and size.
        media: Encoded files: one, or for ``"frames"`` the frames as PNG.
        media_type: The type of the files, such as ``"image/png"``.
        points: For a series or recording, the lowest and the highest value of each step, from -1 to 1.
    """

    kind: CellKind
    text: str
    media: tuple[bytes, ...] = ()
    media_type: str = ""
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sheet:
    """The content of a contact sheet.

    Attributes:
        source: The source, without secrets.
        rows: Rows of the source.
        seed: The seed by which rows were drawn.
        columns: Name, field, and form in a batch of each column.
        numbers: The numbers of the rows shown.
        cells: The cells of each of these rows, by column.
    """

    source: str
    rows: int
    seed: int
    columns: tuple[tuple[str, str, str], ...]
    numbers: tuple[int, ...]
    cells: tuple[Mapping[str, Cell], ...]


def sheet_of(source: Any, *, rows: int, seed: int, columns: Sequence[str] | None = None, **options: Any) -> Sheet:
    """Return rows of a source, drawn at random, as cells.

    Args:
        source: As in `ParquetDataset`.
        rows: Number of rows; all of them if the source has fewer.
        seed: The seed by which rows are drawn.
        columns: Names to show; default: all.
        options: Other arguments of `ParquetDataset`.
    """
    data = ParquetDataset(source, columns=columns, **options)
    fields = dict(data.schema)
    as_bytes: dict[str, Field] = {name: _undecoded(field) for name, field in fields.items()}
    plain = ParquetDataset(source, Schema(with_nulls(as_bytes, set(as_bytes), "mask")), **options)
    with plain.rows(output_options=OutputOptions(format="numpy")) as reader:
        total = len(reader)
        drawn = np.sort(np.random.default_rng(seed).choice(total, min(rows, total), replace=False))
        found = reader.__getitems__(drawn.tolist())
    budget = Budget(_MOST_BYTES)
    cells = tuple(
        {name: _cell_of(row[name], row.get(f"{name}_valid"), field, budget) for name, field in fields.items()}
        for row in found
    )
    opened = open_rows(
        settings_of(data).source, filters=None, read_options=ReadOptions(), cache=None, skips=False, num_threads=1
    )
    batches = {column.name: becomes(column) for column in opened.reader.columns}
    described = tuple(
        (printable(name), printable(describe(field, most_words=_MOST_WORDS)), batches.get(name, ""))
        for name, field in fields.items()
    )
    named = source if isinstance(source, str) else ", ".join(map(str, source)) if isinstance(source, list) else ""
    return Sheet(printable(shown(named)), total, seed, described, tuple(drawn.tolist()), cells)


def printable(text: str) -> str:
    """Return text without control characters and marks that change the direction of writing."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class Budget:
    """Limits the bytes of media that a page embeds.

    Args:
        most_bytes: The most bytes of all media.
        most_side: Of arrays with a larger height or width, only every second pixel, every third, ... is drawn.
        has_players: Whether recordings and videos are embedded, too.
    """

    def __init__(self, most_bytes: int, most_side: int = _MOST_SIDE, *, has_players: bool = True) -> None:
        self._left = most_bytes
        self.most_side = most_side
        self.has_players = has_players

    def takes(self, nbytes: int) -> bool:
        """Whether so many bytes more may be embedded; if so, they count."""
        if nbytes > min(self._left, _MOST_VALUE_BYTES):
            return False
        self._left -= nbytes
        return True


def _undecoded(field: Field) -> Field:
    is_media = isinstance(field, Image | Audio | Video) or (isinstance(field, Encoded) and field.is_image)
    return Bytes(aliases=field.aliases) if is_media else field


def _cell_of(value: Any, is_valid: Any, field: Field, budget: Budget) -> Cell:
    if is_valid is not None and not np.any(is_valid):
        return Cell("text", "null")
    if isinstance(field, Category) and not isinstance(value, str | bytes) and np.ndim(value) == 0:
        return Cell("text", _cut(f"{value} ({field.vocabulary[int(value)]})"))
    if isinstance(field, Scalar) and np.ndim(value) == 0:
        return Cell("text", _cut(_scalar(value, field)))
    return cell_of(value, budget)


def cell_of(value: Any, budget: Budget) -> Cell:
    """Return a value of a batch, whose field is not known, as a cell.

    Args:
        value: Text, bytes, an array ``[...]``, a number, or a list of these.
        budget: Limits the media.
    """
    if isinstance(value, bytes):
        return _of_bytes(value, budget)
    if isinstance(value, str):
        return Cell("text", _cut(value))
    if isinstance(value, Ragged | list):
        return Cell("text", _cut(_joined(value, _MOST_TEXT)))
    value = np.asarray(value)
    return _of_array(value, budget) if value.ndim else Cell("text", _cut(_number(value)))


def _joined(values: Any, most: int) -> str:
    """Return the first values of a list in words: about `most` characters, however long it is and whatever it holds."""
    texts: list[str] = []
    for number in range(len(values)):
        if most <= 0:
            texts.append("...")
            break
        texts.append(_in_words(values[number], most))
        most -= len(texts[-1]) + 2
    return ", ".join(texts)


def _in_words(value: Any, most: int) -> str:
    if isinstance(value, str | bytes):
        return str(value[:most])
    if isinstance(value, Ragged | list) or bool(getattr(value, "shape", ())):
        return f"[{_joined(value, most)}]"
    return str(value.item() if hasattr(value, "item") else value)


def _number(value: Any) -> str:
    return f"{float(value):.7g}" if np.asarray(value).dtype.kind == "f" else str(value)


def _scalar(value: Any, field: Scalar) -> str:
    types = pa.types
    if types.is_timestamp(field.type):
        zone = " UTC" if field.type.tz else ""
        return f"{np.datetime64(int(value), field.type.unit)}{zone}"
    if types.is_date(field.type):
        return str(np.datetime64(int(value), "D" if field.arrow_type == pa.date32() else "ms"))
    if field.names and 0 <= int(value) < len(field.names):
        return f"{value} ({field.names[int(value)]})"
    return _number(value)


def _of_bytes(value: bytes, budget: Budget) -> Cell:
    head, size = value[:SIGNATURE_BYTES], format_bytes(len(value))
    if kind := image_kind(head):
        return _media("image", kind, value, f"{kind}, {size}", budget)
    if kind := audio_kind(head):
        seconds, points = _waveform(value)
        return _media("audio", kind, value, f"{kind}, {size}{seconds}", budget, points)
    if kind := video_kind(head):
        return _media("video", kind, value, f"{kind}, {size}", budget)
    return Cell("text", f"{len(value):,} bytes: {value[:16].hex(' ')}" if value else "0 bytes")


def _media(
    cell_kind: CellKind,
    kind: str,
    value: bytes,
    text: str,
    budget: Budget,
    points: tuple[tuple[float, float], ...] = (),
) -> Cell:
    if cell_kind != "image" and not budget.has_players:
        return Cell("series" if points else "text", text, points=points)
    if not budget.takes(len(value)):
        return Cell("series" if points else "text", f"{text}, too large to embed", points=points)
    return Cell(cell_kind, text, (value,), _TYPES.get(kind, ""), points)


def _waveform(value: bytes) -> tuple[str, tuple[tuple[float, float], ...]]:
    """Return the length in words and the waveform of a PCM WAV; both are empty for other recordings."""
    try:
        with wave.open(io.BytesIO(value)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(min(file.getnframes(), len(value)))
            seconds = file.getnframes() / max(1, rate)
    except (wave.Error, EOFError, ValueError, struct.error, RuntimeError):
        return "", ()
    raw = np.frombuffer(data[: len(data) // (width * channels) * width * channels], np.uint8)
    if width == 1:
        samples = raw.astype(np.float32) / 128 - 1
    elif width in (2, 4):
        samples = raw.view(f"<i{width}").astype(np.float32) / 2.0 ** (8 * width - 1)
    else:
        samples = raw.reshape(-1, width)[:, -1].view(np.int8).astype(np.float32) / 128
    points = _steps(samples.reshape(-1, channels).mean(1)) if samples.size else ()
    return f", {seconds:.3g} s, {rate:,} Hz, {channels} channel{'s' if channels > 1 else ''}", points


def _steps(values: Any) -> tuple[tuple[float, float], ...]:
    """Return the lowest and the highest value of each of at most `_POINTS` steps; NaN only for a step of NaN."""
    edges = np.linspace(0, len(values), min(_POINTS, len(values)) + 1).astype(np.int64)[:-1]
    return tuple(zip(np.fmin.reduceat(values, edges).tolist(), np.fmax.reduceat(values, edges).tolist(), strict=True))


def _of_array(value: Any, budget: Budget) -> Cell:
    text = f"{value.dtype} [{', '.join(map(str, value.shape))}]"
    if value.dtype.kind not in "biuf" or not value.size:
        return Cell("text", text)
    frames = _frames_of(value, budget.most_side)
    if frames:
        encoded = tuple(encode_png(np.ascontiguousarray(frame)) for frame in frames)
        if budget.takes(sum(map(len, encoded))):
            return Cell("frames" if len(encoded) > 1 else "image", text, encoded, "image/png")
    numbers = ", ".join(f"{number:.4g}" for number in value.reshape(-1)[:_MOST_WORDS].tolist())
    text = f"{text}: {numbers}{', ...' if value.size > _MOST_WORDS else ''}"
    if value.ndim == 1 and value.size >= _LEAST_SIDE:
        known = value if np.isfinite(value).all() else np.where(np.isfinite(value), value, np.nan)
        levels = _levels(np.array(_steps(known)))  # of the steps only, because a row may be long
        return Cell("series", text, points=tuple(map(tuple, (levels * 2 - 1).tolist())))
    return Cell("text", text)


def _frames_of(value: Any, most_side: int) -> list[Any]:
    """Return frames, uint8 ``[height, width, channels]``, of an array shaped like an image or clip; else none.

    Args:
        value: The array.
        most_side: As in `Budget`.
    """
    if value.ndim == 4 and value.shape[-1] in (1, 3, 4):
        at = np.linspace(0, len(value) - 1, min(_FRAMES, len(value))).astype(int)
        frames = [value[number] for number in at]
    elif value.ndim == 3 and value.shape[-1] in (1, 3, 4):
        frames = [value]
    elif value.ndim == 3 and value.shape[0] in (1, 3, 4):
        frames = [value.transpose(1, 2, 0)]
    elif value.ndim == 2:
        frames = [value[:, :, None]]
    else:
        return []
    if not all(_LEAST_SIDE <= side <= _MOST_SIDE for side in frames[0].shape[:2]):
        return []
    step = -(-max(frames[0].shape[:2]) // most_side)
    parts = [frame[::step, ::step] for frame in frames]
    return [part if part.dtype == np.uint8 else (_levels(part) * 255).astype(np.uint8) for part in parts]


def _levels(value: Any) -> Any:
    """Scale numbers to float64 from 0 (the lowest) to 1 (the highest); numbers that are not finite become 0."""
    value = np.nan_to_num(value.astype(np.float64), nan=np.nan, posinf=np.nan, neginf=np.nan)
    known = value[np.isfinite(value)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    return np.nan_to_num((value - low) / (high - low)) if high - low > 0 else np.zeros_like(value)


def _cut(text: str) -> str:
    return printable(text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}... ({len(text):,} characters)")
