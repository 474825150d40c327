"""Interprets the opcodes of a pickle without calling anything: the result is a tree of plain records.

Python's own unpickler executes the calls of a pickle and sets attributes, even if its names are restricted. This
interpreter cannot: a name is an entry of `allowlist`, a call is recorded as a `PickledObject`, and there is no other
kind of object. Lists, sets and dicts are records too, so no value is hashed or compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from parquet_loader.source.unischema.allowlist import CALLED, AllowedName
from parquet_loader.source.unischema.pickle_opcodes import MAX_STACK, Op, check_name, check_ops, read_ops, refuse

MAX_DEPTH = 64
MAX_SIZE = 4_000_000
BYTES_OF_A_VALUE = 16


@dataclass(slots=True, eq=False, repr=False)  # a tree of shared parts can be too large to print
class PickledSequence:
    """A list, tuple or set."""

    kind: Literal["list", "tuple", "set"]
    values: list[Any]


@dataclass(slots=True, eq=False, repr=False)  # a tree of shared parts can be too large to print
class PickledMapping:
    """A dict: keys and values in their order."""

    values: list[tuple[Any, Any]]


@dataclass(slots=True, eq=False, repr=False)  # a tree of shared parts can be too large to print
class PickledObject:
    """The record of a call in a pickle: the name, the arguments, and later changes of the result.

    Attributes:
        name: The name of the callable.
        arguments: Its arguments.
        state: The state from which attributes are set.
        pairs: Keys and values that are set like those of a dict.
        values: Values that are appended or added like those of a list or set.
    """

    name: AllowedName
    arguments: list[Any]
    state: Any = None
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


Value: TypeAlias = (
    "bool | int | float | str | bytes | AllowedName | PickledSequence | PickledMapping | PickledObject | None"
)


class _Mark:
    __slots__ = ()


_MARK = _Mark()


def run(data: bytes) -> Value:
    """Return the value of a pickle as plain records.

    Raises:
        DataError: the pickle is damaged, contains a name that is not allowed, calls a value, nests too deeply, or
            contains a value that contains itself.
    """
    check_ops(data)
    machine = _Machine()
    for op in read_ops(data):
        if op[0] == "STOP":
            break
        machine.step(op)
    value = machine.result()
    _check_tree(value)
    return value


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, op: Op) -> None:
        name, argument, at = op
        stack = self._stack
        if len(stack) > MAX_STACK:
            refuse(f"more than {MAX_STACK} values are on its stack", at)
        match name:
            case "VALUE":
                stack.append(argument)
            case "TRUE" | "FALSE":
                stack.append(name == "TRUE")
            case "MARK":
                stack.append(_MARK)
            case "POP":
                if not stack:
                    refuse("it takes a value from an empty stack", at)
                stack.pop()
            case "POP_MARK":
                self._to_mark(at)
            case "DUP":
                stack.append(self._top(at))
            case "PUT":
                self._memo[argument] = self._top(at)
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._top(at)
            case "GET":
                if argument not in self._memo:
                    refuse(f"the memo holds nothing at {argument}", at)
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(check_name(argument[0], argument[1], at))
            case "STACK_GLOBAL":
                what, module = self._pop(at), self._pop(at)
                if not isinstance(module, str) or not isinstance(what, str):
                    refuse("expected a str as name", at)
                stack.append(check_name(module, what, at))
            case "REDUCE" | "NEWOBJ":
                arguments, called = self._pop(at), self._pop(at)
                stack.append(_made(called, arguments, at))
            case "NEWOBJ_EX":
                keywords, arguments, called = self._pop(at), self._pop(at), self._pop(at)
                if not isinstance(keywords, PickledMapping) or keywords.values:
                    refuse("it calls with keyword arguments", at)
                stack.append(_made(called, arguments, at))
            case "BUILD":
                state = self._pop(at)
                target = self._top(at)
                if not isinstance(target, PickledObject) or target.state is not None:
                    refuse("it sets attributes of a value that is not an object, or twice of one object", at)
                target.state = state
            case "EMPTY_LIST" | "EMPTY_SET" | "EMPTY_TUPLE":
                kinds: dict[str, Any] = {"EMPTY_LIST": "list", "EMPTY_SET": "set", "EMPTY_TUPLE": "tuple"}
                stack.append(PickledSequence(kinds[name], []))
            case "EMPTY_DICT":
                stack.append(PickledMapping([]))
            case "LIST" | "TUPLE" | "FROZENSET":
                kinds = {"LIST": "list", "TUPLE": "tuple", "FROZENSET": "set"}
                stack.append(PickledSequence(kinds[name], self._to_mark(at)))
            case "DICT":
                stack.append(PickledMapping(_paired(self._to_mark(at), at)))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                values = [self._pop(at) for _ in range(int(name[-1]))]
                stack.append(PickledSequence("tuple", values[::-1]))
            case "APPEND":
                self._extend([self._pop(at)], "list", at)
            case "APPENDS":
                self._extend(self._to_mark(at), "list", at)
            case "ADDITEMS":
                self._extend(self._to_mark(at), "set", at)
            case "SETITEM":
                value, key = self._pop(at), self._pop(at)
                self._update([(key, value)], at)
            case "SETITEMS":
                self._update(_paired(self._to_mark(at), at), at)
            case "PROTO" | "FRAME":
                pass
            case _:
                refuse(f"the opcode {name} is not allowed", at)

    def result(self) -> Value:
        """Return the one value that is left.

        Raises:
            DataError: there is none, or more than one.
        """
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            refuse(f"expected one value at its end, found {len(self._stack)}")
        value: Value = self._stack[0]
        return value

    def _top(self, at: int) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            refuse("it takes a value from an empty stack", at)
        return self._stack[-1]

    def _pop(self, at: int) -> Any:
        self._top(at)
        return self._stack.pop()

    def _to_mark(self, at: int) -> list[Any]:
        stack = self._stack
        position = len(stack) - 1
        while position >= 0 and stack[position] is not _MARK:
            position -= 1
        if position < 0:
            refuse("it refers to a mark that does not exist", at)
        values = stack[position + 1 :]
        del stack[position:]
        return values

    def _extend(self, values: list[Any], kind: str, at: int) -> None:
        target = self._top(at)
        if isinstance(target, PickledObject) or (isinstance(target, PickledSequence) and target.kind == kind):
            target.values.extend(values)
        else:
            refuse("it adds values to a value that is not a list or set", at)

    def _update(self, pairs: list[tuple[Any, Any]], at: int) -> None:
        target = self._top(at)
        if isinstance(target, PickledMapping):
            target.values.extend(pairs)
        elif isinstance(target, PickledObject):
            target.pairs.extend(pairs)
        else:
            refuse("it sets keys of a value that is not a dict", at)


def _made(called: Any, arguments: Any, at: int) -> PickledObject:
    if not isinstance(called, AllowedName):
        refuse("it calls a value that is not a name: the result of another call, or a plain value", at)
    if called.role not in CALLED:
        refuse(f"it calls {called.name!r}, which may only be named", at)
    if not isinstance(arguments, PickledSequence) or arguments.kind != "tuple":
        refuse("it calls with arguments that are not a tuple", at)
    return PickledObject(called, arguments.values)


def _paired(values: list[Any], at: int) -> list[tuple[Any, Any]]:
    if len(values) % 2:
        refuse("a key has no value", at)
    return list(zip(values[::2], values[1::2], strict=True))


def _inside(value: Any) -> list[Any]:
    match value:
        case PickledSequence():
            return value.values
        case PickledMapping():
            return [part for pair in value.values for part in pair]
        case PickledObject():
            pairs = [part for pair in value.pairs for part in pair]
            return [*value.arguments, value.state, *pairs, *value.values]
        case _:
            return []


class _Opened:
    """A value being measured: its children not yet measured, and the depth and size of the others."""

    __slots__ = ("height", "left", "size")

    def __init__(self, value: Any) -> None:
        self.left = _inside(value).copy()
        self.height = 0
        self.size = 1

    def add(self, inner: _Opened) -> None:
        self.height = max(self.height, inner.height)
        self.size += inner.size


def _check_tree(root: Any) -> None:
    """Refuse values that contain themselves, nest too deeply, or are too large when references are expanded.

    A shared value is measured once and counted for each reference, because the conversion copies it that often.
    """
    if not isinstance(root, PickledSequence | PickledMapping | PickledObject):
        return
    opened = _Opened(root)
    path = [opened]
    met: dict[Any, _Opened] = {root: opened}
    while path:
        above = path[-1]
        if not above.left:
            path.pop()
            above.height += 1
            if above.height > MAX_DEPTH:
                refuse(f"values nest more than {MAX_DEPTH} deep")
            if above.size > MAX_SIZE:
                refuse(f"it has more than {MAX_SIZE} values when shared references are expanded")
            if path:
                path[-1].add(above)
            continue
        inner = above.left.pop()
        if not isinstance(inner, PickledSequence | PickledMapping | PickledObject):
            above.size += 1 + len(inner) // BYTES_OF_A_VALUE if isinstance(inner, str | bytes) else 1
            continue
        known = met.get(inner)
        if known is not None:
            if known in path:
                refuse("a value contains itself")
            above.add(known)
            continue
        if len(path) >= MAX_DEPTH:
            refuse(f"values nest more than {MAX_DEPTH} deep")
        known = met[inner] = _Opened(inner)
        path.append(known)
