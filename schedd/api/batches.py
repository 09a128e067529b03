"""Many requests in one call: each judged, stored and answered as the single call would.

    requests ─judge, some at a time─▶ wishes ─store, all at once─▶ answers ─told─▶ outcomes
                └─ refused ──────────────────────────────────────────────────────▶ its error

Invariants
- What becomes of one request is nobody else's business: it ends in what it made, or in the error
  that a call of its own would have ended in.
- The call itself fails where the world was away for every one of them, and then as each would have:
  so whoever makes failed calls again makes this one again.
- The loop that keeps the lease alive waits for a slice, never for a whole batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar, cast

from google.protobuf.message import Message

from schedd.api.errors import CallError, InvalidArgument, Violation, of_world
from schedd.api.request_check import check_wellformed
from schedkit.errors import Unavailable
from schedproto.v1 import common_pb2

MOST: Final = 1_000
"""Requests in one call."""
SLICE: Final = 16
"""Requests that are judged, or told, before others have their turn: about two milliseconds."""
MOST_BYTES: Final = 4 * 1024 * 1024 - 4096
"""Of an answer: a message of 4 MiB, less what is around it."""

Request = TypeVar("Request", bound=Message)
Wish = TypeVar("Wish")
Answer = TypeVar("Answer")
Made = TypeVar("Made", bound=Message)


def check_count(requests: Sequence[Message]) -> None:
    """Raise InvalidArgument for none, and for too many."""
    if not 1 <= len(requests) <= MOST:
        problem = f"has {len(requests):,} of them: give 1 to {MOST:,}"
        raise InvalidArgument(
            f"requests: {problem}",
            reason="BAD_COUNT",
            remedy="divide them among several calls; nothing was stored",
            violations=[Violation("requests", problem)],
        )


async def outcomes(
    requests: Sequence[Request],
    judge: Callable[[Request], Awaitable[Wish | Made]],
    store: Callable[[Sequence[Wish]], Awaitable[Sequence[Answer]]],
    told: Callable[[Request, Answer], Made],
) -> list[Made | common_pb2.CallError]:
    """What became of each, in order.

    `judge` gives what is to be stored, or what is to be answered without that; `told`, the message
    for what the store has answered. Both raise CallError for what is refused, and Unavailable.

    Raises:
        Unavailable: the world was away for all of them.
    """
    found: dict[int, Made | CallError | Unavailable] = {}
    wishes: dict[int, Wish] = {}
    for part in _slices(range(len(requests))):
        judging = [_judged(judge, requests[place]) for place in part]
        judged: list[Wish | Made | CallError | Unavailable] = await asyncio.gather(*judging)
        for place, one in zip(part, judged, strict=True):
            if isinstance(one, Message | CallError | Unavailable):
                found[place] = cast("Made | CallError | Unavailable", one)
            else:
                wishes[place] = one
        away = next((one for one in judged if isinstance(one, Unavailable)), None)
        if away is not None:  # nobody waits for it a thousand times
            found |= dict.fromkeys(range(part.stop, len(requests)), away)
            break
    answers = await store([*wishes.values()]) if wishes else ()
    stored = [*zip(wishes, answers, strict=True)]
    for part in _slices(range(len(stored))):
        for place, answer in stored[part.start : part.stop]:
            found[place] = _told(told, requests[place], answer)
        await asyncio.sleep(0)
    failed = [one for one in found.values() if isinstance(one, Unavailable)]
    if len(failed) == len(requests):
        raise failed[0]
    return [_outcome(found[place]) for place in range(len(requests))]


def _slices(places: range) -> Iterator[range]:
    return (places[start : start + SLICE] for start in range(0, len(places), SLICE))


async def _judged(
    judge: Callable[[Request], Awaitable[Answer]], request: Request
) -> Answer | CallError | Unavailable:
    try:
        check_wellformed(request)
        return await judge(request)
    except (CallError, Unavailable) as refused:
        return refused


def _told(
    told: Callable[[Request, Answer], Made], request: Request, answer: Answer
) -> Made | CallError | Unavailable:
    try:
        return told(request, answer)
    except (CallError, Unavailable) as refused:
        return refused


def _outcome(found: Made | CallError | Unavailable) -> Made | common_pb2.CallError:
    if isinstance(found, Unavailable):
        found = of_world(found)
    if not isinstance(found, CallError):
        return found
    error = common_pb2.CallError(
        code=found.code, message=found.message, reason=found.reason, remedy=found.remedy
    )
    for one in found.violations:
        error.violations.add(field=one.field, problem=one.problem)
    return error
