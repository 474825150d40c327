"""Reads a pyarrow expression as a tree of calls, columns and literals; pyarrow can only evaluate or print one.

When Arrow pickles an expression, it lists the parts in order as metadata of a schema: each call before its arguments
and again at its end. Literals and the options of calls are the columns of a record batch with this schema.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.errors import ConfigurationError


class FieldRef(NamedTuple):
    """A column, or a field of one: the names from the outermost to the innermost."""

    path: tuple[str, ...]


class Literal(NamedTuple):
    """A value."""

    value: pa.Scalar


class Call(NamedTuple):
    """A call of one of Arrow's functions; its options are a struct."""

    function: str
    arguments: tuple[Node, ...]
    options: pa.Scalar | None


Node: TypeAlias = "Call | FieldRef | Literal"


def read_expression(expression: pc.Expression) -> Node:
    """Return an expression as a tree.

    Raises:
        ConfigurationError: it refers to a column by number, or contains a part that Arrow cannot serialise.
    """
    try:
        batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
    except pa.ArrowNotImplementedError as error:
        raise ConfigurationError(
            f"filters={expression}: this expression cannot be read ({error}); name columns, as in pc.field('label')"
        ) from None
    calls: list[list[Node]] = []  # the arguments read so far of each open call, outermost first
    arguments: list[Node] = []
    options: pa.Scalar | None = None
    parts = _parts(batch.schema)
    for kind, text in parts:
        match kind:
            case "call":
                calls.append(arguments)
                arguments = []
            case "options":
                options = batch.column(int(text))[0]
            case "end":
                call = Call(text, tuple(arguments), options)
                arguments, options = calls.pop(), None
                arguments.append(call)
            case "literal":
                arguments.append(Literal(batch.column(int(text))[0]))
            case "field_ref":
                arguments.append(FieldRef((text,)))
            case "nested_field_ref":
                arguments.append(FieldRef(tuple(next(parts)[1] for _ in range(int(text)))))
    (root,) = arguments
    return root


def nodes(root: Node) -> Iterator[Node]:
    """Yield a tree and all trees in it."""
    left = [root]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, Call):
            left.extend(reversed(node.arguments))


def named_columns(root: Node) -> list[str]:
    """Return the names of the columns that a tree refers to, each once."""
    return list(dict.fromkeys(node.path[0] for node in nodes(root) if isinstance(node, FieldRef)))


def _parts(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield all metadata of a schema; pyarrow drops repeated keys.

    The layout is that of Arrow's C data interface: the number of pairs, then length and bytes of each key and value.
    """
    capsule = schema.__arrow_c_schema__()
    at = int(ctypes.cast(_PyCapsule_GetPointer(capsule, b"arrow_schema"), ctypes.POINTER(ctypes.c_void_p))[2])

    def number() -> int:
        nonlocal at
        at += 4
        return ctypes.c_int32.from_address(at - 4).value

    def text() -> str:
        nonlocal at
        nbytes = number()
        at += nbytes
        return ctypes.string_at(at - nbytes, nbytes).decode()

    for _ in range(number()):
        yield text(), text()


_PyCapsule_GetPointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
