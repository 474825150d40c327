"""Parses a pickle into opcodes, and checks all arguments before any opcode is interpreted.

Opcodes are those of Python's `pickletools`. The result is plain data: no codec, module or callable is looked up, and no
argument allocates more than the bytes from which it was read.
"""

from __future__ import annotations

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


def _fixed(format_: str) -> Callable[[bytes, int], tuple[Any, int]]:
    layout = struct.Struct(format_)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if at + layout.size > len(data):
            refuse("it ends in the middle of an argument", at)
        return layout.unpack_from(data, at)[0], at + layout.size

    return read


def _sized(format_: str, *, signed: bool = False) -> Callable[[bytes, int], tuple[bytes, int]]:
    length_of = _fixed(format_)

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        length, start = length_of(data, at)
        if (signed and length < 0) or length > len(data) - start:
            refuse(f"an argument claims {length} bytes, but only {len(data) - start} are left", at)
        return data[start : start + length], start + length

    return read


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\n", at)
    if end < 0:
        refuse("it ends in the middle of a line", at)
    return data[at:end], end + 1


def _utf8(read: Callable[[bytes, int], tuple[bytes, int]]) -> Callable[[bytes, int], tuple[str, int]]:
    def text(data: bytes, at: int) -> tuple[str, int]:
        raw, end = read(data, at)
        try:
            return raw.decode("utf-8", "surrogatepass"), end
        except UnicodeDecodeError:
            refuse("its text is not UTF-8", at)

    return text


def _latin1(read: Callable[[bytes, int], tuple[bytes, int]]) -> Callable[[bytes, int], tuple[str, int]]:
    def text(data: bytes, at: int) -> tuple[str, int]:
        raw, end = read(data, at)
        return raw.decode("latin-1"), end

    return text


def _long(read: Callable[[bytes, int], tuple[bytes, int]]) -> Callable[[bytes, int], tuple[int, int]]:
    def number(data: bytes, at: int) -> tuple[int, int]:
        raw, end = read(data, at)
        if len(raw) > MAX_DIGITS // 2:
            refuse(f"a number has {len(raw)} bytes; at most {MAX_DIGITS // 2} are read", at)
        return int.from_bytes(raw, "little", signed=True), end

    return number


def _decimal_line(data: bytes, at: int) -> tuple[int | bool, int]:
    raw, end = _line(data, at)
    if raw in {b"00", b"01"}:
        return raw == b"01", end
    digits = raw.removesuffix(b"L")
    if not digits.removeprefix(b"-").isdigit() or len(digits) > MAX_DIGITS:
        refuse(f"{raw[:20]!r} is not a number", at)
    return int(digits), end


def _index_line(data: bytes, at: int) -> tuple[int, int]:
    raw, end = _line(data, at)
    if not raw.isdigit() or len(raw) > 10:
        refuse(f"{raw[:20]!r} is not an index of the memo", at)
    return int(raw), end


def _float_line(data: bytes, at: int) -> tuple[float, int]:
    raw, end = _line(data, at)
    try:
        if len(raw) <= MAX_DIGITS and b"_" not in raw:
            return float(raw), end
    except ValueError:
        pass
    refuse(f"{raw[:20]!r} is not a number", at)


def _quoted_line(data: bytes, at: int) -> tuple[str, int]:
    raw, end = _line(data, at)
    if len(raw) < 2 or raw[:1] not in {b"'", b'"'} or raw[:1] != raw[-1:]:
        refuse("a str has no quotes", at)
    return _unescaped(raw[1:-1], at), end


_ESCAPES = {ord(k): v for k, v in zip("\\'\"abfnrtv", "\\'\"\a\b\f\n\r\t\v", strict=True)}


def _unescaped(raw: bytes, at: int) -> str:
    """Undo the escapes of Python 2's `repr` of a str."""
    out: list[str] = []
    position = 0
    while position < len(raw):
        slash = raw.find(b"\\", position)
        if slash < 0:
            out.append(raw[position:].decode("latin-1"))
            break
        out.append(raw[position:slash].decode("latin-1"))
        kind = raw[slash + 1 : slash + 2]
        if kind and kind[0] in _ESCAPES:
            out.append(_ESCAPES[kind[0]])
            position = slash + 2
        elif kind == b"x":
            out.append(_from_hex(raw[slash + 2 : slash + 4], 2, at))
            position = slash + 4
        else:
            refuse(f"a str has the unknown escape {raw[slash : slash + 2]!r}", at)
    return "".join(out)


def _from_hex(digits: bytes, count: int, at: int) -> str:
    if len(digits) != count or any(d not in b"0123456789abcdefABCDEF" for d in digits):
        refuse(f"expected {count} hexadecimal digits, found {digits!r}", at)
    number = int(digits, 16)
    if number > 0x10FFFF:
        refuse(f"the code point {number:#x} does not exist", at)
    return chr(number)


