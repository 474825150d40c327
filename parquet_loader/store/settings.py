"""The settings of a store, stored next to the data and in each file's footer; either copy suffices."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, TypeAlias

from parquet_loader.common import is_number, parse_bytes, unfit_call
from parquet_loader.errors import ConfigurationError, SchemaError, SourceError
from parquet_loader.schema import Schema
from parquet_loader.store.files.file_names import new_identity
from parquet_loader.store.files.stored_file import FOOTER_KEY, StoredFile
from parquet_loader.write import WriteOptions

FORMAT = 1
EvictionWord = Literal["oldest", "random", "seen", "priority", "never"]
EVICTION_WORDS = ("oldest", "random", "seen", "priority", "never")
Eviction: TypeAlias = EvictionWord | Callable[[StoredFile], float]

_FILE_BYTES = 8 * 2**20
_MOST_FILE_BYTES = 32 * 2**20
_MOST_FILES = 8192
_FEWEST_FILES = 64


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store's files are cut.

    Args:
        file_bytes: A file is published when it holds about this many bytes. None for 8 MiB; more (up to 32 MiB) if
            ``max_bytes`` would be more than 8192 files, less if it would be fewer than 64.
        row_group_bytes: Decoded size of a row group; None for ``file_bytes``, so that a file holds one. A file may be
            evicted when its last row group is delivered. With one row group in each file, half of the store may be
            evicted during an epoch, on average; with several, less.
        roll_s: A file is published at most this many seconds after its first row was written.
        compression: As in `WriteOptions`.
        durable: Whether to force each file to the disk before it is published, so that a power cut loses no published
            file. A killed process never does.
    """

    file_bytes: int | str | None = None
    row_group_bytes: int | str | None = None
    roll_s: float = 30.0
    compression: str = "lz4"
    durable: bool = True

    def __post_init__(self) -> None:
        for name in ("file_bytes", "row_group_bytes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(getattr(self, name), name))
        object.__setattr__(self, "roll_s", check_seconds("roll_s", self.roll_s))
        WriteOptions(compression=self.compression)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings that all processes share.

    Attributes:
        identity: 32 hexadecimal digits drawn when the store was made.
        schema: The schema of the columns.
        max_bytes: The most bytes of all published files and files being written; None for no limit.
        evict: The policy of eviction; ``"function"`` means a function that only some processes have.
        options: How files are cut.
    """

    identity: str
    schema: Schema
    max_bytes: int | None
    evict: str
    options: StoreOptions

    @property
    def tag(self) -> str:
        """The part of the identity that file names carry."""
        return self.identity[:8]

    @property
    def file_bytes(self) -> int:
        """Bytes of a full file."""
        if self.options.file_bytes is not None:
            return int(self.options.file_bytes)
        if self.max_bytes is None:
            return _FILE_BYTES
        large = min(max(_FILE_BYTES, self.max_bytes // _MOST_FILES), _MOST_FILE_BYTES)
        return max(1, min(large, self.max_bytes // _FEWEST_FILES))

    @property
    def row_group_bytes(self) -> int:
        """Decoded bytes of a full row group."""
        if self.options.row_group_bytes is not None:
            return int(self.options.row_group_bytes)
        return self.file_bytes

    def to_json(self) -> str:
        """Return the settings as JSON text."""
        body = {"format": FORMAT, "identity": self.identity, "schema": self.schema.to_json()}
        body |= {"max_bytes": self.max_bytes, "evict": self.evict, "options": asdict(self.options)}
        return json.dumps(body)

    def footer(self, writer: str, priority: float, metadata: Mapping[str, str]) -> dict[bytes, bytes]:
        """Return the footer metadata of a file of the store; arguments as in `SampleStore.writer`."""
        about = {"store": self.identity, "settings": self.to_json(), "writer": writer}
        return {FOOTER_KEY: json.dumps({**about, "priority": priority, "metadata": dict(metadata)}).encode("utf-8")}

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Self:
        """Return the settings of a text made by `to_json`.

        Raises:
            SourceError: The text is not a store's settings, or has an unknown format.
        """
        try:
            body = json.loads(text)
            if body["format"] != FORMAT:
                raise SourceError(
                    f"{where}: the store has format {body['format']!r}, this library knows {FORMAT}; upgrade it"
                )
            identity, evict, max_bytes = body["identity"], body["evict"], body["max_bytes"]
            if not isinstance(identity, str) or len(identity) != 32 or evict not in (*EVICTION_WORDS, "function"):
                raise SourceError(f"{where}: not the settings of a sample store")
            if max_bytes is not None:
                max_bytes = parse_bytes(max_bytes, "max_bytes")
            return cls(identity, Schema.from_json(body["schema"]), max_bytes, evict, StoreOptions(**body["options"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{where}: not the settings of a sample store: {error}") from error


def settings_of_footer(text: bytes, where: str) -> StoreSettings:
    """Return the settings in a published file's footer; raises as `StoreSettings.from_json`."""
    body = json.loads(text)
    return StoreSettings.from_json(body["settings"], where)


def new_settings(
    schema: Schema, max_bytes: int | str | None, evict: Eviction | None, options: StoreOptions | None
) -> StoreSettings:
    """Return the settings of a new store."""
    limit = None if max_bytes is None else parse_bytes(max_bytes, "max_bytes")
    identity = new_identity() + new_identity()
    return StoreSettings(identity, schema, limit, eviction_word(evict or "oldest"), options or StoreOptions())


def changed_settings(
    settings: StoreSettings,
    path: str,
    *,
    schema: Schema | None,
    max_bytes: int | str | None,
    evict: Eviction | None,
    options: StoreOptions | None,
) -> StoreSettings:
    """Return the settings of a store that is opened with these arguments; None keeps a setting.

    Raises:
        SchemaError: The store has another schema.
    """
    if schema is not None:
        schema = schema.as_stored(settings.schema)
    if schema is not None and list(schema.items()) != list(settings.schema.items()):
        names = [n for n in {**settings.schema, **schema} if settings.schema.get(n) != schema.get(n)]
        name = next(iter(names), next(iter(schema)))
        there, given = (s.get(name) or "no such field" for s in (settings.schema, schema))
        raise SchemaError(
            f"{path}: for {name!r} the store's schema has {there}, the one given has {given}; "
            "leave schema= out, or make another store"
        )
    if schema is not None:
        settings = replace(settings, schema=schema)  # the treatment of extra columns may change
    if max_bytes is not None:
        settings = replace(settings, max_bytes=parse_bytes(max_bytes, "max_bytes"))
    if evict is not None:
        settings = replace(settings, evict=eviction_word(evict))
    return settings if options is None else replace(settings, options=options)


def eviction_word(evict: Any) -> str:
    """Return the word by which the settings name a policy.

    Raises:
        ConfigurationError: It is neither a known word nor a function of one argument.
    """
    if callable(evict):
        if (unfit := unfit_call(evict, None)) is not None:
            raise ConfigurationError(f"evict={evict!r:.80}: is called with a StoredFile, and {unfit}; take it")
        return "function"
    if evict not in EVICTION_WORDS:
        raise ConfigurationError(
            f"evict={evict!r}: expected {', '.join(map(repr, EVICTION_WORDS))}, or a function of a StoredFile that "
            "returns a number (the least goes first)"
        )
    return str(evict)


def check_seconds(name: str, value: Any) -> float:
    """Return a number, of seconds or of epochs, greater than 0.

    Raises:
        ConfigurationError: It is not such a number.
    """
    if not is_number(value) or not 0 < value < 1e9:
        unit = " of seconds" if name.endswith("_s") else ""
        raise ConfigurationError(f"{name}={value!r}: expected a number{unit} greater than 0")
    return float(value)
