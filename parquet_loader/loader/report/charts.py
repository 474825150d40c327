"""Intervals as SVG without scripts; colours come from the page's style sheet. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 760, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 10, 26
_TICKS = 4


class Series(NamedTuple):
    """One quantity of a chart.

    Attributes:
        name: Its name in the legend.
        kind: The class of its colour in the style sheet.
        values: A value for each interval.
    """

    name: str
    kind: str
    values: Sequence[float]


def chart(
    title: str,
    spans: Sequence[tuple[float, float]],
    series: Sequence[Series],
    *,
    seconds: float,
    text: Callable[[float], str],
    stacked: bool = False,
    are_bytes: bool = False,
    least_top: float = 0.0,
    limit: tuple[str, float] | None = None,
) -> str:
    """Return a figure with a legend: steps over time, filled below; hovering shows the values.

    Args:
        title: The caption.
        spans: Begin and end of each interval, in seconds.
        series: The quantities.
        seconds: Length of the time axis.
        text: Returns a value as text.
        stacked: Whether each quantity is stacked on the previous one.
        are_bytes: Whether the axis ends at a power of two.
        least_top: The least value at the top of the axis.
        limit: Name and value of a line to draw, or None.
    """
    columns = [list(values) for values in zip(*(one.values for one in series), strict=True)]
    highest = max((sum(column) if stacked else max(column) for column in columns), default=0.0)
    top = max(highest, least_top, 0.0 if limit is None else limit[1], 1e-12)
    top = 2.0 ** math.ceil(math.log2(top) - 1e-9) if are_bytes else _rounded(top)

    def x(at: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, at / seconds))

    def y(value: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, value / top))

    parts = []
    for tick in range(_TICKS + 1):
        value, at = top * tick / _TICKS, seconds * tick / _TICKS
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(text(value))}</text>')
        anchor = "start" if not tick else "end" if tick == _TICKS else "middle"
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{duration(at)}</text>')
    below = [0.0] * len(columns)
    for number, one in enumerate(series):
        upper = [
            low + column[number] if stacked else column[number] for low, column in zip(below, columns, strict=True)
        ]
        lower = below if stacked else [0.0] * len(columns)
        path = "".join(
            f"M{x(begin):.1f} {y(low):.1f}V{y(high):.1f}H{x(end):.1f}V{y(low):.1f}Z"
            for (begin, end), low, high in zip(spans, lower, upper, strict=True)
            if high > low
        )
        parts.append(f'<path class="{one.kind}" d="{path}"/>')
        below = upper if stacked else below
    if limit is not None:
        at = y(limit[1])
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
    for (begin, end), column in zip(spans, columns, strict=True):
        values = "".join(f"\n{one.name}: {text(value)}" for one, value in zip(series, column, strict=True))
        tip = escape(f"{duration(begin)} to {duration(end)}{values}")
        parts.append(
            f'<rect class="tip" x="{x(begin):.1f}" y="{_TOP}" width="{max(0.5, x(end) - x(begin)):.1f}" '
            f'height="{HEIGHT - _TOP - _BOTTOM}"><title>{tip}</title></rect>'
        )
    legend = [f'<span><i class="{one.kind}"></i>{escape(one.name)}</span>' for one in series]
    if limit is not None:
        legend.append(f'<span><i class="limit"></i>{escape(limit[0])}</span>')
    label = escape(f"{title}: {', '.join(one.name for one in series)} over {duration(seconds)}", quote=True)
    return (
        f'<figure><figcaption>{escape(title)}<span class="legend">{"".join(legend)}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def _rounded(value: float) -> float:
    """Return the next larger number that is easy to read: 1, 2, 4 or 8 of a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value * (1 - 1e-9))


def duration(seconds: float) -> str:
    """Return seconds as text."""
    return (
        f"{seconds * 1e3:.3g} ms" if 0 < seconds < 1 else f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    )
