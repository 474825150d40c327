"""Petastorm's own examples with the import changed, and nothing else.

    python -m pip download --no-deps petastorm==0.13.1
    python tests/interop/petastorm_examples.py petastorm-0.13.1-py2.py3-none-any.whl DIRECTORY

The wheel holds the package `examples` and, as its description, the README. Both are written to DIRECTORY: `examples`
file by file, and the README's Python blocks as `readme_1.py`, `readme_2.py` and so on. They are Petastorm's, under the
Apache License 2.0, and no part of this repository.
"""

from __future__ import annotations

import re
import sys
import textwrap
import zipfile
from pathlib import Path

_IMPORT = re.compile(r"^(\s*)(from|import) petastorm\b", re.MULTILINE)
_BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:[ \t]+\S.*\n|[ \t]*\n)+)", re.MULTILINE)


def with_our_import(text: str) -> str:
    """Return a script in which every import of `petastorm` is one of `parquet_loader.petastorm`."""
    return _IMPORT.sub(r"\1\2 parquet_loader.petastorm", text)


def readme_blocks(description: str) -> list[str]:
    """Return the Python blocks of the README.

    In one of them a line stands one column too far to the right for Python; it is moved back.
    """
    blocks = (textwrap.dedent(found.group(1)).strip() + "\n" for found in _BLOCK.finditer(description))
    return [re.sub(r"^ (?=\S)", "", block, flags=re.MULTILINE) for block in blocks]


def unpack(wheel: Path, folder: Path) -> list[str]:
    """Write the examples to a directory, the import changed; return the names of the files in which it was."""
    changed = []
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.startswith("examples/")}
        description = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        blocks = readme_blocks(archive.read(description).decode())
    texts |= {f"readme_{number}.py": block for number, block in enumerate(blocks, 1)}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(with_our_import(text), encoding="utf-8")
        if with_our_import(text) != text:
            changed.append(name)
    return changed


if __name__ == "__main__":
    sys.stdout.write("\n".join(unpack(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
