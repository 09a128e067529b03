"""Watch runs until they have ended, all runs of a job or namespace, or a backfill, redrive or
worker.

    stream ──breaks──▶ another member, from the last cursor on ──▶ missed changes, then new ones

Invariants
- No state is yielded twice in a row, however often a stream breaks.
- A single object is yielded in its current state. Its states between two streams are lost.
- If a member ends the stream early, the next request follows after a second. The wait grows while
  nothing changes.
- The last state of each run is yielded, if the run is kept: after a gap, the runs that hadn't ended
  are read one by one.
- A watch has one deadline over all its streams and calls. DeadlineExceeded is raised at its end,
  not when a single call times out.
- A watch ends if no member is reachable (`UNREACHABLE`), not if one fails.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from schedclient.errors import NO_ANSWER, ClusterUnavailable, DeadlineExceeded, NotFound
from schedclient.transport.transport import UNREACHABLE, Transport
from schedclient.values.base import Value
from schedclient.values.reading import value_of
from schedclient.values.runs import Run, RunEvent
from schedkit.backoff import Backoff
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire

MOST_KNOWN: Final = 10_000
"""Runs whose last state is kept, so that no state is yielded twice."""

V = TypeVar("V", bound=Value)


async def one(
    transport: Transport,
    request: Message,
    deadline: float | None,
    of: type[V],
    over: Callable[[V], bool] = lambda _: False,
) -> AsyncIterator[V]:
    """Yield one object, then each change of it, over any number of streams, until it is `over`."""
    broken, ended, time = Backoff(0.1, 2.0), Backoff(1.25, 5.0), _Time(deadline)
    last: Message | None = None
    while True:
        pause = broken
        try:
            async for message in transport.stream(request, time.remaining_seconds):
                time.answered()
                if (facts := _ageless(message)) != last:
                    last = facts
                    broken.reset()
                    ended.reset()
                    yield (value := value_of(of, message))
                    if over(value):
                        return
            pause = ended
        except (ClusterUnavailable, DeadlineExceeded) as failure:
            time.failed(failure)
        await time.sleep_within(pause.next())


class _Time:
    """The time of a watch: `most` seconds from now; None: unlimited."""

    def __init__(self, most: float | None) -> None:
        self._most = most
        self._began = asyncio.get_running_loop().time()
        self._refusal: ClusterUnavailable | None = None

    @property
    def remaining_seconds(self) -> float | None:
        """Return the remaining seconds, never below zero; None: unlimited."""
        if self._most is None:
            return None
        return max(0.0, self._began + self._most - asyncio.get_running_loop().time())

    def of_a_call(self, usual: float) -> float:
        left = self.remaining_seconds
        return usual if left is None else min(usual, left)

    def answered(self) -> None:
        """Forget the last rejection: a member has answered."""
        self._refusal = None

    def failed(self, failure: ClusterUnavailable | DeadlineExceeded) -> None:
        """Keep a failure that the watch retries after. Raise it if no member is reachable, or if
        the watch has no deadline and connecting timed out.
        """
        if isinstance(failure, DeadlineExceeded):
            gone = self._most is None
        else:
            gone, self._refusal = (
                failure.reason in UNREACHABLE and self.remaining_seconds != 0,
                failure,
            )
        if gone:
            raise failure

    async def sleep_within(self, seconds: float) -> None:
        """Wait, or raise DeadlineExceeded if the watch's time ends first."""
        await asyncio.sleep(self.of_a_call(seconds))
        if self.remaining_seconds == 0:
            over = DeadlineExceeded(
                f"the watch timed out after {self._most:g} s",
                reason=NO_ANSWER,
                remedy="watch again, or give a longer deadline",
            )
            raise over.after(self._refusal) if self._refusal else over


def _ageless(message: Message) -> Message:
    """Return the message without the age of its lease, which isn't a change."""
    if "lease_age" not in message.DESCRIPTOR.fields_by_name:
        return message
    facts = type(message)()
    facts.CopyFrom(message)
    facts.ClearField("lease_age")
    return facts


