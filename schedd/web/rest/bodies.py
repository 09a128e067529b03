"""Read the body of an HTTP request: bytes within limits, parsed as a JSON object.

Invariants
- A body that is too large or too slow is rejected early, and the sender can read the answer.
- An object has no duplicate keys.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from email.message import Message
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from schedd.api.errors import FieldViolation, cut
from schedd.runtime.budgeted_work import converted
from schedd.web.rest.problems import RequestProblem
from schedkit.protojson import standard

MOST_BYTES: Final = 4 * 1024 * 1024

BODY_WITHIN: Final = 30.0
"""Seconds to receive a body."""

MOST_DROPPED: Final = 16 * 1024 * 1024
"""Bytes over the limit that are received and dropped."""
DROPPED_WITHIN: Final = 5.0
"""Seconds to receive those."""

AROUND: Final = 5
"""Levels of a body around a payload, at most."""


async def body_of(request: Request, *, expected: bool) -> Mapping[str, Any] | None:
    """Return the body as an object; None without a body.

    Raises:
        RequestProblem: not a JSON object, too large, too slow, or not `expected`.
    """
    _check_coding(request.headers.getlist("content-encoding"))
    content = await content_of(request)
    if not content.strip():
        return {} if expected else None
    if not expected:
        raise wrong("this call takes no body: send the request without a body")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestProblem(
            "UNSUPPORTED_MEDIA_TYPE",
            f"the request's content-type is {kind or 'missing'}",
            reason="NOT_JSON",
            remedy="send JSON with content-type: application/json",
        )
    _check_charset(request.headers["content-type"])
    request.state.body_size = len(content)
    return await converted(len(content), partial(parsed, content))


def _check_coding(sent: Iterable[str]) -> None:
    """Raise RequestProblem for a compressed body, which isn't supported."""
    codings = [one.strip().lower() for one in ",".join(sent).split(",")]
    if any(one not in ("", "identity") for one in codings):
        raise RequestProblem(
            "UNSUPPORTED_MEDIA_TYPE",
            f"the content-encoding {cut(', '.join(codings))} isn't supported",
            reason="ENCODED",
            remedy="send the body without content-encoding",
            headers={"accept-encoding": "identity"},
        )


def _check_charset(content_type: str) -> None:
    """Raise RequestProblem for a charset other than UTF-8 (RFC 8259)."""
    parsed_type = Message()
    parsed_type["content-type"] = content_type
    charset = str(parsed_type.get_param("charset", "utf-8"))
    if charset.strip().lower() not in {"utf-8", "utf8"}:
        raise RequestProblem(
            "UNSUPPORTED_MEDIA_TYPE",
            f"the charset {cut(charset)} isn't supported",
            reason="NOT_UTF_8",
            remedy="send JSON in UTF-8, without charset",
        )


async def content_of(request: Request, most: int = MOST_BYTES) -> bytes:
    """Return all bytes of the body. Raises RequestProblem: too large, or too slow."""
    content = bytearray()
    pieces = request.stream()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for piece in pieces:
                content += piece
                if len(content) > most:
                    content.clear()
                    await _dropped(pieces)
                    raise RequestProblem(
                        "CONTENT_TOO_LARGE",
                        f"the request's body has more than {most:,} bytes",
                        reason="REQUEST_TOO_LARGE",
                        remedy="store large payloads elsewhere and send their location",
                        headers={"connection": "close"},
                    )
    except TimeoutError:
        raise RequestProblem(
            "REQUEST_TIMEOUT",
            f"reading the request's body timed out after {BODY_WITHIN:.0f} s",
            reason="REQUEST_TOO_SLOW",
            remedy="send the body faster, or in smaller requests",
            headers={"connection": "close"},
        ) from None
    return bytes(content)


async def _dropped(pieces: AsyncIterator[bytes]) -> None:
    """Drop the rest of a body, within limits: a sender that is cut off couldn't read the answer."""
    left = MOST_DROPPED
    with suppress(TimeoutError):
        async with asyncio.timeout(DROPPED_WITHIN):
            async for piece in pieces:
                left -= len(piece)
                if left < 0:
                    return


def parsed(content: bytes) -> Mapping[str, Any]:
    """Parse a body as a JSON object. Raises RequestProblem. Pure."""
    try:
        found = standard.loads(content, levels=standard.MOST_NESTED + AROUND, pairs=once)
    except (standard.TooDeep, standard.TooMany) as beyond:
        raise wrong(f"the request's body can't be read, because it {beyond}") from beyond
    except ValueError as error:
        raise wrong(
            f"the request's body isn't valid JSON: {error}", reason="MALFORMED_JSON"
        ) from error
    if not isinstance(found, Mapping):
        raise wrong(f"the request's body must be a JSON object, not {json.dumps(found)[:40]}")
    return found


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without duplicate keys. Raises ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        times = Counter(key for key, _ in pairs)
        twice = next(key for key in found if times[key] > 1)
        raise ValueError(f"the key {twice!r} is given twice: give it once")
    return found


def wrong(
    detail: str, *, reason: str = "INVALID_REQUEST", violations: Iterable[FieldViolation] = ()
) -> RequestProblem:
    return RequestProblem(
        "INVALID_ARGUMENT",
        detail,
        reason=reason,
        remedy="correct the request and send it again; nothing was stored",
        violations=violations,
    )
