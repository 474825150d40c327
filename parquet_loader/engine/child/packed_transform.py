"""Pickles `transform` for other processes: by value if it is defined in a script or notebook."""

from __future__ import annotations

import importlib
import pickle
import sys
from threading import Lock
from typing import Any

import numpy as np

from parquet_loader.engine.batch_processor import Transform
from parquet_loader.engine.child.process import SCRIPT_MODULES
from parquet_loader.engine.child.shared_memory import ISOLATION
from parquet_loader.errors import ConfigurationError

_CLOUDPICKLE = "cloudpickle: pip install 'torch-parquet-loader[process]'"
_registering = Lock()


class PackedTransform:
    """A pickled `transform`; only the processes that call it unpickle it.

    Args:
        transform: The caller's function.
        option: The loader's argument that asks for other processes; error messages begin with it.

    Raises:
        ConfigurationError: It cannot be pickled.
    """

    def __init__(self, transform: Transform, option: str) -> None:
        self._pickled = by_value(transform, transform, option)

    def unpacked(self) -> Transform:
        """Return the function; raises any error of its unpickling."""
        transform: Transform = pickle.loads(self._pickled)  # noqa: S301 - pickled by the caller's process
        return transform

    def __call__(self, columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Call the function."""
        return self.unpacked()(columns, rng)


def by_value(packed: Any, transform: Any, option: str = ISOLATION) -> bytes:
    """Pickle an object that refers to `transform`.

    Raises:
        ConfigurationError: it cannot be pickled.
    """
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    try:
        if pickler is not pickle:
            return _dumps(pickler, packed)
        if not _is_of_script(transform):
            return pickle.dumps(packed)
    except Exception as error:
        remedy = f"; define it at the top level of a module, or install {_CLOUDPICKLE}" if pickler is pickle else ""
        raise ConfigurationError(
            f"{option}: transform={transform!r:.80} cannot be sent to another process: {error}{remedy}"
        ) from error
    raise ConfigurationError(
        f"{option}: a transform defined in a script or notebook is sent by value, which needs {_CLOUDPICKLE}"
    )


def _is_of_script(transform: Transform | None) -> bool:
    """Whether a function, or one that it refers to as a `functools.partial` does, is of a script or notebook."""
    if getattr(transform, "__module__", None) in SCRIPT_MODULES:
        return True
    pickled = pickle.dumps(transform)
    return any(module.encode() in pickled for module in SCRIPT_MODULES)


def _dumps(cloudpickle: Any, packed: Any) -> bytes:
    """Pickle with cloudpickle; in a spawned process, objects of the main script are also pickled by value."""
    script = sys.modules.get("__mp_main__")
    with _registering:
        if script is None or "__mp_main__" in cloudpickle.list_registry_pickle_by_value():
            return bytes(cloudpickle.dumps(packed))
        cloudpickle.register_pickle_by_value(script)
        try:
            return bytes(cloudpickle.dumps(packed))
        finally:
            cloudpickle.unregister_pickle_by_value(script)
