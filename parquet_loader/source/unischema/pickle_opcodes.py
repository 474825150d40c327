"""Parses a pickle into opcodes, and checks all arguments before any opcode is interpreted.

Opcodes and the lengths of their arguments are those of Python's `pickletools`. The result is plain data: no codec,
module or callable is looked up, and no argument allocates more than the bytes from which it was read.
"""

from __future__ import annotations

import codecs
import pickletools
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

from parquet_loader.errors import DataError
from parquet_loader.source.unischema.allowlist import LISTED, AllowedName

MAX_BYTES = 64 * 2**20
MAX_OBJECTS = 2_000_000
MAX_STACK = 100_000
MAX_DIGITS = 100
HIGHEST_PROTOCOL = 5

Op: TypeAlias = tuple[str, Any, int]
"""Name, argument, position in the pickle."""


def refuse(reason: str, position: int | None = None) -> NoReturn:
    """Raise the error of a refused pickle."""
    offset = "" if position is None else f" (at byte {position})"
    raise DataError(f"the pickled metadata is refused: {reason}{offset}")


def check_name(module: str, name: str, position: int) -> AllowedName:
    """Return the allowed name.

    Raises:
        DataError: the name is not allowed.
    """
    found = LISTED.get((module, name))
    if found is None:
        refuse(f"it names {f'{module}.{name}'!r:.100}, which is not on the list of what Petastorm writes", position)
    return found


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\n", at)
    if end < 0:
        refuse("it ends in the middle of a line", at)
    return data[at:end], end + 1


def _raw_argument(data: bytes, at: int, kind: pickletools.ArgumentDescriptor) -> tuple[bytes, int]:
    """Return the bytes of an opcode's argument without a length before them, and where it ends."""
    if kind.n == pickletools.UP_TO_NEWLINE:
        return _line(data, at)
    length = kind.n
    if kind.n in _LENGTHS:
        layout = _LENGTHS[kind.n]
        _check_left(data, at, layout.size)
        (length,), at = layout.unpack_from(data, at), at + layout.size
        if not 0 <= length <= len(data) - at:
            refuse(f"an argument claims {length} bytes, but only {len(data) - at} are left", at - layout.size)
    _check_left(data, at, length)
    return data[at : at + length], at + length


def _check_left(data: bytes, at: int, nbytes: int) -> None:
    if at + nbytes > len(data):
        refuse("it ends in the middle of an argument", at)


def _decimal(raw: bytes, at: int) -> int | bool:
    if raw in {b"00", b"01"}:
        return raw == b"01"
    digits = raw.removesuffix(b"L")
    if not digits.removeprefix(b"-").isdigit() or len(digits) > MAX_DIGITS:
        refuse(f"{raw[:20]!r} is not a number", at)
    return int(digits)


def _index(raw: bytes, at: int) -> int:
    if not raw.isdigit() or len(raw) > 10:
        refuse(f"{raw[:20]!r} is not an index of the memo", at)
    return int(raw)


def _float(raw: bytes, at: int) -> float:
    try:
        if len(raw) <= MAX_DIGITS and b"_" not in raw:
            return float(raw)
    except ValueError:
        pass
    refuse(f"{raw[:20]!r} is not a number", at)


def _long(raw: bytes, at: int) -> int:
    if len(raw) > MAX_DIGITS // 2:
        refuse(f"a number has {len(raw)} bytes; at most {MAX_DIGITS // 2} are read", at)
    return int.from_bytes(raw, "little", signed=True)


def _utf8(raw: bytes, at: int) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        refuse("its text is not UTF-8", at)


def _raw_unicode(raw: bytes, at: int) -> str:
    try:
        return codecs.raw_unicode_escape_decode(raw)[0]
    except UnicodeDecodeError as error:
        refuse(f"a str has a damaged escape: {error.reason}", at)


def _quoted(raw: bytes, at: int) -> str:
    """Undo Python 2's `repr` of a str."""
    if len(raw) < 2 or raw[:1] not in {b"'", b'"'} or raw[:1] != raw[-1:]:
        refuse("a str has no quotes", at)
    text = raw[1:-1]
    known = _ESCAPED.match(text)
    if known is None or known.end() != len(text):  # of others, Python's decoder warns
        damaged = text[known.end() :] if known is not None else text
        refuse(f"a str has the unknown escape {damaged[:4]!r}", at)
    return str(bytes(codecs.escape_decode(text)[0]), "latin-1")


