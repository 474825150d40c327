"""A descriptor for attributes of a loader that only its constructor sets."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar, overload

from parquet_loader.errors import ConfigurationError

T = TypeVar("T")


class FixedAttribute(Generic[T]):
    """An attribute on which batches and states depend; it can be set once.

    Only these attributes are checked. A loader must not check all attributes in `__setattr__`: SIGINT could then arrive
    between the start of an epoch and the assignment that makes the loader its owner.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        try:
            return instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, instance: object, value: T) -> None:
        if self._name in instance.__dict__:
            raise ConfigurationError(
                f"{self._name}: cannot be set after the loader is made; make another loader with {self._name}={value!r}"
            )
        instance.__dict__[self._name] = value
