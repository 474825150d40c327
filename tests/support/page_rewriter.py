"""Takes a Parquet file apart into its pages, and writes it anew with pages, headers or footer changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

# A Thrift struct: by field number its type in the compact protocol, and its value. Lists are (type, values).
Struct: TypeAlias = dict[int, tuple[int, Any]]

INT32, INT64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
# Page header fields.
KIND, PLAIN_BYTES, PAGE_BYTES, V1, DICTIONARY, V2 = 1, 2, 3, 5, 7, 8
# Column metadata fields.
ENCODINGS, CODEC, VALUES, PLAIN_TOTAL, PAGE_TOTAL, DATA_OFFSET, DICTIONARY_OFFSET, STATISTICS = 2, 4, 5, 6, 7, 9, 11, 12
SIZE_STATISTICS = 16
NULL_COUNT = 3


class Reader:
    """Reads Thrift's compact protocol."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, type_: int) -> Any:
        if type_ in (1, 2):
            return type_ == 1
        if type_ == 3:
            return self.byte()
        if type_ in (4, 5, 6):
            return self.zigzag()
        if type_ == 7:
            return self.bytes(8)
        if type_ == BINARY:
            return self.bytes(self.varint())
        if type_ == LIST:
            head = self.byte()
            count = self.varint() if head >> 4 == 15 else head >> 4
            inner = head & 15
            return inner, [self.byte() == 1 if inner in (1, 2) else self.value(inner) for _ in range(count)]
        assert type_ == STRUCT, type_
        return self.struct()

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            found[number] = (head & 15, self.value(head & 15))
        return found


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> bytes:
    return varint(((value << 1) ^ (value >> 63)) & (2**64 - 1))


def encoded(type_: int, value: Any) -> bytes:
    if type_ in (1, 2):
        return b""
    if type_ == 3:
        return bytes([value])
    if type_ in (4, 5, 6):
        return zigzag(value)
    if type_ == 7:
        return bytes(value)
    if type_ == BINARY:
        return varint(len(value)) + bytes(value)
    if type_ == LIST:
        inner, values = value
        head = bytes([len(values) << 4 | inner]) if len(values) < 15 else bytes([0xF0 | inner]) + varint(len(values))
        if inner in (1, 2):
            return head + bytes(1 if one else 2 for one in values)
        return head + b"".join(encoded(inner, one) for one in values)
    return encoded_struct(value)


def encoded_struct(struct: Struct) -> bytes:
    out, last = b"", 0
    for number, (type_, value) in sorted(struct.items()):
        shown = (1 if value else 2) if type_ in (1, 2) else type_
        step = number - last
        out += bytes([step << 4 | shown]) if 0 < step < 16 else bytes([shown]) + zigzag(number)
        out += encoded(type_, value)
        last = number
    return out + b"\0"


@dataclass
class Page:
    """A page: its header, and its bytes as they lie in the file."""

    header: Struct
    body: bytes

    @property
    def kind(self) -> int:
        return int(self.header[KIND][1])

    @property
    def described(self) -> Struct:
        """The struct in the header that says more about a page of its kind."""
        struct: Struct = self.header[{0: V1, 2: DICTIONARY, 3: V2}[self.kind]][1]
        return struct

    def resize(self, body: bytes) -> None:
        """Give an uncompressed page other bytes, and say so in its header."""
        self.body = body
        self.header[PLAIN_BYTES] = self.header[PAGE_BYTES] = (INT32, len(body))


@dataclass
class Chunk:
    """A column chunk: what the footer says of it, its pages, and bytes behind the last."""

    metadata: Struct
    pages: list[Page]
    behind: bytes = b""


@dataclass
class PagesOfFile:
    """A Parquet file as its pages."""

    footer: Struct
    chunks: list[Chunk] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file; offsets and lengths in the footer follow."""
        out = bytearray(b"PAR1")
        for chunk in self.chunks:
            start = len(out)
            for page in chunk.pages:
                if page.kind == 2 and DICTIONARY_OFFSET in chunk.metadata:
                    chunk.metadata[DICTIONARY_OFFSET] = (INT64, len(out))
                elif page is next((p for p in chunk.pages if p.kind != 2), None):
                    chunk.metadata[DATA_OFFSET] = (INT64, len(out))
                out += encoded_struct(page.header) + page.body
            out += chunk.behind
            chunk.metadata[PAGE_TOTAL] = (INT64, len(out) - start)
        footer = encoded_struct(self.footer)
        path.write_bytes(bytes(out) + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def pages_of(path: Path) -> PagesOfFile:
    """Take a Parquet file apart."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    file = PagesOfFile(Reader(data, len(data) - 8 - length).struct())
    for group in file.footer[4][1][1]:
        for column in group[1][1][1]:
            metadata: Struct = column[3][1]
            at = min(metadata[number][1] for number in (DATA_OFFSET, DICTIONARY_OFFSET) if number in metadata)
            end, pages = at + metadata[PAGE_TOTAL][1], list[Page]()
            while at < end:
                reader = Reader(data, at)
                header = reader.struct()
                pages.append(Page(header, reader.bytes(header[PAGE_BYTES][1])))
                at = reader.at
            file.chunks.append(Chunk(metadata, pages))
    return file
