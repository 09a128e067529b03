"""Batch calls: each request is checked, stored and answered as in a call of its own.

    requests ─check, a slice at a time─▶ items ─store, all at once─▶ answers ─convert─▶ results
       │        └─ rejected ───────────────────────────────────────────────────────────▶ error
       └─ equals a checked one but for its name ─derive─▶ item

Invariants
- The result of a request doesn't depend on the others: its object, or the error that a single call
  would have returned.
- The call itself fails only if a dependency failed for all requests, with the error of a single
  call: so clients that retry failed calls retry this one.
- The event loop, which keeps the lease alive, is blocked for a slice, never for a whole batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from schedd.api.definitions import validation
from schedd.api.errors import CallError, dependency_error, wrong
from schedd.api.request_bounds import LONGEST_KEY, check_wellformed
from schedkit.errors import Unavailable

MOST: Final = 1_000
"""Requests in one call."""
SLICE: Final = 16
"""Requests that are handled before other tasks may run: about two milliseconds."""
MOST_BYTES: Final = 4 * 1024 * 1024 - 4096
"""Size of an answer: the largest message, 4 MiB, less its framing."""

Request = TypeVar("Request", bound=Message)
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def check_count(requests: Sequence[Message]) -> None:
    """Raise InvalidArgumentError for no request, and for too many."""
    if not 1 <= len(requests) <= MOST:
        raise wrong(
            "requests",
            f"the batch has {len(requests):,} requests: give 1 to {MOST:,}",
            "split the batch into several calls; nothing was stored",
            reason="BAD_COUNT",
        )


async def answer_all(
    requests: Sequence[Request],
    results: Any,
    check: Callable[[Request], Awaitable[Item | Message]],
    store: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
    convert: Callable[[Any, Request, Answer], None],
    derive: Callable[[Request], Item | None],
) -> None:
    """Add the result of each request to `results`, in order.

    `check` returns the item to store, or the result. `convert` fills a result with the store's
    answer. Both raise CallError for a rejected request, and Unavailable. `derive` returns the item
    that `check` would return; None: the request must be checked.

    Raises:
        Unavailable: a dependency failed for all requests.
    """
    requests = [*requests]
    found: dict[int, Message | CallError | Unavailable] = {}
    items: dict[int, Item] = {}
    for part in (range(1), *_slices(range(1, len(requests)))):
        left = []
        for place in part:
            if (item := derive(requests[place])) is None:
                left.append(place)
            else:
                items[place] = item
        checking = [_checked(check, requests[place]) for place in left]
        checked: list[Item | Message | CallError | Unavailable] = await asyncio.gather(*checking)
        for place, one in zip(left, checked, strict=True):
            if isinstance(one, Message | CallError | Unavailable):
                found[place] = one
            else:
                items[place] = one
        failure = next((one for one in checked if isinstance(one, Unavailable)), None)
        if failure is not None:  # don't wait for the same timeout for each request
            found |= dict.fromkeys(range(part.stop, len(requests)), failure)
            break
        await asyncio.sleep(0)
    places = sorted(items)
    answers = await store([items[place] for place in places]) if places else ()
    stored = dict(zip(places, answers, strict=True))
    for part in _slices(range(len(requests))):
        for place in part:
            result = results.add()
            if place in stored:
                try:
                    convert(result, requests[place], stored[place])
                    continue
                except (CallError, Unavailable) as error:
                    found[place] = error
            _fill(result, found[place])
        await asyncio.sleep(0)
    failed = [one for one in found.values() if isinstance(one, Unavailable)]
    if len(failed) == len(requests):
        raise failed[0]


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


def _fill(result: Any, found: Message | CallError | Unavailable) -> None:
    if isinstance(found, Message):
        result.CopyFrom(found)
        return
    error = found if isinstance(found, CallError) else dependency_error(found, change=True)
    result.error.code, result.error.message = error.code, error.message
    result.error.reason, result.error.remedy = error.reason, error.remedy
    for one in error.violations:
        result.error.violations.add(field=one.field, problem=one.problem)


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


class RequestTemplates(Generic[Templated, Template]):
    """Requests that were checked in full, the last used `most` of them."""

    def __init__(self, name: str, *beside: str, nameless: bool = False, most: int = MOST) -> None:
        """Equal requests differ in these fields, and in their keys. `nameless`: the name may be
        empty.
        """
        self._name = attrgetter(name)
        self._cleared = [path.rpartition(".") for path in (name, *beside, *KEYS)]
        self._nameless = nameless
        self._most = most
        self._known: dict[bytes, Template] = {}

    def find(self, request: Templated) -> Template | None:
        """Return what is known of the request; None: it must be checked in full."""
        if not self._known:
            return None
        name, content = self._name(request), self._common(request)
        template = self._known.pop(content, None)
        if template is None:
            return None
        self._known[content] = template  # in the newest place
        named = (not name and self._nameless) or not any(validation.check_name(name))
        keys = "".join([getattr(request, key) for key in KEYS])
        return template if named and len(keys) <= LONGEST_KEY and keys.isprintable() else None

    def add(self, request: Templated, template: Template) -> None:
        """Keep what is known of a request that was checked in full."""
        content = self._common(request)
        if len(content) > LARGEST:
            return
        self._known[content] = template
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def _common(self, request: Templated) -> bytes:
        common = type(request)()
        common.CopyFrom(request)
        for parent, _, field in self._cleared:
            (getattr(common, parent) if parent else common).ClearField(field)
        return common.SerializeToString(deterministic=True)
