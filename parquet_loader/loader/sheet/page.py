"""A contact sheet as one HTML page: no scripts, no requests, light and dark, from phones to desktops."""

from __future__ import annotations

from base64 import b64encode
from html import escape

from parquet_loader.loader.sheet.cells import Cell, Sheet, printable

# The page loads only its own content and runs no script.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
)

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2430; --soft: #55606e; --line: #dde2e8; --card: #f5f7f9;
  --wave: #2866d0; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e6eaef; --soft: #a3aebb; --line: #2c343d;
  --card: #1c2228; --wave: #6ea3ff; } }
* { box-sizing: border-box; }
body { background: var(--back); color: var(--text); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto;
  max-width: 1280px; padding: 24px 16px 48px; }
h1 { font-size: 20px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 24px 0 8px; }
.soft, dt, figcaption { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid var(--line); padding: 4px 12px 4px 0; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; } td { min-width: 110px; }
.rows { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(260px, 100%), 1fr)); }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; min-width: 0;
  padding: 10px 12px; }
article h3 { color: var(--soft); font-size: 13px; font-weight: 600; margin: 0 0 6px; }
dl { margin: 0; } dt { margin-top: 6px; } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
img, video { background: var(--line); border-radius: 4px; display: block; height: auto; max-height: 320px;
  max-width: 100%; object-fit: contain; }
img.small { image-rendering: pixelated; min-width: 96px; } audio { display: block; max-width: 100%; width: 100%; }
.frames { display: grid; gap: 4px; grid-template-columns: 1fr 1fr; } figure { margin: 0; }
svg { display: block; height: 56px; width: 100%; } svg path { fill: var(--wave); stroke: var(--wave); }
"""


def page_of(sheet: Sheet) -> str:
    """Return the page of a sheet."""
    title = f"{sheet.source or 'rows'}: {len(sheet.numbers):,} of {sheet.rows:,} rows"
    columns = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(field)}</code></td><td>{escape(batch)}</td></tr>"
        for name, field, batch in sheet.columns
    )
    rows = "".join(
        f"<article><h3>row {number:,}</h3><dl>"
        + "".join(f"<dt>{escape(printable(name))}</dt><dd>{_drawn(cell, name)}</dd>" for name, cell in cells.items())
        + "</dl></article>"
        for number, cells in zip(sheet.numbers, sheet.cells, strict=True)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="soft">drawn with seed {sheet.seed}</p>'
        '<h2>Columns</h2><div class="table"><table><tr><th>column</th><th>field</th><th>in a batch</th></tr>'
        f'{columns}</table></div><h2>Rows</h2><div class="rows">{rows}</div></body></html>\n'
    )


def _drawn(cell: Cell, name: str) -> str:
    text = escape(cell.text)
    if cell.kind == "series" or (cell.kind == "audio" and cell.points):
        text = f"{wave_of(cell)}<figcaption>{text}</figcaption>"
    elif cell.kind != "text":
        text = f"<figcaption>{text}</figcaption>"
    if not cell.media_type:
        return f"<figure>{text}</figure>" if cell.kind != "text" else text
    urls = [f"data:{cell.media_type};base64,{b64encode(media).decode('ascii')}" for media in cell.media]
    label = escape(printable(f"{name}: {cell.text}"), quote=True)
    if cell.kind == "audio":
        return (
            f'<figure>{text}<audio controls preload="metadata" src="{urls[0]}" aria-label="{label}"></audio></figure>'
        )
    if cell.kind == "video":
        player = f'<video controls muted preload="metadata" src="{urls[0]}" aria-label="{label}"></video>'
        return f"<figure>{player}{text}</figure>"
    small = ' class="small"' if max(map(len, cell.media)) < 4096 else ""
    images = "".join(f'<img{small} src="{url}" alt="{label}">' for url in urls)
    return (
        f'<figure><div class="frames">{images}</div>{text}</figure>'
        if len(urls) > 1
        else f"<figure>{images}{text}</figure>"
    )


def wave_of(cell: Cell, style: str = "") -> str:
    """Return the lowest and highest values of the steps as a filled curve, as SVG with this CSS."""
    points = cell.points
    upper = " ".join(f"{at} {-high:.3f}" for at, (_, high) in enumerate(points))
    lower = " ".join(f"{at} {-low:.3f}" for at, (low, _) in reversed(list(enumerate(points))))
    return (
        f'<svg viewBox="0 -1 {max(1, len(points) - 1)} 2" preserveAspectRatio="none" aria-hidden="true" '
        f'style="{style}" fill="currentColor" stroke="currentColor">'
        f'<path vector-effect="non-scaling-stroke" d="M{upper} L{lower} Z"/></svg>'
    )
