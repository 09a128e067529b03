"""Fast records: `dataclass` and `replace` for objects that are created thousands of times a second.
To readers and type checkers they are the standard library's.

    from schedkit.records import dataclass, named_tuples, replace

The standard `frozen` calls `object.__setattr__` for each field: a record with 26 fields takes nine
times as long to create as a mutable one. So records here are frozen only for the type checker.
Figures: docs/evidence/notes/2026-11-26-cost-of-scans-and-records.md.

The standard library compiles up to six methods when a class is defined, which was a quarter of the
processor time of a start. A method of a record is compiled when it is first called.
`immutable_dataclass` does the same for values of programs that use the SDK: their attributes can't
be changed.

Invariants
- A record has no `InitVar`.
- Until a record is first created, `inspect.signature` doesn't know its parameters.
"""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

N = TypeVar("N", bound=tuple[Any, ...])

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
    from dataclasses import dataclass as immutable_dataclass
else:
    from dataclasses import MISSING
    from operator import attrgetter
    from reprlib import recursive_repr

    T = TypeVar("T")

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """Return a class as `dataclasses.dataclass` does; frozen ones with slots are made fast."""

        def make(cls: type) -> type:
            if not (options.get("frozen") and options.get("slots")):
                return dataclasses.dataclass(**options)(cls)
            made = _made(cls, options, _assignment)
            fields = [field for field in dataclasses.fields(made) if field.init]
            if not any(field.kw_only for field in fields):
                names = [field.name for field in fields]
                made.__at__ = {name: at for at, name in enumerate(names)}
                made.__values__ = staticmethod(_values(names))
            return made

        return make if cls is None else make(cls)

    def immutable_dataclass(**options: Any) -> Any:
        """Return a class as `dataclasses.dataclass` with `frozen` and `slots` does."""

        def make(cls: type) -> type:
            made = _made(cls, options, _first_assignment)
            made.__setattr__ = made.__delattr__ = _refuse_change
            made.__getstate__, made.__setstate__ = _get_state, _set_state
            return made

        return make

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

    def _made(cls: type, options: dict[str, Any], assignment: Any) -> type:
        """Return the class with slots, and with the methods that it doesn't define."""
        compared = options.get("eq", True)
        hashed = compared and cls.__dict__.get("__hash__") is None
        plain = {**options, "frozen": False}
        if options.get("order"):
            return dataclasses.dataclass(**plain, unsafe_hash=hashed)(cls)
        made = dataclasses.dataclass(**{**plain, "init": False, "repr": False, "eq": False})(cls)
        if "__init__" not in cls.__dict__:
            _compile_at_first_call(made, "__init__", lambda: _init(made, assignment))
        if compared and "__eq__" not in cls.__dict__:
            _compile_at_first_call(made, "__eq__", lambda: _eq(made))
        if hashed:
            _compile_at_first_call(made, "__hash__", lambda: _hash(made))
        if options.get("repr", True) and "__repr__" not in cls.__dict__:
            made.__repr__ = _repr
        return made

    def _compile_at_first_call(cls: type, name: str, source: Any) -> None:
        def first(self: Any, *values: Any, **named: Any) -> Any:
            parameters, lines, constants = source()
            text = "\n ".join([f"def {name}({', '.join(parameters)}):", *lines])
            exec(text, constants, made := {})  # noqa: S102 - as the standard library does
            method = made[name]
            method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
            return method(self, *values, **named)

        setattr(cls, name, first)

    Source = tuple[list[str], list[str], dict[str, Any]]
    """Parameters, statements, and the values of other names in them."""

    def _init(cls: type, assignment: Any) -> Source:
        positional, named, lines = ["self"], [], []
        constants: dict[str, Any] = {"MISSING": MISSING, "_set": object.__setattr__}
        for field in dataclasses.fields(cls):
            parameter = value = field.name
            if field.default_factory is not MISSING:
                constants[f"_make_{field.name}"] = field.default_factory
                parameter, value = f"{field.name}=MISSING", f"_make_{field.name}()"
                if field.init:
                    value += f" if {field.name} is MISSING else {field.name}"
            elif field.default is not MISSING:
                constants[f"_default_{field.name}"] = field.default
                parameter = f"{field.name}=_default_{field.name}"
                value = field.name if field.init else f"_default_{field.name}"
            elif not field.init:
                continue
            if field.init:
                (named if field.kw_only else positional).append(parameter)
            lines.append(assignment(field.name, value))
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        return [*positional, *(["*", *named] if named else [])], lines or ["pass"], constants

    def _assignment(name: str, value: str) -> str:
        return f"self.{name} = {value}"

    def _first_assignment(name: str, value: str) -> str:
        return f"_set(self, {name!r}, {value})"

    def _eq(cls: type) -> Source:
        names = [field.name for field in dataclasses.fields(cls) if field.compare]
        lines = [
            "if other.__class__ is self.__class__:",
            f" return {_values_of('self', names)} == {_values_of('other', names)}",
            "return NotImplemented",
        ]
        return ["self", "other"], lines, {}

    def _hash(cls: type) -> Source:
        names = [
            field.name
            for field in dataclasses.fields(cls)
            if (field.compare if field.hash is None else field.hash)
        ]
        return ["self"], [f"return hash({_values_of('self', names)})"], {}

    def _values_of(record: str, names: list[str]) -> str:
        return "(" + "".join(f"{record}.{name}, " for name in names) + ")"

    @recursive_repr()
    def _repr(self: Any) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.repr
        ]
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    def _refuse_change(_record: Any, name: str, *_: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _get_state(self: Any) -> list[Any]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def _set_state(self: Any, state: list[Any]) -> None:
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)


def named_tuples(cls: type[N], rows: Iterable[tuple[Any, ...]]) -> list[N]:
    """Return named tuples with these fields, without a Python call for each."""
    new = tuple.__new__
    return [new(cls, row) for row in rows]


__all__ = ["dataclass", "immutable_dataclass", "named_tuples", "replace"]
