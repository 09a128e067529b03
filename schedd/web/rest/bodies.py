"""The body of an HTTP request: its bytes within bounds, and the JSON object that they are.

Invariants
- What is too large or too slow is refused before it is all there, and who sends reads the answer.
- A key stands once in its object.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from email.message import Message
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from schedd.api.errors import Violation, cut
from schedd.runtime.budgeted_work import converted
from schedd.web.rest import problems
from schedd.web.rest.problems import RequestProblem
from schedkit.protojson import standard

MOST_BYTES: Final = 4 * 1024 * 1024

BODY_WITHIN: Final = 30.0
"""Seconds that a body may take to come."""

MOST_DROPPED: Final = 16 * 1024 * 1024
"""Bytes of a body that is too large, beyond those that it may have, that are taken and dropped."""
DROPPED_WITHIN: Final = 5.0
"""Seconds that these may take."""

AROUND: Final = 5
"""Levels of a body around a payload, at most."""


async def body_of(request: Request, *, expected: bool) -> Mapping[str, Any] | None:
    """The body as an object; None when there is none.

    Raises:
        Refusal: it is no JSON object, too large, too slow, or not `expected`.
    """
    _check_coding(request.headers.getlist("content-encoding"))
    content = await content_of(request)
    if not content.strip():
        return {} if expected else None
    if not expected:
        raise wrong("this call takes no body")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestProblem(
            problems.problem(
                "UNSUPPORTED_MEDIA_TYPE",
                f"content-type is {kind or 'missing'}",
                reason="NOT_JSON",
                remedy="send JSON with content-type: application/json",
            )
        )
    _check_charset(request.headers["content-type"])
    request.state.body_size = len(content)
    return await converted(len(content), partial(parsed, content))


def _check_coding(told: Iterable[str]) -> None:
    """Raise Refusal for a body that says it is compressed: it would be read as if it weren't."""
    codings = [one.strip().lower() for one in ",".join(told).split(",")]
    if any(one not in ("", "identity") for one in codings):
        raise RequestProblem(
            problems.problem(
                "UNSUPPORTED_MEDIA_TYPE",
                f"content-encoding is {cut(', '.join(codings))}",
                reason="ENCODED",
                remedy="send it as it is, without content-encoding",
            ),
            {"accept-encoding": "identity"},
        )


def _check_charset(content_type: str) -> None:
    """Raise Refusal for a body that says it is in anything but UTF-8 (RFC 8259)."""
    told = Message()
    told["content-type"] = content_type
    charset = str(told.get_param("charset", "utf-8"))
    if charset.strip().lower() not in {"utf-8", "utf8"}:
        raise RequestProblem(
            problems.problem(
                "UNSUPPORTED_MEDIA_TYPE",
                f"content-type says charset={cut(charset)}",
                reason="NOT_UTF_8",
                remedy="send JSON in UTF-8, which needs no charset",
            )
        )


async def content_of(request: Request, most: int = MOST_BYTES) -> bytes:
    """All bytes of the body. Raises Refusal: they are too many, or come too slowly."""
    content = bytearray()
    pieces = request.stream()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for piece in pieces:
                content += piece
                if len(content) > most:
                    content.clear()
                    await _dropped(pieces)
                    raise _too_large(most)
    except TimeoutError:
        raise _too_slow() from None
    return bytes(content)


async def _dropped(pieces: AsyncIterator[bytes]) -> None:
    """Take what is left of a body, within bounds: who is cut off while sending reads no answer."""
    left = MOST_DROPPED
    with suppress(TimeoutError):
        async with asyncio.timeout(DROPPED_WITHIN):
            async for piece in pieces:
                left -= len(piece)
                if left < 0:
                    return


def _too_large(most: int) -> RequestProblem:
    return RequestProblem(
        problems.problem(
            "CONTENT_TOO_LARGE",
            f"the body has more than {most:,} bytes",
            reason="REQUEST_TOO_LARGE",
            remedy="store large payloads elsewhere and hand on where they are",
        ),
        {"connection": "close"},
    )


def _too_slow() -> RequestProblem:
    return RequestProblem(
        problems.problem(
            "REQUEST_TIMEOUT",
            f"the body wasn't there after {BODY_WITHIN:.0f} s",
            reason="REQUEST_TOO_SLOW",
            remedy="send it faster",
        ),
        {"connection": "close"},
    )


def parsed(content: bytes) -> Mapping[str, Any]:
    """The JSON object that a body is. Raises Refusal. Pure."""
    try:
        found = standard.loads(content, levels=standard.MOST_NESTED + AROUND, pairs=once)
    except (standard.TooDeep, standard.TooMany) as beyond:
        raise wrong(f"the body {beyond}") from beyond
    except ValueError as error:
        raise wrong(f"the body is no JSON: {error}", reason="MALFORMED_JSON") from error
    if not isinstance(found, Mapping):
        raise wrong(f"the body must be an object, not {json.dumps(found)[:40]}")
    return found


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once in it. Raises ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        times = Counter(key for key, _ in pairs)
        twice = next(key for key in found if times[key] > 1)
        raise ValueError(f"{twice!r} is given twice")
    return found


def wrong(
    detail: str, *, reason: str = "INVALID_REQUEST", violations: Iterable[Violation] = ()
) -> RequestProblem:
    """What a client sent that no request is made of."""
    return RequestProblem(
        problems.problem(
            "INVALID_ARGUMENT",
            detail,
            reason=reason,
            remedy="mend the request and send it again; nothing was stored",
            violations=violations,
        )
    )
