"""Batch calls: each request is checked, stored and answered as in a call of its own.

    requests ─check, a slice at a time─▶ items ─store, all at once─▶ answers ─convert─▶ outcomes
       │        └─ rejected ───────────────────────────────────────────────────────────▶ error
       └─ equals a checked one but for its name ─derive─▶ item

Invariants
- The outcome of a request doesn't depend on the others: its object, or the error that a single
  call would have returned.
- The call itself fails only if a dependency failed for all requests, with the error of a single
  call: so clients that retry failed calls retry this one.
- The event loop, which keeps the lease alive, is blocked for a slice, never for a whole batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar, cast

from google.protobuf.message import Message

from schedd.api.definitions import validation
from schedd.api.errors import CallError, dependency_error, wrong
from schedd.api.request_bounds import LONGEST_KEY, check_wellformed
from schedkit.errors import Unavailable
from schedproto.v1 import common_pb2

MOST: Final = 1_000
"""Requests in one call."""
SLICE: Final = 16
"""Requests that are handled before other tasks may run: about two milliseconds."""
MOST_BYTES: Final = 4 * 1024 * 1024 - 4096
"""Size of an answer: the largest message, 4 MiB, less its framing."""

Request = TypeVar("Request", bound=Message)
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Made = TypeVar("Made", bound=Message)


def check_count(requests: Sequence[Message]) -> None:
    """Raise InvalidArgumentError for no request, and for too many."""
    if not 1 <= len(requests) <= MOST:
        problem = f"has {len(requests):,} entries: give 1 to {MOST:,}"
        raise wrong(
            "requests",
            problem,
            "split the batch into several calls; nothing was stored",
            reason="BAD_COUNT",
        )


async def outcomes(
    requests: Sequence[Request],
    check: Callable[[Request], Awaitable[Item | Made]],
    store: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
    convert: Callable[[Request, Answer], Made],
    derive: Callable[[Request], Item | None] = lambda _: None,
) -> list[Made | common_pb2.CallError]:
    """Return the outcome of each request, in order.

    `check` returns the item to store, or a message to answer with instead. `convert` returns the
    message for the store's answer. Both raise CallError for a rejected request, and Unavailable.
    `derive` returns the item that `check` would return; None: the request must be checked.

    Raises:
        Unavailable: a dependency failed for all requests.
    """
    found: dict[int, Made | CallError | Unavailable] = {}
    items: dict[int, Item] = {}
    for part in (range(1), *_slices(range(1, len(requests)))):
        derived = {place: derive(requests[place]) for place in part}
        items |= {place: item for place, item in derived.items() if item is not None}
        left = [place for place, item in derived.items() if item is None]
        checking = [_checked(check, requests[place]) for place in left]
        checked: list[Item | Made | CallError | Unavailable] = await asyncio.gather(*checking)
        for place, one in zip(left, checked, strict=True):
            if isinstance(one, Message | CallError | Unavailable):
                found[place] = cast("Made | CallError | Unavailable", one)
            else:
                items[place] = one
        failure = next((one for one in checked if isinstance(one, Unavailable)), None)
        if failure is not None:  # don't wait for the same timeout for each request
            found |= dict.fromkeys(range(part.stop, len(requests)), failure)
            break
        await asyncio.sleep(0)
    places = sorted(items)
    answers = await store([items[place] for place in places]) if places else ()
    stored = [*zip(places, answers, strict=True)]
    for part in _slices(range(len(stored))):
        for place, answer in stored[part.start : part.stop]:
            found[place] = _converted(convert, requests[place], answer)
        await asyncio.sleep(0)
    failed = [one for one in found.values() if isinstance(one, Unavailable)]
    if len(failed) == len(requests):
        raise failed[0]
    return [_outcome(found[place]) for place in range(len(requests))]


def _slices(places: range) -> Iterator[range]:
    return (places[start : start + SLICE] for start in range(0, len(places), SLICE))


async def _checked(
    check: Callable[[Request], Awaitable[Answer]], request: Request
) -> Answer | CallError | Unavailable:
    try:
        check_wellformed(request)
        return await check(request)
    except (CallError, Unavailable) as error:
        return error


def _converted(
    convert: Callable[[Request, Answer], Made], request: Request, answer: Answer
) -> Made | CallError | Unavailable:
    try:
        return convert(request, answer)
    except (CallError, Unavailable) as error:
        return error


def _outcome(found: Made | CallError | Unavailable) -> Made | common_pb2.CallError:
    if isinstance(found, Unavailable):
        found = dependency_error(found, change=True)
    if not isinstance(found, CallError):
        return found
    error = common_pb2.CallError(
        code=found.code, message=found.message, reason=found.reason, remedy=found.remedy
    )
    for one in found.violations:
        error.violations.add(field=one.field, problem=one.problem)
    return error


# Check equal requests of a batch once: those that differ only in names and keys.
#
#     request ─▶ without its name and keys ─▶ the same as an earlier one?
#                                               ├ yes: only its name and keys are checked
#                                               └ no: checked in full, and kept as a template
#
# Invariants
# - A request whose name or keys could be rejected is checked in full: its error is that of a single
#   call.
# - A template depends on nothing that differs between its requests.

Templated = TypeVar("Templated", bound=Message)
Template = TypeVar("Template")

KEYS: Final = ("idempotency_key", "request_id")
"""Fields in which a request differs from its repetition, and from equal ones."""

LARGEST: Final = 64 * 1024
"""Bytes of a request that is kept as a template: far below every limit of its size."""


def _is_plain(request: Message, key: str) -> bool:
    text: str = getattr(request, key)
    return len(text) <= LONGEST_KEY and text.isprintable()


class RequestTemplates(Generic[Templated, Template]):
    """Requests that were checked in full, the last used `most` of them."""

    def __init__(
        self,
        split: Callable[[Templated], tuple[str, Templated]],
        *,
        nameless: bool = False,
        most: int = MOST,
    ) -> None:
        """`split` returns a request's name, and a copy without name and keys. `nameless`: the name
        may be empty.
        """
        self._split = split
        self._nameless = nameless
        self._most = most
        self._known: dict[bytes, Template] = {}

    def find(self, request: Templated) -> Template | None:
        """Return what is known of the request; None: it must be checked in full."""
        if not self._known:
            return None
        name, common = self._split(request)
        content = common.SerializeToString(deterministic=True)
        template = self._known.get(content)
        if template is not None:  # the newest place
            self._known[content] = self._known.pop(content)
        named = (not name and self._nameless) or not any(validation.check_name(name))
        return template if named and all(_is_plain(request, key) for key in KEYS) else None

    def add(self, request: Templated, template: Template) -> None:
        """Keep what is known of a request that was checked in full."""
        _, common = self._split(request)
        content = common.SerializeToString(deterministic=True)
        if len(content) > LARGEST:
            return
        self._known[content] = template
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
