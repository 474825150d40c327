"""Parses ``hf://datasets/ORG/NAME[@REVISION][/PATH]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from parquet_loader.errors import SourceError

PREFIX = "hf://datasets/"
_KIND = "datasets"
_FORM = "hf://datasets/ORG/NAME[@REVISION][/PATH]"
_NAME = re.compile(r"[\w.-]+")
# The Hub's own revisions contain slashes and are recognised without percent encoding.
_REFS = re.compile(r"refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A repository of a data set, a revision of it, and a path there.

    Attributes:
        repository: ``ORG/NAME``; the oldest repositories have only ``NAME``.
        revision: A branch, tag, commit, or reference like ``refs/convert/parquet``.
        path: A file, directory or glob; empty for the whole repository.
        is_explicit: Whether an ``@`` marks the end of the repository's name.
    """

    repository: str
    revision: str = "main"
    path: str = ""
    is_explicit: bool = False

    @classmethod
    def parse(cls, path: str) -> HubAddress:
        """Parse a URL without ``hf://``.

        Raises:
            SourceError: it is not the address of a data set.
        """
        kind, _, rest = path.strip("/").partition("/")
        parts = [part for part in rest.split("/") if part]
        if kind != _KIND or not parts:
            raise SourceError(f"hf://{path}: not the address of a data set; expected {_FORM}")
        if any(part in (".", "..") for part in parts):
            raise SourceError(f"hf://{path}: '.' and '..' are not part of an address; expected {_FORM}")
        marked = next((n for n, part in enumerate(parts[:2]) if "@" in part), None)
        if marked is None:
            found = cls("/".join(parts[:2]), path="/".join(parts[2:]))
        else:
            name, _, revision = parts[marked].partition("@")
            below = "/".join([revision, *parts[marked + 1 :]])
            special = _REFS.match(below)
            revision = special[0] if special else revision
            inner = below[len(revision) :].strip("/")
            if revision.startswith("~"):
                revision = f"refs/convert/{revision[1:]}"
            found = cls("/".join([*parts[:marked], name]), unquote(revision), inner, is_explicit=True)
        if not found.revision or not all(map(_NAME.fullmatch, found.repository.split("/"))):
            raise SourceError(f"hf://{path}: not the address of a data set; expected {_FORM}")
        return found

    @property
    def without_organization(self) -> HubAddress | None:
        """The address if the first name alone is the repository; None if the URL excludes that."""
        name, slash, first = self.repository.partition("/")
        if self.is_explicit or not slash:
            return None
        return HubAddress(name, self.revision, f"{first}/{self.path}".rstrip("/"), is_explicit=True)

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def root(self) -> str:
        """The path of the repository at this revision, within the file system."""
        return f"{_KIND}/{self.repository}@{quote(self.revision, safe='')}"

    def __str__(self) -> str:
        """The path within the file system."""
        return f"{self.root}/{self.path}".rstrip("/")
