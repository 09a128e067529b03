"""Read and check the fields of a form.

Invariant: an unknown field is rejected by name, never ignored.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import wraps
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from schedd.api.errors import InvalidArgumentError, cut
from schedd.api.errors import wrong as field_error
from schedd.web.pages.page import NAMESPACE, Do, Done, PageRequest, refuse_each
from schedd.web.rest.bodies import MOST_BYTES, content_of
from schedd.web.rest.problems import RequestProblem
from schedd.web.templating import ONCE

MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
RETURN: Final = "back"
"""The field with the page that shows the result, if it isn't the action's own."""
MOST_FIELDS: Final = 100
"""More than any form has."""
AT_ONCE: Final = 64 * 1024
"""Bytes that are parsed in some 10 ms, if each is written %XX; more are parsed in a thread."""


async def fields_of(request: Request, most: int = MOST_BYTES) -> dict[str, str]:
    """Return the fields by name, without spaces around values.

    Raises:
        RequestProblem: not a form, over `most` bytes, too slow, or a repeated field.
    """
    content = await content_of(request, most)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != MEDIA_TYPE:
            raise ValueError(f"the form's content-type is {kind or 'missing'}, not {MEDIA_TYPE}")
        if len(content) > AT_ONCE:
            pairs = await asyncio.to_thread(_parsed, content)
        else:
            pairs = _parsed(content)
        times = Counter(name for name, _ in pairs)
        if twice := [name for name, count in times.items() if count > 1]:
            raise ValueError(f"the form's field {cut(', '.join(twice))} is given twice")
    except ValueError as error:
        raise RequestProblem(
            "INVALID_ARGUMENT",
            f"the form isn't valid: {error}",
            reason="BAD_FORM",
            remedy="send the form from one of this member's pages",
        ) from error
    return {name: value.replace("\r\n", "\n").strip() for name, value in pairs}


def _parsed(content: bytes) -> list[tuple[str, str]]:
    return parse_qsl(
        content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
    )


def taking(*names: str) -> Callable[[Do], Do]:
    """Return a decorator for an action whose form has these fields, beside the common ones."""

    def of(do: Do) -> Do:
        @wraps(do)
        async def checked(asked: PageRequest) -> Done:
            _check(asked.fields, names)
            return await do(asked)

        return checked

    return of


def _check(sent: Collection[str], names: Collection[str]) -> None:
    problems = {
        name: "belongs in the address" if name == NAMESPACE else "unknown field"
        for name in sent
        if name not in (*names, ONCE, RETURN)
    }
    has = f"fields of the form: {', '.join(names)}" if names else "the form has no fields"
    refuse_each(problems, "UNKNOWN_FIELD", f"leave the field out; {has}; nothing was changed")


def wrong(
    field: str, problem: str, remedy: str = "correct the field; nothing was stored"
) -> InvalidArgumentError:
    return field_error(field, problem, remedy)


def instant_of(text: str, field: str) -> datetime:
    """Return the time in a field, in UTC without an offset. Raises InvalidArgumentError."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        problem = f"{text[:60]!r} isn't a valid time"
        raise wrong(
            field, problem, "the time must have the form 2030-01-01T02:00 or 2030-01-01"
        ) from None
