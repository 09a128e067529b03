"""What a form sent: its fields, each a text; and that one can't be meant."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from schedd.api.errors import InvalidArgument, Violation, cut
from schedd.web import problems
from schedd.web.bodies import MOST_BYTES, content_of
from schedd.web.problems import Refusal

MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
MOST_FIELDS: Final = 100
"""No form here has as many."""
AT_ONCE: Final = 64 * 1024
"""Bytes that are read in some 10 ms, if each is written %XX; more are read beside the loop."""


async def fields_of(request: Request, most: int = MOST_BYTES) -> dict[str, str]:
    """The fields by name, spaces around them left out. A form of more than `most` bytes isn't read.

    Raises:
        Refusal: it is no form, too large, too slow, or has a field twice.
    """
    content = await content_of(request, most)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != MEDIA_TYPE:
            raise ValueError(f"content-type is {kind or 'missing'}")
        if len(content) > AT_ONCE:
            pairs = await asyncio.to_thread(_parsed, content)
        else:
            pairs = _parsed(content)
        times = Counter(name for name, _ in pairs)
        if twice := [name for name, count in times.items() if count > 1]:
            raise ValueError(f"{cut(', '.join(twice))} is given twice")
    except ValueError as error:
        raise Refusal(
            problems.problem(
                "INVALID_ARGUMENT",
                f"the form can't be read: {error}",
                reason="BAD_FORM",
                remedy="send it from one of this member's pages",
            )
        ) from error
    return {name: value.replace("\r\n", "\n").strip() for name, value in pairs}


def _parsed(content: bytes) -> list[tuple[str, str]]:
    return parse_qsl(
        content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
    )


def wrong(
    field: str, problem: str, remedy: str = "mend the field; nothing was stored"
) -> InvalidArgument:
    """That a field can't be meant."""
    return InvalidArgument(
        f"{field}: {problem}",
        reason="INVALID_FIELD",
        remedy=remedy,
        violations=[Violation(field, problem)],
    )
