"""Payloads of the type that a handler's annotation names.

    def bill(payload: Order, ctx: Context)     {"customer": "c1", "cents": 1250} ─→ Order(…)
                                               {"customer": "c1", "cents": "a"}  ─→ Misfit, by field

msgspec reads dataclasses, TypedDicts, enums, instants and containers of them; what is made by
pydantic is read by pydantic. Without an annotation, and with `Any` or `object`, JSON's values stay
as they are.

Invariants
- An annotation that can't be understood is said when the worker starts, not when a run comes.
- Nothing is guessed: a text is no number, and bytes are bytes.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec

Fit = Callable[[object], object]

_NO_TYPES: Final = (Any, object, inspect.Parameter.empty)
_MOST_TOLD: Final = 5


class Misfit(ValueError):
    """A payload isn't of its type."""


def fit_of(function: Callable[..., Any], parameter: int = 0, called: str = "payload") -> Fit:
    """What makes of JSON's values those that this function's `parameter` (by position) takes.

    The parameter is named `called` in what is said of misfits.

    Raises:
        TypeError: its annotation can't be understood.
    """
    wanted = _annotation(function, parameter)
    if wanted in _NO_TYPES:
        return _as_it_is
    if _of_pydantic(wanted):
        return _by_pydantic(wanted, called)
    return _by_msgspec(wanted, called)


def _as_it_is(value: object) -> object:
    return value


def _annotation(function: Callable[..., Any], at: int) -> Any:
    try:
        parameters = [*inspect.signature(function, follow_wrapped=False).parameters.values()]
    except ValueError:  # one written in C tells nothing
        return Any
    if at >= len(parameters) or parameters[at].kind is inspect.Parameter.VAR_POSITIONAL:
        return Any
    given = parameters[at].annotation
    if not isinstance(given, str):
        return given
    holder = types.SimpleNamespace(__annotations__={"payload": given})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["payload"]
    except Exception as error:  # an annotation is code, and may raise anything
        told = f"{given!r} can't be found ({type(error).__name__}: {error})"
        raise TypeError(f"{told}: it has to be there when the module is imported") from error


def _of_pydantic(wanted: Any) -> bool:
    return hasattr(wanted, "__pydantic_core_schema__") or any(
        map(_of_pydantic, typing.get_args(wanted))
    )


def _by_msgspec(wanted: Any, called: str) -> Fit:
    try:
        msgspec.json.Decoder(wanted)  # it looks at the whole type at once
    except (TypeError, NameError) as error:
        raise TypeError(f"{wanted!r} can't be read: {error}") from error

    def fit(value: object) -> object:
        try:
            return msgspec.convert(value, wanted, builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            raise Misfit(f"the {called} doesn't fit: {error}") from error

    return fit


def _by_pydantic(wanted: Any, called: str) -> Fit:
    import pydantic  # installed, for it has made what is wanted

    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(wanted)

    def fit(value: object) -> object:
        try:
            return adapter.validate_python(value)
        except pydantic.ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)
            told = [f"{'.'.join(map(str, one['loc'])) or called}: {one['msg']}" for one in wrong]
            more = "" if len(told) <= _MOST_TOLD else f"; and {len(told) - _MOST_TOLD} more"
            words = "; ".join(told[:_MOST_TOLD]) + more
            raise Misfit(f"the {called} doesn't fit: {words}") from error

    return fit
