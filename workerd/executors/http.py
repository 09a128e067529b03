"""Send one HTTP request; its status, or a pattern in its body, decides whether the job succeeded.

Invariants
- Only permitted targets are called, on each hop (schedkit.egress.client).
- An answer is read up to the limit of results, a failure up to 64 KiB. Nothing is decompressed. The
  pattern is searched for in the first 64 KiB.
- Redirects are followed only if the job asks for it, at most `MAX_REDIRECTS`, never from https to
  http.
- Requests are signed for the first origin only, each request separately.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

import aiohttp
from yarl import URL

from schedkit.clock import utcnow
from schedkit.egress.client import CallFailed, EgressClient
from schedkit.egress.policy import Egress
from schedkit.egress.secrets import keys, signature
from schedkit.egress.targets import ForbiddenTarget
from schedkit.net.endpoints import reserved
from schedkit.records import dataclass
from schedkit.text.json_text import TooDeep
from schedkit.text.patterns import Pattern
from schedproto.v1 import job_pb2
from workerd import messages
from workerd.core.capture import KEEP, Piece
from workerd.core.outcome import (
    AttemptOutcome,
    AttemptVerdict,
    Content,
    OutcomeReason,
    failed,
    given_back,
)
from workerd.core.resource_limits import at_limit
from workerd.executors.base import ActionExecutor, AttemptStart, Stop, until_stopped
from workerd.executors.handlers.large_json import LARGE, beside, is_json

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})


@dataclass(slots=True)
class CallProgress:
    """The progress of a call, for the error of a timeout."""

    doing: str = ""
    answers: int = 0


class HttpExecutor(ActionExecutor):
    def __init__(self, egress: Egress, *, secrets: Sequence[Path] = ()) -> None:
        """`secrets`: directories in which jobs may name files of keys."""
        self._secrets = secrets
        self._client = EgressClient(egress, "workerd.toml")

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        progress = CallProgress()
        work = self._call(attempt, progress)
        return await until_stopped(work, attempt, stop, lambda: progress.doing)

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, attempt: AttemptStart, progress: CallProgress) -> AttemptOutcome:
        action = attempt.common.http
        try:
            pattern = Pattern(action.success_pattern)
        except ValueError as error:
            return failed(f"{type(error).__name__}: {error}", OutcomeReason.DONT_RETRY)
        try:
            signing = keys(action.signing_key, self._secrets) if action.signing_key else ()
        except (ValueError, OSError) as error:
            return failed(f"{type(error).__name__}: {error}", OutcomeReason.EXCEPTION)
        try:
            return await self._follow(action, attempt, pattern, signing, progress)
        except (aiohttp.InvalidURL, ForbiddenTarget) as error:
            return failed(str(error), OutcomeReason.DONT_RETRY)
        except CallFailed as error:
            if error.os_error and at_limit(error.os_error):  # no descriptor: not the job's fault
                return given_back(str(error.os_error.strerror), began=progress.answers > 0)
            return failed(str(error), OutcomeReason.EXCEPTION)
        except (OSError, ValueError) as error:
            return failed(f"{type(error).__name__}: {error}", OutcomeReason.EXCEPTION)

    async def _follow(
        self,
        action: job_pb2.HttpAction,
        attempt: AttemptStart,
        pattern: Pattern,
        signing: Sequence[bytes],
        progress: CallProgress,
    ) -> AttemptOutcome:
        method, url = action.method.upper() or "POST", URL(action.url)
        body: bytes | None = _body(action, attempt)
        headers = _headers(action, attempt)
        for _ in range(1 + MAX_REDIRECTS):
            signed = (
                signature(signing, attempt.key.run, int(utcnow().timestamp()), body or b"")
                if signing
                else {}
            )
            progress.doing = f"waiting for the answer of {url.host}:{url.port}"
            async with self._client.request(
                method, url, headers=headers | signed, data=body
            ) as answer:
                progress.answers += 1
                progress.doing = f"reading the answer of {url.host}:{url.port}"
                onward = answer.headers.get("Location")
                if not (action.follow_redirects and answer.status in _REDIRECTS and onward):
                    return await _judged(answer, action, pattern, attempt.most_result)
            try:
                target = url.join(URL(onward))
            except ValueError as error:
                text = f"the target redirects to {onward[:200]!r}, which isn't a valid URL: {error}"
                return failed(text, OutcomeReason.HTTP_STATUS)
            self._client.check(target)
            if target.origin() != url.origin():
                headers = {k: v for k, v in headers.items() if k.lower() not in _CREDENTIALS}
                signing = ()
            if url.scheme == "https" and target.scheme != "https":
                raise ForbiddenTarget(
                    f"a redirect from https to {target.scheme} isn't followed, because the"
                    " request would be sent unencrypted: write the address without the redirect"
                    " into `url`"
                )
            if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            url = target
        return failed(
            f"the target sent more than {MAX_REDIRECTS} redirects", OutcomeReason.HTTP_STATUS
        )


async def _judged(
    answer: aiohttp.ClientResponse, action: job_pb2.HttpAction, pattern: Pattern, most: int
) -> AttemptOutcome:
    data = bytearray()
    await _read(answer, data, KEEP)
    kept = bytes(data[:KEEP])
    output = (Piece(stderr=False, data=kept, offset=0, at=utcnow()),) if kept else ()
    expected = action.success_statuses
    if answer.status not in expected if expected else not 200 <= answer.status < 300:
        return failed(
            f"HTTP {answer.status} {answer.reason or ''}".rstrip(),
            OutcomeReason.HTTP_STATUS,
            exit_code=answer.status,
            output=output,
            retry_after=_retry_after(answer.headers),
        )
    if not pattern.found_in(kept):
        wrong = f"HTTP {answer.status}, but the body doesn't match {action.success_pattern!r}"
        return failed(wrong, OutcomeReason.HTTP_STATUS, exit_code=answer.status, output=output)
    await _read(answer, data, most)
    result = None
    try:
        if 0 < len(data) <= LARGE:
            result = _content(bytes(data), answer.content_type)
        elif 0 < len(data) <= most:
            result = await beside(partial(_content, bytes(data), answer.content_type))
    except TooDeep as error:
        return failed(f"response {error}", OutcomeReason.DONT_RETRY)
    return AttemptOutcome(AttemptVerdict.SUCCEEDED, result=result, output=() if result else output)


async def _read(answer: aiohttp.ClientResponse, data: bytearray, most: int) -> None:
    """Read at most `most` bytes of the body, and one more byte if there is one."""
    while len(data) <= most and (chunk := await answer.content.read(most + 1 - len(data))):
        data += chunk


def _content(data: bytes, kind: str) -> Content:
    if kind == "application/json" or kind.endswith("+json"):
        return Content(data, json=is_json(data))  # an invalid body is kept as bytes
    return Content(data, json=False)


def _body(action: job_pb2.HttpAction, attempt: AttemptStart) -> bytes | None:
    if action.HasField("json"):
        return messages.payload_bytes(action.json)
    return action.body.encode() or attempt.payload or None


def _headers(action: job_pb2.HttpAction, attempt: AttemptStart) -> dict[str, str]:
    facts = {
        f"Schedd-{name.replace('_', '-').title()}": value
        for name, value in attempt.facts().items()
        if value
    }
    headers = {"User-Agent": "schedd", "Accept-Encoding": "identity", **facts}
    if attempt.traceparent:
        headers["traceparent"] = attempt.traceparent
    is_json = action.HasField("json") or (
        not action.body and attempt.batch.payload(attempt.place).WhichOneof("kind") == "json"
    )
    if is_json:
        headers["Content-Type"] = "application/json"
    theirs = {name: value for name, value in action.headers.items() if not reserved(name)}
    named = {name.lower() for name in theirs}
    return {**{name: headers[name] for name in headers if name.lower() not in named}, **theirs}


def _retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """Return the delay in Retry-After, as seconds or date; None if missing or invalid."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:12]), 86_400))
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(at - datetime.now(UTC), timedelta(0))
    except (ValueError, OverflowError):
        return None
