"""Registers `Ragged` with libraries that traverse batches: torch, optree, JAX. It imports none of them.

Each registration happens once, when a `Ragged` is made and the library has been imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any


def register_where_imported(ragged: Any) -> None:
    """Register the class `ragged` with the imported libraries that do not know it yet."""
    for name in tuple(_UNREGISTERED):
        module = sys.modules.get(name)
        if module is None or getattr(module.__spec__, "_initializing", False):  # another thread is importing it
            continue
        register = _UNREGISTERED.pop(name, None)
        if register is not None:
            register(ragged)


def ragged_of(ragged: Any, *parts: Any) -> Any:
    """Return a `ragged` of any values, offsets and kind: libraries that rebuild trees put placeholders into them."""
    made = object.__new__(ragged)
    made.values, made.offsets, made.kind = parts
    return made


def _flatten(ragged: Any) -> tuple[list[Any], Any]:
    return [ragged.values, ragged.offsets], ragged.kind


def _register_with_torch(ragged: Any) -> None:
    """Register with pytrees, `default_collate`, and ``torch.load(weights_only=True)``."""
    torch = sys.modules["torch"]
    pytree = importlib.import_module("torch.utils._pytree")

    def unflatten(children: Sequence[Any], kind: Any) -> Any:
        return ragged_of(ragged, *children, kind)

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
        keys = pytree.GetAttrKey("values"), pytree.GetAttrKey("offsets")
        return list(zip(keys, _flatten(value)[0], strict=True)), value.kind

    pytree.register_pytree_node(
        ragged,
        _flatten,
        unflatten,
        serialized_type_name="parquet_loader.Ragged",
        flatten_with_keys_fn=flatten_with_keys,
    )
    collate = importlib.import_module("torch.utils.data._utils.collate")

    def collate_rows(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001
        return ragged.from_list(batch).to_tensors()

    collate.default_collate_fn_map[ragged] = collate_rows
    torch.serialization.add_safe_globals([ragged])


def _register_with_optree(ragged: Any) -> None:
    optree = sys.modules["optree"]
    optree.register_pytree_node(
        ragged,
        lambda value: (*_flatten(value), ("values", "offsets")),
        lambda kind, children: ragged_of(ragged, *children, kind),
        namespace=optree.registry.__GLOBAL_NAMESPACE,
    )


def _register_with_jax(ragged: Any) -> None:
    tree_util = importlib.import_module("jax.tree_util")
    tree_util.register_pytree_node(ragged, _flatten, lambda kind, children: ragged_of(ragged, *children, kind))


_UNREGISTERED: dict[str, Callable[[Any], None]] = {
    "torch": _register_with_torch,
    "optree": _register_with_optree,
    "jax": _register_with_jax,
}
