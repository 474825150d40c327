"""A contact sheet as a PNG, drawn by Pillow."""

from __future__ import annotations

import importlib
import io
import textwrap
from typing import Any

from parquet_loader.errors import MissingPackageError
from parquet_loader.loader.sheet.cells import Cell, Sheet, printable

_CARD, _GAP, _LINE, _MEDIA, _WAVE = 240, 12, 17, 180, 56
_PER_LINE = 34
_MOST_LINES = 4
_BACK, _PAPER, _TEXT, _SOFT, _BLUE = (255, 255, 255), (245, 247, 249), (28, 36, 48), (85, 96, 110), (40, 102, 208)
_MOST_PIXELS = 64 * 2**20
_ACROSS = 4


def picture_of(sheet: Sheet) -> bytes:
    """Return the picture of a sheet as PNG; videos, and images that Pillow cannot read, are described in words.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    try:
        image, drawing, fonts = (importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    except ImportError:
        raise MissingPackageError(
            "a contact sheet as PNG is drawn by Pillow: pip install 'torch-parquet-loader[images]'; "
            "as HTML it needs nothing"
        ) from None
    font, bold = fonts.load_default(12), fonts.load_default(13)
    cards = [
        _card(image, drawing, font, number, cells) for number, cells in zip(sheet.numbers, sheet.cells, strict=True)
    ]
    across = max(1, min(_ACROSS, len(cards)))
    width = max(640, across * (_CARD + _GAP) + _GAP)
    head = [f"{sheet.source}: {len(sheet.numbers):,} of {sheet.rows:,} rows, seed {sheet.seed}"]
    head += [f"{name}: {field}; in a batch {batch}" for name, field, batch in sheet.columns]
    lines = [part for line in head for part in textwrap.wrap(line, (width - 2 * _GAP) // 7)]
    heights = [max(card.height for card in cards[at : at + across]) for at in range(0, len(cards), across)]
    height = _GAP + len(lines) * _LINE + _GAP + sum(tall + _GAP for tall in heights)
    page = image.new("RGB", (width, height), _BACK)
    draw = drawing.Draw(page)
    for at, line in enumerate(lines):
        draw.text((_GAP, _GAP + at * _LINE), _ascii(line), _TEXT if not at else _SOFT, font=bold if not at else font)
    top = 2 * _GAP + len(lines) * _LINE
    for line_number, tall in enumerate(heights):
        for at, card in enumerate(cards[line_number * across : (line_number + 1) * across]):
            page.paste(card, (_GAP + at * (_CARD + _GAP), top))
        top += tall + _GAP
    out = io.BytesIO()
    page.save(out, "PNG")
    return out.getvalue()


def _card(image: Any, drawing: Any, font: Any, number: int, cells: Any) -> Any:
    parts: list[tuple[Any, str]] = [(None, f"row {number:,}")]
    for name, cell in cells.items():
        media = _pictures(image, cell) or (_wave(image, drawing, cell) if cell.points else None)
        parts.append((media, printable(f"{name}: {cell.text}")))
    wrapped = [
        (media, textwrap.wrap(text, _PER_LINE, max_lines=_MOST_LINES, placeholder="...")) for media, text in parts
    ]
    height = _GAP + sum((media.height + 4 if media else 0) + _LINE * len(lines) + 2 for media, lines in wrapped)
    card = image.new("RGB", (_CARD, height), _PAPER)
    draw, top = drawing.Draw(card), _GAP // 2
    for at, (media, lines) in enumerate(wrapped):
        if media:
            card.paste(media, (_GAP // 2, top))
            top += media.height + 4
        for line in lines:
            draw.text((_GAP // 2, top), _ascii(line), _TEXT if at else _SOFT, font=font)
            top += _LINE
        top += 2
    return card


def _pictures(image: Any, cell: Cell) -> Any:
    """Return the images of a cell, side by side; None if there are none that Pillow reads."""
    if cell.kind not in ("image", "frames") or not cell.media:
        return None
    wide = (_CARD - _GAP) // len(cell.media)
    found = []
    for media in cell.media:
        try:
            one = image.open(io.BytesIO(media))
            if one.width * one.height > _MOST_PIXELS:
                return None
            one.draft("RGB", (2 * wide, 2 * _MEDIA))
            one = one.convert("RGB")
        except Exception:  # damaged images raise many kinds of errors; the text still describes the image
            return None
        one.thumbnail((wide, _MEDIA))
        found.append(one)
    strip = image.new("RGB", (sum(one.width for one in found), max(one.height for one in found)), _PAPER)
    left = 0
    for one in found:
        strip.paste(one, (left, 0))
        left += one.width
    return strip


def _wave(image: Any, drawing: Any, cell: Cell) -> Any:
    wave = image.new("RGB", (_CARD - _GAP, _WAVE), _PAPER)
    draw = drawing.Draw(wave)
    for at, (low, high) in enumerate(cell.points):
        x = at * (wave.width - 1) / max(1, len(cell.points) - 1)
        draw.line((x, (1 - high) * (_WAVE - 2) / 2, x, (1 - low) * (_WAVE - 2) / 2 + 1), _BLUE)
    return wave


def _ascii(text: str) -> str:
    """Return text for the built-in font, which has Latin letters only."""
    return text.encode("latin-1", "replace").decode("latin-1")
