"""Name the store call that a transaction belongs to: the label of its duration metric.

    @operations("owner") ──names──→ fire, assign, … ──while one runs──→ PRESENT ──→ `Database`

Invariant: the names are those of the stores' methods, and `other`: a small fixed set.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, TypeVar

StoreT = TypeVar("StoreT")

PRESENT: Final[ContextVar[str]] = ContextVar("operation", default="other")


def operations(prefix: str) -> Callable[[type[StoreT]], type[StoreT]]:
    """Name the calls of this store, such as `owner.fire`."""

    def named(store: type[StoreT]) -> type[StoreT]:
        for name, method in list(vars(store).items()):
            if inspect.iscoroutinefunction(method):
                setattr(store, name, _within(f"{prefix}.{name}", method))
        return store

    return named


def _within(operation: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def call(*arguments: Any, **named: Any) -> Any:
        before = PRESENT.set(operation)
        try:
            return await method(*arguments, **named)
        finally:
            PRESENT.reset(before)

    return call
