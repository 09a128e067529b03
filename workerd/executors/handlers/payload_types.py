"""Convert payloads to the type of a handler's annotation.

    def bill(payload: Order, ctx: Context)     {"customer": "c1", "cents": 1250} ─→ Order(…)
                                               {"customer": "c1", "cents": "a"}  ─→ Misfit, by field

msgspec converts dataclasses, TypedDicts, enums, datetimes and containers of them; pydantic converts
its own types. Without an annotation, and with `Any` or `object`, JSON values stay unchanged.

Invariants
- An invalid annotation is reported when the worker starts, not when a run starts.
- Conversion is strict: a text isn't converted to a number, and bytes stay bytes.
"""

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec

Fit = Callable[[object], object]

_NO_TYPES: Final = (Any, object, inspect.Parameter.empty)
_MOST_ERRORS: Final = 5


class PayloadMismatch(ValueError):
    """A payload doesn't fit its type."""


def fit_of(function: Callable[..., Any], parameter: int = 0, called: str = "payload") -> Fit:
    """Return a converter from JSON values to the type of a function's parameter (by position).
    `called`: the name of the parameter in error messages. Raises TypeError: the annotation isn't a
    valid type.
    """
    wanted = _annotation(function, parameter)
    if wanted in _NO_TYPES:
        return lambda value: value
    if _of_pydantic(wanted):
        return _by_pydantic(wanted, called)
    return _by_msgspec(wanted, called)


def _annotation(function: Callable[..., Any], at: int) -> Any:
    try:
        parameters = [*inspect.signature(function, follow_wrapped=False).parameters.values()]
    except ValueError:  # functions in C may have no signature
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
        text = f"the type {given!r} can't be resolved ({type(error).__name__}: {error})"
        raise TypeError(f"{text}; define or import the type in the handler's module") from error


def _of_pydantic(wanted: Any) -> bool:
    return hasattr(wanted, "__pydantic_core_schema__") or any(
        map(_of_pydantic, typing.get_args(wanted))
    )


def _by_msgspec(wanted: Any, called: str) -> Fit:
    try:
        msgspec.json.Decoder(wanted)  # it checks the whole type at once
    except (TypeError, NameError) as error:
        raise TypeError(
            f"a payload can't be converted to the type {wanted!r}: {error}; annotate the"
            " parameter with another type, such as dict, list, str or a dataclass"
        ) from error

    def fit(value: object) -> object:
        try:
            return msgspec.convert(value, wanted, builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            raise PayloadMismatch(
                f"the {called} doesn't match its declared type: {error}"
            ) from error

    return fit


def _by_pydantic(wanted: Any, called: str) -> Fit:
    import pydantic  # installed: it created the type

    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(wanted)

    def fit(value: object) -> object:
        try:
            return adapter.validate_python(value)
        except pydantic.ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)
            texts = [f"{'.'.join(map(str, one['loc'])) or called}: {one['msg']}" for one in wrong]
            more = "" if len(texts) <= _MOST_ERRORS else f"; and {len(texts) - _MOST_ERRORS} more"
            summary = "; ".join(texts[:_MOST_ERRORS]) + more
            raise PayloadMismatch(
                f"the {called} doesn't match its declared type: {summary}"
            ) from error

    return fit
