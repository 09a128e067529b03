"""Check that a fake of a store has the store's methods, with the same parameters.

    @fake_of(OwnerStore)          a drifted signature fails the import of the fake
    class Rows: …

Names of positional parameters and defaults may differ: stages pass both by position.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


def fake_of(*stores: type, besides: Collection[str] = ()) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that checks the coroutine methods of a fake of these stores.
    `besides`: methods that belong to no store.
    """

    def checked(fake: type[T]) -> type[T]:
        for name, method in vars(fake).items():
            if name.startswith("_") or name in besides or not inspect.iscoroutinefunction(method):
                continue
            meant = [getattr(store, name) for store in stores if hasattr(store, name)]
            assert meant, f"{fake.__qualname__}.{name}: no such method of {stores}"
            theirs, ours = _parameters(meant[0]), _parameters(method)
            assert ours == theirs, f"{fake.__qualname__}.{name}: {ours}, of the store {theirs}"
        return fake

    return checked


def _parameters(method: Callable[..., object]) -> tuple[int, list[str]]:
    """Return the number of positional parameters without the first, and the keyword-only names."""
    named = inspect.signature(method).parameters.values()
    positional = [one for one in named if one.kind is not one.KEYWORD_ONLY]
    return len(positional) - 1, sorted(one.name for one in named if one not in positional)