async def watch_runs(
    transport: Transport, watched: Sequence[str], deadline: float | None
) -> AsyncIterator[Run]:
    """Yield these runs, then each change, until all have ended."""
    known = _Known()
    request = wire.WatchRunsRequest(run_ids=watched)
    async for event in _events(transport, request, _Time(deadline)):
        if event is not None and known.is_news(event.run):
            yield value_of(Run, event.run)
        elif event is None and all(known.has_ended(run_id) for run_id in watched):
            return


async def events(
    transport: Transport, request: wire.WatchRunsRequest, deadline: float | None
) -> AsyncIterator[RunEvent]:
    """Yield each change of the requested runs, and each gap."""
    known = _Known()
    async for event in _events(transport, request, _Time(deadline)):
        if event is not None and (not event.HasField("run") or known.is_news(event.run)):
            yield value_of(RunEvent, event)


async def runs(
    transport: Transport, request: wire.WatchRunsRequest, deadline: float | None
) -> AsyncIterator[Run]:
    """Yield the runs of `events`; after a gap, read those that hadn't ended."""
    known, time = _Known(), _Time(deadline)
    async for event in _events(transport, request, time):
        if event is None:
            continue
        if event.HasField("run") and known.is_news(event.run):
            yield value_of(Run, event.run)
        if not event.HasField("gap"):
            continue
        for run_id in known.living:
            one = await _read(transport, run_id, time)
            if one is None:
                known.forget(run_id)
            elif known.is_news(one):
                yield value_of(Run, one)


async def _read(transport: Transport, run_id: str, time: _Time) -> run_pb2.Run | None:
    """Return the run as soon as a member answers; None if it isn't kept any more."""
    backoff, request = Backoff(0.1, 2.0), wire.GetRunRequest(run_id=run_id)
    while True:
        within = time.of_a_call(transport.settings.timeout)
        try:
            run: run_pb2.Run = await transport.call(request, within)
            time.answered()
            return run
        except NotFound:
            return None
        except DeadlineExceeded:
            pass  # the next call may be answered
        except ClusterUnavailable as failure:
            time.failed(failure)
        await time.sleep_within(backoff.next())


async def _events(
    transport: Transport, request: wire.WatchRunsRequest, time: _Time
) -> AsyncIterator[wire.RunEvent | None]:
    """Yield the events of one stream after another; None where a stream ended."""
    backoff = Backoff(0.1, 2.0)
    while True:
        try:
            async for event in transport.stream(request, time.remaining_seconds):
                backoff.reset()
                time.answered()
                if event.cursor and not request.run_ids:  # with run_ids a member accepts no cursor
                    request.resume_after = event.cursor
                if any(event.HasField(what) for what in ("run", "gap", "cluster")):
                    yield event
        except (ClusterUnavailable, DeadlineExceeded) as failure:
            time.failed(failure)
        else:
            yield None
        await time.sleep_within(backoff.next())


class _Known:
    """The last state that was yielded of each run."""

    def __init__(self) -> None:
        self._runs: dict[str, run_pb2.Run] = {}

    def is_news(self, run: run_pb2.Run) -> bool:
        before = self._runs.pop(run.run_id, None)
        self._runs[run.run_id] = run
        if len(self._runs) > MOST_KNOWN:
            del self._runs[next(iter(self._runs))]
        return before != run

    def forget(self, run_id: str) -> None:
        """Forget a run that isn't kept any more."""
        self._runs.pop(run_id, None)

    def has_ended(self, run_id: str) -> bool:
        run = self._runs.get(run_id)
        return run is not None and value_of(Run, run).ended

    @property
    def living(self) -> list[str]:
        """Return the runs whose end wasn't yielded."""
        return [run_id for run_id in self._runs if not self.has_ended(run_id)]
