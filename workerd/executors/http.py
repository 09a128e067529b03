"""One HTTP request; its status, or a pattern in its body, says whether the job succeeded.

Invariants
- Only permitted addresses are connected to, on each hop (targets).
- Of an answer as much is read as may be kept, of one that is a failure 64 KiB; as it came: nothing
  is decompressed. A pattern is looked for in the first 64 KiB.
- Redirects are followed only when the job asks, at most `MAX_HOPS`, and never from https to http.
- Nothing of the worker's surroundings is used: no proxy variables, no netrc, no cookies.
- What is signed is signed for the first origin alone, and anew for each sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

import aiohttp
from yarl import URL

from schedkit.clock import utcnow
from schedkit.headers import reserved
from schedkit.outward.policy import Egress
from schedkit.outward.secrets import keys
from schedkit.outward.signing import signature
from schedkit.outward.targets import ForbiddenTarget, Targets
from schedkit.patterns import Pattern
from schedproto.v1 import job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.capture import KEEP, Piece
from workerd.core.outcome import MAX_ERROR, Content, Outcome, Reason, Verdict, stopped
from workerd.executors.base import Attempt, Stop, payload_bytes, until_stopped
from workerd.executors.large import LARGE, beside, is_json
from workerd.limits import at_limit

MAX_HOPS = 5
CONNECT_WITHIN = 10.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})


class Http:
    """The executor of `http`."""

    def __init__(self, egress: Egress, *, secrets: Sequence[Path] = ()) -> None:
        """`secrets`: directories below which jobs may name files of keys."""
        self._secrets = secrets
        self._targets = Targets(egress.allowed(), "workerd.toml")
        self._session: aiohttp.ClientSession | None = None

    def objection(self, assignment: pb.Assignment) -> str:
        """It can do all there is."""
        del assignment
        return ""

    async def run(self, attempt: Attempt, stop: Stop) -> Outcome:
        """Send it, and judge the answer."""
        outcome = await until_stopped(self._call(attempt), stop)
        if outcome is None:
            assert stop.cause is not None, "nothing else ends it"
            return stopped(stop.cause)
        return outcome

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()

    async def _call(self, attempt: Attempt) -> Outcome:
        action = attempt.assignment.http
        try:
            pattern = Pattern(action.success_pattern)
        except ValueError as error:
            return _failed(error, Reason.DONT_RETRY)
        try:
            signing = keys(action.signing_key, self._secrets) if action.signing_key else ()
        except (ValueError, OSError) as error:
            return _failed(error, Reason.EXCEPTION)
        answered: list[URL] = []
        try:
            return await self._follow(action, attempt, pattern, signing, answered)
        except (aiohttp.InvalidURL, ForbiddenTarget) as error:
            return _failed(error, Reason.DONT_RETRY)
        except aiohttp.ClientConnectorError as error:
            if at_limit(error.os_error):  # no descriptor, say: none of the job's doing
                told = f"this worker can't start it: {error.os_error.strerror}"
                return Outcome(Verdict.RETURNED, error=told, began=bool(answered))
            forbidden = isinstance(error.os_error, ForbiddenTarget)
            return _failed(
                error.os_error if forbidden else error,
                Reason.DONT_RETRY if forbidden else Reason.EXCEPTION,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _failed(error, Reason.EXCEPTION)

    async def _follow(
        self,
        action: job_pb2.HttpAction,
        attempt: Attempt,
        pattern: Pattern,
        signing: Sequence[bytes],
        answered: list[URL],
    ) -> Outcome:
        """`answered` is told each address that has."""
        method, url = action.method.upper() or "POST", URL(action.url)
        body: bytes | None = _body(action, attempt)
        headers = _headers(action, attempt)
        for _ in range(MAX_HOPS):
            self._check(url)
            signed = (
                signature(signing, attempt.key.run, int(utcnow().timestamp()), body or b"")
                if signing
                else {}
            )
            async with self._open().request(
                method, url, headers=headers | signed, data=body, allow_redirects=False
            ) as answer:
                answered.append(url)
                onward = answer.headers.get("Location")
                if not (action.follow_redirects and answer.status in _REDIRECTS and onward):
                    return await _judged(answer, action, pattern, attempt.most_result)
            target = url.join(URL(onward))
            self._check(target)
            if target.origin() != url.origin():
                headers = {k: v for k, v in headers.items() if k.lower() not in _CREDENTIALS}
                signing = ()
            if url.scheme == "https" and target.scheme != "https":
                raise ForbiddenTarget(f"a redirect from https to {target.scheme} is not followed")
            if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            url = target
        return Outcome(Verdict.FAILED, Reason.HTTP_STATUS, f"more than {MAX_HOPS} redirects")

    def _check(self, url: URL) -> None:
        if url.scheme not in ("http", "https") or not url.host:
            raise ForbiddenTarget(f"{url} is no http or https address")
        self._targets.check_literal(url.host, url.port or 0)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._targets, use_dns_cache=False, limit=0, force_close=True
                ),
                # The attempt's own timeout ends the rest.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


async def _judged(
    answer: aiohttp.ClientResponse, action: job_pb2.HttpAction, pattern: Pattern, most: int
) -> Outcome:
    data = bytearray()
    await _read(answer, data, KEEP)
    kept = bytes(data[:KEEP])
    output = (Piece(stderr=False, data=kept, offset=0, at=utcnow()),) if kept else ()
    expected = action.success_statuses
    if answer.status not in expected if expected else not 200 <= answer.status < 300:
        return Outcome(
            Verdict.FAILED,
            Reason.HTTP_STATUS,
            f"HTTP {answer.status} {answer.reason or ''}".rstrip(),
            exit_code=answer.status,
            output=output,
            retry_after=_retry_after(answer.headers),
        )
    if not pattern.found_in(kept):
        wrong = f"HTTP {answer.status}, but its body doesn't match {action.success_pattern!r}"
        return Outcome(Verdict.FAILED, Reason.HTTP_STATUS, wrong, answer.status, output=output)
    await _read(answer, data, most)
    result = None
    if 0 < len(data) <= LARGE:
        result = _content(bytes(data), answer.content_type)
    elif 0 < len(data) <= most:
        result = await beside(partial(_content, bytes(data), answer.content_type))
    return Outcome(Verdict.SUCCEEDED, result=result, output=() if result else output)


async def _read(answer: aiohttp.ClientResponse, data: bytearray, most: int) -> None:
    """So much of its body and, if there is more, one byte of that."""
    while len(data) <= most and (chunk := await answer.content.read(most + 1 - len(data))):
        data += chunk


def _content(data: bytes, kind: str) -> Content:
    if kind == "application/json" or kind.endswith("+json"):
        return Content(data, json=is_json(data))  # else it only says so: kept as bytes
    return Content(data, json=False)


def _body(action: job_pb2.HttpAction, attempt: Attempt) -> bytes | None:
    if action.HasField("json"):
        return payload_bytes(action.json)
    return action.body.encode() or attempt.payload or None


def _headers(action: job_pb2.HttpAction, attempt: Attempt) -> dict[str, str]:
    told = {
        f"Schedd-{name.replace('_', '-').title()}": value
        for name, value in attempt.facts().items()
        if value
    }
    headers = {"User-Agent": "schedd", "Accept-Encoding": "identity", **told}
    if attempt.assignment.traceparent:
        headers["traceparent"] = attempt.assignment.traceparent
    is_json = action.HasField("json") or (
        not action.body and attempt.assignment.payload.WhichOneof("kind") == "json"
    )
    if is_json:
        headers["Content-Type"] = "application/json"
    theirs = {name: value for name, value in action.headers.items() if not reserved(name)}
    named = {name.lower() for name in theirs}
    return {**{name: headers[name] for name in headers if name.lower() not in named}, **theirs}


def _retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """What the target wishes: seconds, or a date. Nonsense counts as no wish."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:12]), 86_400))
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(at - datetime.now(UTC), timedelta(0))
    except (ValueError, OverflowError):
        return None


def _failed(error: BaseException, reason: Reason) -> Outcome:
    return Outcome(Verdict.FAILED, reason, f"{type(error).__name__}: {error}"[:MAX_ERROR])
