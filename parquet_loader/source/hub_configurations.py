"""Refuses to mix the configurations of a Hugging Face repository, which are separate data sets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from parquet_loader.common import shown
from parquet_loader.errors import SourceError
from parquet_loader.source.file_types import common_folder, glob_regex, is_hive_folder
from parquet_loader.source.files import SourceFile

_README = "README.md"
MOST_BYTES = 2**24
_MOST_LEVELS = 3
_NAMES_SHOWN = 5
_CONVERTED = re.compile(r"([^/]+)/(?:partial-)?(?:train|validation|test)/\d{4}\.parquet")
_KEY = re.compile(r"([A-Za-z_]+):(?:\s+(.*))?$")


def refuse_configurations(
    directory: str, files: Sequence[SourceFile], has_readme: bool | None, head_of: Callable[[str], bytes]
) -> None:
    """Refuse the files below a directory if they belong to several configurations.

    There are two signs. Either the README.md of the directory, or of one of its two parents, lists several
    configurations, none of which has all files. Or the files have the names of the Hub's conversion to Parquet,
    ``CONFIGURATION/SPLIT/0000.parquet``. In a store, the parents are checked only if the directory is named ``data``,
    or the files are in several directories that are not partitions.

    Args:
        directory: The directory.
        files: The selected files, below it or elsewhere.
        has_readme: Whether a store's listing shows README.md in the directory; None for local directories.
        head_of: Returns the first `MOST_BYTES` of a file; empty if there is no such file.

    Raises:
        SourceError: they belong to several; the message names the configurations, and the files of one.
    """
    root = directory.rstrip("/")
    files = [file for file in files if file.path.startswith(f"{root}/")]
    below = [file.path[len(root) + 1 :] for file in files]
    _refuse_converted(files, below)
    folders = {path.partition("/")[0] for path in below if "/" in path}
    may_be_above = posixpath.basename(root) == "data" or (len(folders) > 1 and not all(map(is_hive_folder, folders)))
    for level in range(_MOST_LEVELS):
        is_asked = has_readme is None or (has_readme if level == 0 else not has_readme and may_be_above)
        patterns = _configurations(head_of(f"{root}/{_README}")) if is_asked else {}
        if len(patterns) > 1:
            _refuse_mixture(root, patterns, files)
            return
        root = posixpath.dirname(root)
        if not root:  # above a store's buckets
            return


def _refuse_converted(files: Sequence[SourceFile], below: Sequence[str]) -> None:
    found = [_CONVERTED.fullmatch(path) for path in below]
    first = {match[1]: file for match, file in zip(found, files, strict=True) if match}
    if all(found) and len(first) > 1 and not all(map(is_hive_folder, first)):
        names = ", ".join(map(repr, sorted(first)[:_NAMES_SHOWN])) + (", ..." if len(first) > _NAMES_SHOWN else "")
        one = posixpath.dirname(posixpath.dirname(first[min(first)].name))
        raise SourceError(
            f"the source mixes the configurations {names}, as directories like CONFIGURATION/SPLIT/0000.parquet show; "
            f"name one of them, such as {one!r}, or several in a list"
        )


def _refuse_mixture(root: str, patterns: dict[str, list[str]], files: Sequence[SourceFile]) -> None:
    below = [file.path[len(root) + 1 :] for file in files]
    found: dict[str, set[int]] = {}
    for name, globs in patterns.items():
        matches = [re.compile(glob_regex(glob.removeprefix("./"))).match for glob in globs]
        numbers = {number for number, path in enumerate(below) if any(match(path) for match in matches)}
        if numbers:
            found[name] = numbers
    if not found or any(len(numbers) == len(below) for numbers in found.values()):
        return
    first, numbers = next(iter(found.items()))
    folder = common_folder([posixpath.dirname(below[number]) for number in numbers])
    others = [path for number, path in enumerate(below) if number not in numbers]
    alone = folder and not any(path.startswith(f"{folder}/") for path in others)
    where = f"{files[0].prefix}{root}"
    one = f"{where}/{folder if alone else patterns[first][0]}"
    names = ", ".join(map(repr, list(found)[:_NAMES_SHOWN])) + (", ..." if len(found) > _NAMES_SHOWN else "")
    what = f"the configurations {names}" if len(found) > 1 else f"the configuration {names} and files of none"
    raise SourceError(
        f"the source mixes {what}, which {shown(where)}/{_README} lists as data sets of their own; name the files of "
        f"one, such as {shown(one)!r}, or those of several in a list"
    )


def _configurations(readme: bytes) -> dict[str, list[str]]:
    """Return the globs of each configuration in the metadata block of a README.md; empty without one."""
    first, _, rest = readme.partition(b"\n")
    if first.strip() != b"---":
        return {}
    return _globs_of(re.split(r"^---\s*$", rest.decode("utf-8", "replace"), maxsplit=1, flags=re.MULTILINE)[0])


def _globs_of(metadata: str) -> dict[str, list[str]]:
    """Parse ``configs`` from the subset of YAML that the Hub writes."""
    found: dict[str, list[str]] = {}
    globs: list[str] = []
    is_inside = False
    for line in metadata.splitlines():
        if line[:1] not in ("", " ", "\t", "-", "#"):
            is_inside = line.rstrip() == "configs:"
            continue
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        while text.startswith("- "):
            text = text[2:].lstrip()
        if not is_inside or not text:
            continue
        match = _KEY.fullmatch(text)
        key, value = (match[1], _unquoted(match[2] or "")) if match else ("path", _unquoted(text))
        if key == "config_name":
            globs = found.setdefault(value, [])
        elif key in ("path", "data_files", "data_dir") and value:
            globs.append(value)
    return found


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text.strip()
