"""Bars with error bars as SVG without scripts, and the page around them. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _BAR, _STEP, _LEFT, _RIGHT, _HEAD = 760, 18, 30, 190, 150, 34
_STYLE = """
svg { font: 13px system-ui, sans-serif; background: #fff; } text { fill: #1c2430; } .soft { fill: #55606e; }
.title { font-weight: 600; } .bar { fill: #2866d0; } .error { stroke: #1c2430; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) { svg { background: #14181d; } text { fill: #e6eaef; } .soft { fill: #a3aebb; }
  .bar { fill: #6ea3ff; } .error { stroke: #e6eaef; } }
"""


class Bar(NamedTuple):
    """One bar: its label, its length, the ends of its error bar, and the text behind it."""

    label: str
    value: float
    low: float
    high: float
    text: str


def bars(title: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Return an SVG file of groups of bars, all on one scale that begins at 0."""
    top = max((bar.high for _, some in groups for bar in some), default=0.0) or 1.0
    parts, y = [f'<text class="title" x="12" y="22">{escape(title)}</text>'], 44
    for name, some in groups:
        parts.append(f'<text class="soft" x="12" y="{y + 14}">{escape(name)}</text>')
        y += _HEAD - 10
        for bar in some:
            x, low, high = (_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / top for value in (bar.value, bar.low, bar.high))
            middle = y + _BAR / 2
            parts.append(f'<text x="{_LEFT - 8}" y="{middle + 5:.0f}" text-anchor="end">{escape(bar.label)}</text>')
            parts.append(
                f'<rect class="bar" x="{_LEFT}" y="{y}" width="{max(0.0, x - _LEFT):.1f}" height="{_BAR}">'
                f"<title>{escape(bar.text)}</title></rect>"
            )
            lines = ((low, middle, high, middle), (low, y + 4, low, y + _BAR - 4), (high, y + 4, high, y + _BAR - 4))
            parts += [
                f'<line class="error" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
                for x1, y1, x2, y2 in lines
            ]
            parts.append(f'<text x="{max(x, high) + 8:.1f}" y="{middle + 5:.0f}">{escape(bar.text)}</text>')
            y += _STEP
        y += 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" '
        f'aria-label="{escape(title, quote=True)}"><style>{_STYLE}</style>{"".join(parts)}</svg>\n'
    )


def bars_page(title: str, svg: str, about: str) -> str:
    """Return an HTML page around an SVG file, without scripts or requests."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>:root {{ color-scheme: light dark; }} body {{ margin: 24px auto; "
        "max-width: 900px; padding: 0 16px; font: 15px/1.5 system-ui, sans-serif; } pre { white-space: pre-wrap; }"
        f"</style></head><body>{svg}<pre>{escape(about)}</pre></body></html>\n"
    )
