"""Rename fields in errors of calls to their names in REST. Pure.

    page_token isn't …      ──▶  pageToken isn't …
    retry.max_attempts: …   ──▶  retry.maxAttempts: …
    job.name: …             ──▶  name: …   where the body is the job
    time_zone: …            ──▶  time zone: …   on a page

Invariant: only names of request fields are changed, and only in places that name a field. Names
that people chose stay as they are, and so do the keys of `documents`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from schedd.api.calls import methods
from schedd.api.errors import CallError, FieldViolation
from schedproto.v1 import common_pb2

_WORD: Final = re.compile(r"[a-z0-9_]+")


def field(path: str) -> str:
    """Return the path of a field in REST."""
    return _WORD.sub(lambda word: _names().get(word[0], word[0]), path)


def in_words(path: str) -> str:
    """Return the path of a field in words, for pages."""
    return path.replace("_", " ")


def violations(found: Iterable[FieldViolation]) -> list[FieldViolation]:
    return [FieldViolation(field(one.field), one.problem) for one in found]


def detail(
    sentence: str, found: Iterable[FieldViolation], named: Callable[[str], str] = field
) -> str:
    """Return the sentence, with the field at its beginning as in REST."""
    first = max((one.field for one in found if sentence.startswith(one.field)), key=len, default="")
    return named(first) + sentence[len(first) :]


def rename(error: CallError, named: Callable[[str], str]) -> None:
    error.message = detail(error.message, error.violations, named)
    error.violations = tuple(
        FieldViolation(named(one.field), one.problem) for one in error.violations
    )


def within(body: str, path: str) -> str:
    """Return a path of the request relative to the body, which is the request's field `body`."""
    return path.removeprefix(f"{body}.")


def errors_of(batch: Message) -> Iterator[common_pb2.CallError]:
    results: Iterable[Any] = getattr(batch, "results", ())
    return (one.error for one in results if one.HasField("error"))


def rename_outcome(error: common_pb2.CallError) -> None:
    found = [FieldViolation(one.field, one.problem) for one in error.violations]
    error.message = detail(error.message, found)
    for one in error.violations:
        one.field = field(one.field)


@cache
def _names() -> dict[str, str]:
    seen: dict[str, Descriptor] = {}
    left = [method.input_type for method in methods()]
    while left:
        message = left.pop()
        if message.full_name not in seen:
            seen[message.full_name] = message
            left += [one.message_type for one in _fields(message) if one.message_type is not None]
    return {one.name: one.json_name for message in seen.values() for one in _fields(message)}


def _fields(message: Descriptor) -> Iterator[FieldDescriptor]:
    return iter(cast("Iterable[FieldDescriptor]", message.fields))  # upb's has its interface
