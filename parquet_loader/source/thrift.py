"""A bounded reader of Thrift's compact protocol, for Parquet footers and page headers.

It trusts no claim in the bytes: lengths and counts are compared with the bytes that are left, nesting is limited, and
memory is allocated only for the requested fields.
"""

from __future__ import annotations

from collections.abc import Iterator

# The protocol's numbers of the types of values.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

MOST_NESTED = 32
_WORD = (1 << 64) - 1
_BITS = {I16: 15, I32: 31, I64: 63}


class ThriftError(ValueError):
    """The bytes are not a value of the expected type."""


class TruncatedThriftError(ThriftError):
    """The bytes end within a value."""


class CompactReader:
    """Reads values one after another.

    Args:
        data: The bytes.
        position: Where the first value begins.
        stop: Where the bytes end; None: with `data`.
    """

    def __init__(self, data: bytes, position: int = 0, stop: int | None = None) -> None:
        self._data = data
        self._stop = len(data) if stop is None else stop
        self.position = position

    def byte(self) -> int:
        """Read a byte, unsigned."""
        at = self.position
        if at >= self._stop:
            raise TruncatedThriftError("the bytes end within a field")
        self.position = at + 1
        return self._data[at]

    def varint(self) -> int:
        """Read an unsigned number of at most 64 bits."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _WORD
            shift += 7
            if shift > 63:
                raise ThriftError("a number has more than 64 bits")

    def number(self, type_: int = I64) -> int:
        """Read a signed number in the range of `I16`, `I32` or `I64`."""
        word = self.varint()
        value = (word >> 1) ^ -(word & 1)
        bits = _BITS[type_]
        if not -(1 << bits) <= value < 1 << bits:
            raise ThriftError(f"the number {value} has more than {bits + 1} bits")
        return value

    def span(self) -> tuple[int, int]:
        """Skip bytes or text; return their offset and length."""
        size = self.varint()
        begin = self.position
        self._pass(size)
        return begin, size

    def binary(self) -> bytes:
        """Read bytes or text."""
        begin, size = self.span()
        return self._data[begin : begin + size]

    def count(self, type_: int) -> int:
        """Read the head of a list or a set; return the number of its values."""
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > self._stop - self.position:
            raise TruncatedThriftError("the bytes end within a list")
        if count and head & 15 != type_:
            raise ThriftError(f"a list holds values of type {head & 15} instead of {type_}")
        return count

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the kind of each field of a struct; read or skip its value before the next one.

        Raises:
            ThriftError: a field is there twice, so that readers may differ in which one they take.
        """
        number = seen = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.number(I16)
            mark = 1 << number if 0 <= number < 64 else 0
            if number >= 1 << 15 or seen & mark:
                raise ThriftError(f"field {number} of a struct is there twice, or out of range")
            seen |= mark
            yield number, head & 15

    def skip(self, type_: int, depth: int = 0) -> None:
        """Skip a value."""
        if type_ in (TRUE, FALSE):
            return  # a field's kind is its value
        if type_ == BYTE:
            self._pass(1)
        elif type_ in (I16, I32, I64):
            self.varint()
        elif type_ == DOUBLE:
            self._pass(8)
        elif type_ == BINARY:
            self.span()
        elif depth >= MOST_NESTED:
            raise ThriftError(f"values are nested more than {MOST_NESTED} deep")
        elif type_ in (LIST, SET):
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.varint()
            self._skip_all(count, (head & 15,), depth)
        elif type_ == MAP:
            count = self.varint()
            kinds = self.byte() if count else 0
            self._skip_all(count, (kinds >> 4, kinds & 15), depth)
        elif type_ == STRUCT:
            for _, kind in self.fields():
                self.skip(kind, depth + 1)
        else:
            raise ThriftError(f"there is no type {type_}")

    def _skip_all(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        if count > self._stop - self.position:
            raise TruncatedThriftError("the bytes end within a list")
        for _ in range(count):
            for kind in kinds:
                self.skip(BYTE if kind in (TRUE, FALSE) else kind, depth + 1)

    def _pass(self, nbytes: int) -> None:
        if nbytes > self._stop - self.position:
            raise TruncatedThriftError("the bytes end within a field")
        self.position += nbytes
