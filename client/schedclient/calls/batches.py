"""Send many requests in few calls: split, a few calls at a time, answered in order.

    requests ─┬─ at most MOST, and BYTES ─▶ a call ─▶ results ─▶ answers, each in its place
              └─ … two calls at a time         └─ a dependency was unavailable: retry those

Each request has its idempotency key, so a request that may have taken effect is sent again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from schedclient.errors import ApiError, ClusterUnavailable, DeadlineExceeded, from_result
from schedclient.transport.transport import Transport
from schedclient.values.base import Value
from schedclient.values.reading import value_of
from schedkit.backoff import Backoff

S = TypeVar("S")
V = TypeVar("V", bound=Value)

MOST: Final = 500
"""Requests in one call."""
BYTES: Final = 2 * 1024 * 1024
"""Bytes of requests in one call, unless it has only one: half of the message limit."""
TOO_MANY: Final = "TOO_MANY_PARTS"


@dataclass
class Batches(Generic[V]):
    """Combines requests into requests `many`, whose answer has each value `of` in `result`."""

    transport: Transport
    many: Any
    of: type[V]
    result: str
    deadline: float | None = None
    answers: dict[int, V | ApiError] = field(default_factory=dict)

    async def ask(
        self, specs: Iterable[S], request: Callable[[S], Message], calls: int
    ) -> list[V | ApiError]:
        """Return an answer for the request of each spec, in order; `calls` at a time. A rejected
        request doesn't affect the others; the error of a spec without a request is its answer.
        """
        todo = self._split(specs, request)

        async def work_off() -> None:
            for batch in todo:
                await self._call_until_answered(batch)

        async with asyncio.TaskGroup() as group:
            for number in range(calls):
                group.create_task(work_off(), name=f"batches-{number}")
        return [self.answers[place] for place in sorted(self.answers)]

    def _split(
        self, specs: Iterable[S], make: Callable[[S], Message]
    ) -> Iterator[dict[int, Message]]:
        batch: dict[int, Message] = {}
        left = BYTES
        for place, spec in enumerate(specs):
            try:
                request = make(spec)
            except ApiError as error:
                self.answers[place] = error
                continue
            size = request.ByteSize()
            if batch and (len(batch) == MOST or size > left):
                yield batch
                batch, left = {}, BYTES
            batch[place] = request
            left -= size
        if batch:
            yield batch

    async def _call_until_answered(self, batch: Mapping[int, Message]) -> None:
        """Call until each request has an answer, or the deadline has passed."""
        loop = asyncio.get_running_loop()
        timeout = self.transport.settings.timeout if self.deadline is None else self.deadline
        end, backoff = loop.time() + timeout, Backoff(0.05, 1.0)
        while batch:
            try:
                request = self.many(requests=batch.values())
                answer = await self.transport.call(request, end - loop.time())
            except ApiError as error:
                if error.reason == TOO_MANY and len(batch) > 1:
                    items, middle = [*batch.items()], len(batch) // 2
                    await self._call_until_answered(dict(items[:middle]))
                    return await self._call_until_answered(dict(items[middle:]))
                self.answers |= dict.fromkeys(batch, error)
                return None
            for place, result in zip(batch, answer.results, strict=True):
                if result.HasField("error"):
                    self.answers[place] = from_result(result.error)
                else:
                    self.answers[place] = value_of(self.of, getattr(result, self.result))
            again = (ClusterUnavailable, DeadlineExceeded)
            batch = {at: one for at, one in batch.items() if isinstance(self.answers[at], again)}
            wait = backoff.next()
            if end - loop.time() < wait:
                return None
            if batch:
                await asyncio.sleep(wait)
        return None