def _raw_unicode_line(data: bytes, at: int) -> tuple[str, int]:
    raw, end = _line(data, at)
    out: list[str] = []
    position = 0
    while position < len(raw):
        slash = raw.find(b"\\", position)
        if slash < 0:
            out.append(raw[position:].decode("latin-1"))
            break
        out.append(raw[position:slash].decode("latin-1"))
        count = {b"u": 4, b"U": 8}.get(raw[slash + 1 : slash + 2], 0)
        if count:
            out.append(_from_hex(raw[slash + 2 : slash + 2 + count], count, at))
        else:
            out.append("\\")
        position = slash + (2 + count if count else 1)
    return "".join(out), end


def _global_lines(data: bytes, at: int) -> tuple[tuple[str, str], int]:
    module, middle = _line(data, at)
    name, end = _line(data, middle)
    return (module.decode("latin-1"), name.decode("latin-1")), end


def _none(_: bytes, at: int) -> tuple[None, int]:
    return None, at


_bytes1, _bytes4, _bytes8 = _sized("<B"), _sized("<I"), _sized("<Q")
_NAMES: dict[str, tuple[str, Callable[[bytes, int], tuple[Any, int]]]] = {
    "(": ("MARK", _none),
    ".": ("STOP", _none),
    "0": ("POP", _none),
    "1": ("POP_MARK", _none),
    "2": ("DUP", _none),
    "F": ("VALUE", _float_line),
    "G": ("VALUE", _fixed(">d")),
    "I": ("VALUE", _decimal_line),
    "L": ("VALUE", _decimal_line),
    "J": ("VALUE", _fixed("<i")),
    "K": ("VALUE", _fixed("<B")),
    "M": ("VALUE", _fixed("<H")),
    "\x8a": ("VALUE", _long(_bytes1)),
    "\x8b": ("VALUE", _long(_sized("<i", signed=True))),
    "S": ("VALUE", _quoted_line),
    "T": ("VALUE", _latin1(_sized("<i", signed=True))),
    "U": ("VALUE", _latin1(_bytes1)),
    "V": ("VALUE", _raw_unicode_line),
    "X": ("VALUE", _utf8(_bytes4)),
    "\x8c": ("VALUE", _utf8(_bytes1)),
    "\x8d": ("VALUE", _utf8(_bytes8)),
    "B": ("VALUE", _bytes4),
    "C": ("VALUE", _bytes1),
    "\x8e": ("VALUE", _bytes8),
    "N": ("VALUE", _none),
    "\x88": ("TRUE", _none),
    "\x89": ("FALSE", _none),
    "R": ("REDUCE", _none),
    "b": ("BUILD", _none),
    "\x81": ("NEWOBJ", _none),
    "\x92": ("NEWOBJ_EX", _none),
    "c": ("GLOBAL", _global_lines),
    "\x93": ("STACK_GLOBAL", _none),
    "]": ("EMPTY_LIST", _none),
    "}": ("EMPTY_DICT", _none),
    "\x8f": ("EMPTY_SET", _none),
    ")": ("EMPTY_TUPLE", _none),
    "l": ("LIST", _none),
    "d": ("DICT", _none),
    "t": ("TUPLE", _none),
    "\x91": ("FROZENSET", _none),
    "\x85": ("TUPLE1", _none),
    "\x86": ("TUPLE2", _none),
    "\x87": ("TUPLE3", _none),
    "a": ("APPEND", _none),
    "e": ("APPENDS", _none),
    "s": ("SETITEM", _none),
    "u": ("SETITEMS", _none),
    "\x90": ("ADDITEMS", _none),
    "p": ("PUT", _index_line),
    "q": ("PUT", _fixed("<B")),
    "r": ("PUT", _fixed("<I")),
    "\x94": ("MEMOIZE", _none),
    "g": ("GET", _index_line),
    "h": ("GET", _fixed("<B")),
    "j": ("GET", _fixed("<I")),
    "\x80": ("PROTO", _fixed("<B")),
    "\x95": ("FRAME", _fixed("<Q")),
}
_READERS = {ord(code): entry for code, entry in _NAMES.items()}
_REFUSED = {
    "i": "INST",
    "o": "OBJ",
    "P": "PERSID",
    "Q": "BINPERSID",
    "\x82": "EXT1",
    "\x83": "EXT2",
    "\x84": "EXT4",
    "\x96": "BYTEARRAY8",
    "\x97": "NEXT_BUFFER",
    "\x98": "READONLY_BUFFER",
}
_REFUSED_NAMES = {ord(code): name for code, name in _REFUSED.items()}


def read_ops(data: bytes) -> Iterator[Op]:
    """Yield the opcodes of a pickle, each with its argument.

    Raises:
        DataError: an opcode is unknown or not allowed, an argument is truncated or too long, or there is no STOP.
    """
    at = 0
    while at < len(data):
        position = at
        entry = _READERS.get(data[at])
        if entry is None:
            name = _REFUSED_NAMES.get(data[at])
            refuse(f"the opcode {name} is not allowed" if name else f"{data[at]:#04x} is not an opcode", at)
        name, read = entry
        argument, at = read(data, at + 1)
        yield name, argument, position
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
