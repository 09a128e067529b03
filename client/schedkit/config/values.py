"""Convert written values to the types of fields, with one table of types for two kinds of input.

A TOML value has its own type, which must fit. Text (a variable, a flag) is parsed.
"""

import re
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

from schedkit.text import duration

_TRUTH: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}

SHAPES: Final[Mapping[Any, str]] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    timedelta: "a duration such as 90s or 1h30m",
    Path: "a path",
    tuple[str, ...]: "a list of strings",
    dict[str, str]: "a table of texts",
}
"""The types a field may have (and `Literal` of texts), as people call them."""


_TYPED_BY_TOML: Final = (int, float, bool, tuple[str, ...], dict[str, str])
"""Types that TOML has. A TOML text isn't parsed for them."""


_CREDENTIALS: Final = re.compile(r"(?:(?<=://)|:)(?!/).*@", re.DOTALL)


def hidden(text: str) -> str:
    """Return a value, or a message with a value in it, for people. The part of an address before
    its last `@` is replaced by `***`, because it may contain a password.
    `http://***@127.0.0.1:2379` · mail addresses and paths stay unchanged
    """
    return _CREDENTIALS.sub(lambda found: f"{':' * (found[0][0] == ':')}***@", text)


def without_none(kind: Any) -> Any:
    """Return `T` for `T | None`, and any other type unchanged."""
    if get_origin(kind) in (Union, types.UnionType):
        rest = [each for each in get_args(kind) if each is not type(None)]
        return rest[0] if len(rest) == 1 else kind
    return kind


def shape(kind: Any) -> str:
    """Return the description of a type's values, in words."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return SHAPES[kind]


def nothing(kind: Any) -> Any:
    """Return the value of this type that means "not given"."""
    return get_args(kind)[0] if get_origin(kind) is Literal else (get_origin(kind) or kind)()


def from_toml(kind: Any, value: Any) -> Any:
    """Return the value of a field from a TOML value. Raises ValueError: it doesn't fit; the message
    is for the operator and doesn't show the value.
    """
    _without_nul(kind, value)
    if kind is float and type(value) is int:
        return float(value)
    if kind in (int, float, bool) and type(value) is kind:
        return value
    if kind == tuple[str, ...] and isinstance(value, list) and _all_texts(value):
        return tuple(value)
    if kind == dict[str, str] and isinstance(value, dict) and _all_texts(value.values()):
        return dict(value)
    if kind not in _TYPED_BY_TOML and isinstance(value, str):
        return from_text(kind, value)
    raise ValueError(f"must be {shape(kind)}")


def from_text(kind: Any, text: str) -> Any:
    """Return the value of a field from text. Lists are split at commas; tables are `a=1,b=2`.
    Raises ValueError: it doesn't fit; the message is for the operator and doesn't show the text.
    """
    _without_nul(kind, text)
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"must be {shape(kind)}")
        return text
    try:
        return _READERS[kind](text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"must be {shape(kind)}") from error


def _without_nul(kind: Any, value: object) -> None:
    """Raise ValueError for a NUL character: no system call accepts one."""
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    texts = inside if isinstance(inside, list) else [inside]
    if any(isinstance(each, str) and "\0" in each for each in texts):
        raise ValueError(f"must be {shape(kind)} without a NUL character")


def _all_texts(values: Iterable[object]) -> bool:
    return all(isinstance(each, str) for each in values)


def _path(text: str) -> Path:
    if not text:  # pathlib reads it as the current directory
        raise ValueError(text)
    return Path(text)


def _texts(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


def _table(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in _texts(text)]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(text)
    return {key.strip(): value.strip() for key, _, value in pairs}


_READERS: Final[Mapping[Any, Callable[[str], Any]]] = {
    str: str,
    int: int,
    float: float,
    bool: lambda text: _TRUTH[text.strip().lower()],
    timedelta: duration.parse,
    Path: _path,
    tuple[str, ...]: _texts,
    dict[str, str]: _table,
}
