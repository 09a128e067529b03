"""Fields in what a call is refused for: REST names them as its JSON does. Pure.

    page_token isn't …      ──▶  pageToken isn't …
    retry.max_attempts: …   ──▶  retry.maxAttempts: …
    job.name: …             ──▶  name: …   where the body is the job
    time_zone: …            ──▶  time zone: …   on a page

Invariant: only a word that is a field of some request is changed, and only where a field is named:
what people call their things stays as they wrote it, as do the keys of `documents`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from schedd.api.calls import methods
from schedd.api.errors import CallError, Violation
from schedproto.v1 import common_pb2

_WORD: Final = re.compile(r"[a-z0-9_]+")


def field(path: str) -> str:
    """The path of a field as REST has it."""
    return _WORD.sub(lambda word: _names().get(word[0], word[0]), path)


def in_words(path: str) -> str:
    """The path of a field as a page says it to a person."""
    return path.replace("_", " ")


def violations(told: Iterable[Violation]) -> list[Violation]:
    """The same, with the fields as REST has them."""
    return [Violation(field(one.field), one.problem) for one in told]


def detail(sentence: str, told: Iterable[Violation], named: Callable[[str], str] = field) -> str:
    """The sentence, with the field that it begins with as REST has it."""
    first = max((one.field for one in told if sentence.startswith(one.field)), key=len, default="")
    return named(first) + sentence[len(first) :]


def rename(error: CallError, named: Callable[[str], str]) -> None:
    """Have the error tell of its fields by other names."""
    error.message = detail(error.message, error.violations, named)
    error.violations = tuple(Violation(named(one.field), one.problem) for one in error.violations)


def within(body: str, path: str) -> str:
    """A path of the request as it stands in the body, which is the request's field `body`."""
    return path.removeprefix(f"{body}.")


def errors_of(batch: Message) -> Iterator[common_pb2.CallError]:
    """Of the answer to many requests, those of the ones that were refused."""
    results: Iterable[Any] = getattr(batch, "results", ())
    return (one.error for one in results if one.HasField("error"))


def rename_outcome(error: common_pb2.CallError) -> None:
    """The same for the error of one request of many."""
    told = [Violation(one.field, one.problem) for one in error.violations]
    error.message = detail(error.message, told)
    for one in error.violations:
        one.field = field(one.field)


@cache
def _names() -> dict[str, str]:
    """Of all fields of all requests, by their names in the protos."""
    seen: dict[str, Descriptor] = {}
    left = [method.input_type for method in methods()]
    while left:
        message = left.pop()
        if message.full_name not in seen:
            seen[message.full_name] = message
            left += [one.message_type for one in _fields(message) if one.message_type is not None]
    return {one.name: one.json_name for message in seen.values() for one in _fields(message)}


def _fields(message: Descriptor) -> Iterator[FieldDescriptor]:
    return iter(cast("Iterable[FieldDescriptor]", message.fields))  # upb's class is its twin
