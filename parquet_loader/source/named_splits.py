"""Assigns files to training, validation and test splits by name, by the rules of the Hugging Face Hub."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from parquet_loader.common import shown
from parquet_loader.errors import SourceError, nearest
from parquet_loader.source.file_types import common_folder
from parquet_loader.source.files import SourceFile

ALL = "all"

_KEYWORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_KEYWORD = re.compile(rf"(?:^|[-._ 0-9])({'|'.join(_KEYWORDS)})(?=[-._ 0-9]|$)")
# The Hub's name for a file of a split of any name. In data/ this name decides; elsewhere, where it may be that of a
# configuration, a keyword in the name decides first.
_NUMBERED = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}.*")


def select_split(
    files: Sequence[SourceFile], split: str | None, source_base: str, *, has_options: bool = True
) -> tuple[SourceFile, ...]:
    """Return the files of a split.

    Args:
        files: All files of a source.
        source_base: The directory that the source names, or that contains its files. Names above it are not of splits:
            data sets in ``/dev/shm`` are not for validation.
        split: Name of a split; ``"all"`` for all files; None for all files, if they are of one split.
        has_options: Whether the caller has the argument `split`, so that messages may name it.

    Raises:
        SourceError: no file belongs to this split; or `split` is None, and files belong to different splits.
    """
    if split == ALL or not files:
        return tuple(files)
    base = common_folder([posixpath.dirname(file.path) for file in files])
    of_folders: dict[str, str | None] = {}
    names = [_split_of(file.path, base, of_folders) for file in files]
    if split is None and not any(names):
        return tuple(files)
    numbered = [_numbered_name(file.path) for file in files]
    if split is None:
        labels = [name or other for name, other in zip(names, numbered, strict=True)]
        _refuse_mixture(files, labels, has_options=has_options)
        return tuple(files)
    wanted = canonical_split(split)
    for of_files in (names, numbered):
        chosen = tuple(file for file, name in zip(files, of_files, strict=True) if name == wanted)
        if chosen:
            return chosen
    if not any(names):
        own = base[len(posixpath.dirname(source_base)) :].lower().split("/")
        whole = next((_KEYWORDS[name] for name in reversed(own) if name in _KEYWORDS), None)
        if whole == wanted:
            return tuple(files)
        names = [whole]
    there = sorted({name for name in (*names, *numbered) if name})
    if not there:
        raise SourceError(
            f"{shown(base)}: split={split!r}: no name of a file or directory there names a split; "
            "leave split out, or name the files"
        )
    raise SourceError(f"{shown(base)}: split={split!r}: no file there is of this split. {nearest(split, there)}")


def _refuse_mixture(files: Sequence[SourceFile], names: Sequence[str | None], *, has_options: bool) -> None:
    named = [name for name in dict.fromkeys(names) if name is not None]
    if len(named) > 1 and any(map(_is_clear, named)):
        first = {name: files[names.index(name)].name for name in named}
        found = ", ".join(f"{name!r} ({first[name]})" for name in sorted(first, key=str))
        choose = (
            f"choose one with split={min(map(str, first), key=_rank)!r}, or read all of them with split='all'"
            if has_options
            else "pass the directory or files of one of them, or a list of several"
        )
        raise SourceError(f"the source mixes the splits {found}; {choose}")


def _rank(name: str) -> tuple[bool, str]:
    return "train" not in name, name


def _is_clear(name: str) -> bool:
    """Whether a name contains a keyword of a split, and does not only come from a numbered file."""
    return _classes(name.replace("+", "-")) != ""


def _split_of(path: str, base: str, of_folders: dict[str, str | None]) -> str | None:
    """Return the split of a file: by the outermost directory below `base` that names one, else by the file's name."""
    folder, _, name = path.rpartition("/")
    if folder not in of_folders:
        of_folders[folder] = next(filter(None, map(_split_of_folder, folder[len(base) :].split("/"))), None)
    if of_folders[folder] is not None:
        return of_folders[folder]
    if folder.endswith("/data") or folder == "data":
        return _numbered_name(path) or _classes(name) or None
    return _classes(name) or None


def _numbered_name(path: str) -> str | None:
    """Return the split in a file name like ``NAME-00000-of-00002.parquet``, or None."""
    numbered = _NUMBERED.fullmatch(path.rpartition("/")[2])
    return None if numbered is None else canonical_split(numbered[1])


def _split_of_folder(folder: str) -> str | None:
    key, equals, value = folder.partition("=")
    if equals:
        return canonical_split(value) if key.lower() == "split" and value else None
    return _classes(folder) or None


def _classes(name: str) -> str:
    """Return the split whose keyword is a word of the name, or "" without one; several are joined by "+"."""
    lower = name.lower()
    if not ("train" in lower or "val" in lower or "dev" in lower or "test" in lower):
        return ""
    return "+".join(sorted({_KEYWORDS[word] for word in _KEYWORD.findall(lower)}))


def canonical_split(name: str) -> str:
    """Return the canonical name of a split: ``"train"`` for ``"training"``."""
    return _KEYWORDS.get(name.lower(), name)
