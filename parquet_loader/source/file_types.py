"""Classifies file names: Parquet, another format or unknown; hidden or not; glob patterns."""

from __future__ import annotations

import fnmatch
import re
from typing import Literal
from urllib.parse import unquote

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

# Suffixes of other formats, and of unfinished, outdated and non-data files.
_OTHER = re.compile(
    r"7z|arrow|avi|avro|bak|bib|bmp|bz2|c|cfg|ckpt|conf|cpp|crc|crdownload|css|csv|db|doc|docx|duckdb|ducklake|egg"
    r"|feather|flac|gif|gitattributes|gitignore|go|h|h5|hdf5|htm|html|inprogress|ini|ipynb|java|jpeg|jpg|js|json"
    r"|json5|jsonl|ldb|lease|lock|log|m4a|md|md5|mov|mp3|mp4|mpg|msgpack|ndjson|npy|npz|ogg|old|onnx|orc|orig"
    r"|partial|pdf|pickle|pkl|png|pptx|proto|ps1|psv|pt|pth|py|pyc|rar|rst|rtf|safetensors|scala|sh|sha1|sha256|sql"
    r"|sqlite|svg|swp|tab|tar|temp|tfrecord|tgz|tif|tiff|tmp|toml|ts|tsv|txt|wav|webm|webp|xls|xlsx|xml|yaml|yml"
    r"|zip"
)
_COMPRESSIONS = frozenset(("br", "brotli", "bz2", "gz", "gzip", "lz4", "lzo", "snappy", "xz", "zst", "zstd"))
_OTHER_NAMES = ("_$folder$", "._copying_", "~")


def kind_of(name: str) -> Literal["parquet", "other", "unknown"]:
    """Return a file's format by its name; if ``"unknown"``, its bytes have to decide."""
    name = name.lower()
    if name.endswith(PARQUET_SUFFIXES):
        return "parquet"
    if name.endswith(_OTHER_NAMES):
        return "other"
    stem, dot, suffix = name.rpartition(".")
    if dot and suffix in _COMPRESSIONS and "." in stem:
        if stem.endswith(PARQUET_SUFFIXES):
            return "unknown"
        suffix = stem.rpartition(".")[2]
    return "other" if dot and _OTHER.fullmatch(suffix) else "unknown"


def is_hidden(name: str) -> bool:
    """Whether the name of a file or directory hides it from readers; as for Spark, ``_key=value`` does not."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def has_magic(ends: tuple[bytes, bytes]) -> bool:
    """Whether the first or the last four bytes of a file are Parquet's magic bytes; one of the two may be damaged."""
    return any(end in (b"PAR1", b"PARE") for end in ends)


def hive_pairs(folders: list[str]) -> tuple[tuple[str, str | None], ...]:
    """Return the keys and values of directories named ``key=value``; None for Hive's null, unless it is escaped.

    Escaped bytes that are not UTF-8 become surrogates, which no other text holds.
    """
    pairs: list[tuple[str, str | None]] = []
    for folder in folders:
        key, equals, value = folder.partition("=")
        if equals and key:
            text = None if value == HIVE_NULL else unquote(value, errors="surrogateescape")
            pairs.append((unquote(key, errors="surrogateescape"), text))
    return tuple(pairs)


def is_hive_folder(name: str) -> bool:
    """Whether a directory's name is ``key=value``."""
    return name.find("=") > 0


def common_folder(folders: list[str]) -> str:
    """Return the deepest directory that contains, or is, each of these directories."""
    parts = [folder.split("/") for folder in folders]
    first, last = min(parts), max(parts)
    count = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return "/".join(first[:count]) or ("/" if folders[0].startswith("/") else "")


def is_pattern(path: str) -> bool:
    """Whether a path holds characters of a glob."""
    return any(character in path for character in "*?[")


def glob_base(pattern: str) -> str:
    """Return the deepest directory that contains all matches of a glob."""
    first = min(pattern.find(c) for c in "*?[" if c in pattern)
    head, slash, _ = pattern[:first].rpartition("/")
    return head or slash


def glob_regex(pattern: str) -> str:
    """Translate a glob: ``*``, ``?`` and ``[]`` stay within a name, ``**`` spans directories.

    A match of a directory selects everything below it.
    """
    *folders, last = pattern.split("/")
    parts = ["(?:[^/]+/)*" if segment == "**" else name_regex(segment) + "/" for segment in folders]
    return "".join(parts) + ("[^/]+" if last == "**" else name_regex(last)) + "(?:/.*)?$"


def name_regex(segment: str) -> str:
    """Translate the glob of one name; an unclosed bracket is a literal character."""
    out: list[str] = []
    for part in re.findall(r"\*+|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[", segment):
        if part.startswith("*"):
            out.append("[^/]*")
        elif part == "?":
            out.append("[^/]")
        elif part.startswith("[") and len(part) > 1:
            choice = fnmatch.translate(part).removeprefix("(?s:").removesuffix(")\\Z").removesuffix(")\\z")
            out.append(f"(?!/){choice}")
        else:
            out.append(re.escape(part))
    return "".join(out)