_ESCAPED = re.compile(rb"(?:[^\\]|\\[\\'\"abfnrtv]|\\x[0-9a-fA-F]{2})*+", re.DOTALL)
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: struct.Struct("<B"),
    pickletools.TAKEN_FROM_ARGUMENT4: struct.Struct("<i"),
    pickletools.TAKEN_FROM_ARGUMENT4U: struct.Struct("<I"),
    pickletools.TAKEN_FROM_ARGUMENT8U: struct.Struct("<Q"),
}
_READERS: dict[str, Callable[[bytes, int], Any]] = {
    "INT": _decimal,
    "LONG": _decimal,
    "LONG1": _long,
    "LONG4": _long,
    "BININT": lambda raw, _: int.from_bytes(raw, "little", signed=True),
    "FLOAT": _float,
    "BINFLOAT": lambda raw, _: struct.unpack(">d", raw)[0],
    "STRING": _quoted,
    "BINSTRING": lambda raw, _: raw.decode("latin-1"),
    "SHORT_BINSTRING": lambda raw, _: raw.decode("latin-1"),
    "UNICODE": _raw_unicode,
    "BINUNICODE": _utf8,
    "SHORT_BINUNICODE": _utf8,
    "BINUNICODE8": _utf8,
    "BINBYTES": lambda raw, _: raw,
    "SHORT_BINBYTES": lambda raw, _: raw,
    "BINBYTES8": lambda raw, _: raw,
    "PUT": _index,
    "GET": _index,
}
"""What makes a value of the bytes of an opcode's argument; of other opcodes they are an unsigned number."""
_OPCODES = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_OP_NAMES = {"NEWTRUE": "TRUE", "NEWFALSE": "FALSE", "NONE": "VALUE", "BININT1": "VALUE", "BININT2": "VALUE"}
_OP_NAMES |= {name: "VALUE" for name in _READERS if name not in ("PUT", "GET")}
_OP_NAMES |= {"BINPUT": "PUT", "LONG_BINPUT": "PUT", "BINGET": "GET", "LONG_BINGET": "GET"}
_REFUSED = frozenset(
    ("INST", "OBJ", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER")
)


def read_ops(data: bytes) -> Iterator[Op]:
    """Yield the opcodes of a pickle, each with its argument; values of all kinds are called ``VALUE``.

    Raises:
        DataError: an opcode is unknown or not allowed, an argument is truncated or too long, or there is no STOP.
    """
    at = 0
    while at < len(data):
        position = at
        opcode = _OPCODES.get(data[at])
        if opcode is None or opcode.name in _REFUSED:
            refuse(f"the opcode {opcode.name} is not allowed" if opcode else f"{data[at]:#04x} is not an opcode", at)
        name, at = opcode.name, at + 1
        argument: Any = None
        if name == "GLOBAL":
            module, at = _line(data, at)
            attribute, at = _line(data, at)
            argument = module.decode("latin-1"), attribute.decode("latin-1")
        elif opcode.arg is not None:
            raw, at = _raw_argument(data, at, opcode.arg)
            reader = _READERS.get(name)
            argument = int.from_bytes(raw, "little") if reader is None else reader(raw, position + 1)
        yield _OP_NAMES.get(name, name), argument, position
        if name == "STOP":
            if at != len(data):
                refuse(f"{len(data) - at} bytes follow its end", at)
            return
    refuse("it has no STOP opcode at its end", len(data))


def check_ops(data: bytes) -> None:
    """Parse a pickle once without building values, and refuse one that could build too many.

    Raises:
        DataError: as `read_ops`; or the pickle is too long or of a later protocol, or it reads an index of the memo
            that it has not written.
    """
    if len(data) > MAX_BYTES:
        refuse(f"it has {len(data)} bytes; at most {MAX_BYTES} are read")
    known: set[int] = set()
    memoized = 0
    for count, (name, argument, position) in enumerate(read_ops(data)):
        if count > MAX_OBJECTS:
            refuse(f"it has more than {MAX_OBJECTS} opcodes", position)
        if name == "PROTO" and argument > HIGHEST_PROTOCOL:
            refuse(f"it has protocol {argument}; the highest known is {HIGHEST_PROTOCOL}", position)
        elif name == "FRAME" and argument > len(data) - position - 9:
            refuse(f"a frame claims {argument} bytes, but only {len(data) - position - 9} are left", position)
        elif name == "GLOBAL":
            check_name(argument[0], argument[1], position)
        elif name == "PUT":
            if argument > count + 1:
                refuse(f"it writes the index {argument} of the memo after {count} opcodes", position)
            known.add(argument)
            memoized = len(known)
        elif name == "MEMOIZE":
            known.add(memoized)
            memoized = len(known)
        elif name == "GET" and argument not in known:
            refuse(f"the memo holds nothing at {argument}", position)
