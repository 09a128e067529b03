"""Fast records: `dataclass` and `replace` for objects that are created thousands of times a second.
To readers and type checkers they are the standard library's.

    from schedkit.records import dataclass, replace

The standard `frozen` calls `object.__setattr__` for each field: a record with 26 fields takes nine
times as long to create as a mutable one. So records here are frozen only for the type checker.
Figures: docs/evidence/notes/2026-11-26-cost-of-scans-and-records.md.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:
    from operator import attrgetter

    T = TypeVar("T")

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """Return a class as `dataclasses.dataclass` does; frozen ones with slots are made fast."""

        def make(cls: type) -> type:
            if not (options.get("frozen") and options.get("slots")):
                return dataclasses.dataclass(**options)(cls)
            hashed = options.get("eq", True) and cls.__dict__.get("__hash__") is None
            plain = {**options, "frozen": False, "unsafe_hash": hashed}
            made = dataclasses.dataclass(**plain)(cls)
            names = [field.name for field in dataclasses.fields(made) if field.init]
            made.__at__ = {name: at for at, name in enumerate(names)}
            made.__values__ = staticmethod(_values(names))
            return made

        return make if cls is None else make(cls)

    def replace(record: T, /, **changes: Any) -> T:
        """Return a changed copy, as `dataclasses.replace` does."""
        cls = type(record)
        at = cls.__dict__.get("__at__")
        if at is None:
            return dataclasses.replace(record, **changes)
        values = [*cls.__values__(record)]
        for name, value in changes.items():
            values[at[name]] = value
        return cls(*values)

    def _values(names: list[str]) -> Any:
        if len(names) > 1:
            return attrgetter(*names)
        return lambda record: [getattr(record, name) for name in names]


__all__ = ["dataclass", "replace"]
