"""Every class of ours that a signature, attribute or result of a public name mentions can be imported from the root."""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Iterator
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import pytest

import parquet_loader
from parquet_loader.schema import ragged

PUBLIC = {name: getattr(parquet_loader, name) for name in parquet_loader.__all__ if name != "Batch"}
# Users get these from a function or a method, and do not construct them.
NOT_CONSTRUCTED = {"ConvertedLoader", "StoreWriter"}
# The library calls these methods of sources, and users do not.
NOT_CALLED = {"open_version"}


@cache
def namespace(module: ModuleType) -> dict[str, Any]:
    """A module's names, and those that it imports for type checkers."""
    found = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                try:
                    exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), found)
                except (ModuleNotFoundError, AttributeError) as error:  # not installed, or too new for this numpy
                    if not isinstance(statement, ast.Import) or str(error.name).startswith("parquet_loader"):
                        raise
                    found |= {
                        name.asname or name.name: AbsentType(name.name, (), {"__module__": "absent"})
                        for name in statement.names
                    }
    return found


class AbsentType(type):
    """Stands for a module that is not installed and for its names; its classes are not this library's."""

    def __getattr__(cls, name: str) -> type:
        return AbsentType(name, (), {"__module__": "absent"})


def hints_of(thing: Any, kind: type | None = None) -> dict[str, Any]:
    """The types that a class, or its methods, mention."""
    if thing is parquet_loader.Ragged:
        return typing.get_type_hints(thing, globalns=namespace(ragged))
    names: dict[str, Any] = {}
    owners = (kind or thing).__mro__ if isinstance(kind or thing, type) else []
    for owner in [*reversed(owners), thing]:
        if owner.__module__.startswith("parquet_loader"):
            names |= namespace(sys.modules[owner.__module__])
    return typing.get_type_hints(thing, globalns=names)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that users may use, including those inherited from this library's classes."""
    for base in kind.__mro__:
        if not base.__module__.startswith("parquet_loader"):
            continue
        for name, member in vars(base).items():
            is_public = not name.startswith("_") or name in ("__init__", "__iter__", "__enter__", "__getitem__")
            if not is_public or name in NOT_CALLED or (name == "__init__" and kind.__name__ in NOT_CONSTRUCTED):
                continue
            unbound = {property: "fget", cached_property: "func", classmethod: "__func__", staticmethod: "__func__"}
            function = getattr(member, unbound.get(type(member), ""), member)
            if inspect.isfunction(function):
                yield name, inspect.unwrap(function)


def mentioned(hint: Any) -> Iterator[type]:
    if isinstance(hint, list | tuple):
        for part in hint:
            yield from mentioned(part)
        return
    if isinstance(hint, type):
        yield hint
    yield from mentioned(typing.get_args(hint))


def is_public(kind: type) -> bool:
    """Whether a class is exported, the base of one that is, a protocol that users implement, or none of ours."""
    return (
        not kind.__module__.startswith("parquet_loader")
        or getattr(kind, "_is_protocol", False)
        or any(isinstance(public, type) and issubclass(public, kind) for public in PUBLIC.values())
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_every_class_that_a_public_name_mentions_is_public(name: str) -> None:
    thing = PUBLIC[name]
    hints: dict[str, dict[str, Any]] = {}
    if isinstance(thing, type):
        hints = {member: hints_of(function, thing) for member, function in members(thing)}
        for base in thing.__mro__:
            if base.__module__.startswith("parquet_loader"):
                fields = {field: hint for field, hint in hints_of(base).items() if not field.startswith("_")}
                hints.setdefault("attributes", {}).update(fields)
    else:
        hints[name] = hints_of(inspect.unwrap(thing))
    missing = {
        f"{member}({argument}): {kind.__module__}.{kind.__qualname__}"
        for member, arguments in hints.items()
        for argument, hint in arguments.items()
        for kind in mentioned(hint)
        if not is_public(kind)
    }
    assert not missing


def test_field_kinds_have_a_name_of_their_own_next_to_torch_and_pillow() -> None:
    import torch
    from PIL import Image
    from torch import Tensor

    from parquet_loader import schema as pls

    schema = pls.Schema(
        {"image": pls.Image((8, 8, 3)), "mask": pls.Tensor("bool", (8, 8)), "label": pls.Scalar("int8")}
    )
    assert schema == parquet_loader.Schema(
        {
            "image": parquet_loader.Image((8, 8, 3)),
            "mask": parquet_loader.Tensor("bool", (8, 8)),
            "label": parquet_loader.Scalar("int8"),
        }
    )
    assert Tensor is torch.Tensor
    assert not isinstance(schema["mask"], Tensor)
    assert Image.__name__ == "PIL.Image"
