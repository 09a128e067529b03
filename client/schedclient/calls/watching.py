"""Runs as they change: these until they have ended, or all of a job or a namespace for ever; or one
thing that makes runs or runs them.

    stream ──breaks──▶ another member, from the last cursor on ──▶ what was missed, then each change

Invariants
- No state is told twice in a row, however often a stream breaks.
- One thing is told of from how it stands; what it was between two streams isn't.
- Where its member ends the stream before it is over, it is asked again a second later, and later
  and later while it tells nothing new.
- The last state of a run is told, if it is kept: after a gap those that lived are looked at one by
  one.
- A watch has one deadline, however many streams and calls it takes: DeadlineExceeded at its end,
  and not before because a call has had its time.
- It ends where no member speaks with us (`NOBODY`), not where one has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from schedclient.errors import NO_ANSWER, ClusterUnavailable, DeadlineExceeded, NotBuilt, NotFound
from schedclient.transport import methods
from schedclient.transport.methods import Method
from schedclient.transport.transport import NOBODY, Transport
from schedclient.values.base import Value
from schedclient.values.events import RunEvent
from schedclient.values.reading import value_of
from schedclient.values.runs import Run
from schedkit.backoff import Backoff
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire

MOST_KNOWN: Final = 10_000
"""Runs whose last state is kept, so that it isn't told again."""

M = TypeVar("M", bound=Message)
Watch = TypeVar("Watch", bound=Message)
Get = TypeVar("Get", bound=Message)
V = TypeVar("V", bound=Value)


@dataclass(frozen=True)
class WatchMethod(Generic[Watch, Get, M]):
    """How one thing is watched; and how it is asked for, of members of a version that tells nobody
    by itself.
    """

    watch: Method[Watch, M]
    watched: Watch
    get: Method[Get, M]
    got: Get


async def one(
    transport: Transport,
    asked: WatchMethod[Any, Any, M],
    deadline: float | None,
    of: type[V],
    over: Callable[[V], bool],
) -> AsyncIterator[V]:
    """Each change of one thing, from how it stands now, until it is `over`."""
    async for message in _changes(transport, asked, deadline):
        yield (stands := value_of(of, message))
        if over(stands):
            return


async def _changes(
    transport: Transport, asked: WatchMethod[Any, Any, M], deadline: float | None
) -> AsyncIterator[M]:
    """What one stream after another tells, and wasn't told by the one before."""
    broken, ended, time = Backoff(0.1, 2.0), Backoff(1.25, 5.0), _Time(deadline)
    told: Message | None = None
    while True:
        pause = broken
        try:
            try:
                async for message in transport.stream(asked.watch, asked.watched, time.left):
                    time.heard()
                    if (facts := _ageless(message)) != told:
                        told = facts
                        broken.reset()
                        ended.reset()
                        yield message
                pause = ended  # to its member, of another version, it is over: not to who watches
            except NotBuilt:
                stands = await _answer(transport, asked.get, asked.got, time)
                if stands is not None and (facts := _ageless(stands)) != told:
                    told = facts
                    yield stands
        except (ClusterUnavailable, DeadlineExceeded) as failure:
            time.failed(failure)
        await time.passes(pause.next())


async def _answer(
    transport: Transport, method: Method[Get, M], request: Get, time: _Time
) -> M | None:
    """What a call comes to in its time, or in what the watch has left; None: nothing."""
    try:
        answer = await transport.call(method, request, time.of_a_call(transport.settings.timeout))
    except DeadlineExceeded:
        return None
    time.heard()
    return answer


class _Time:
    """What one watch may take: `most` seconds from now, or any."""

    def __init__(self, most: float | None) -> None:
        self._most = most
        self._began = asyncio.get_running_loop().time()
        self._refusal: ClusterUnavailable | None = None

    @property
    def left(self) -> float | None:
        """Seconds, never less than zero; None: it has no end."""
        if self._most is None:
            return None
        return max(0.0, self._began + self._most - asyncio.get_running_loop().time())

    def of_a_call(self, usual: float) -> float:
        """Seconds for one: as usual, or what is left."""
        left = self.left
        return usual if left is None else min(usual, left)

    def heard(self) -> None:
        """A member has told something."""
        self._refusal = None

    def failed(self, failure: ClusterUnavailable | DeadlineExceeded) -> None:
        """What is gone on after, and told at the end. Raises it where there is nobody to go on
        with, or where only connecting has an end, which has come.
        """
        if isinstance(failure, DeadlineExceeded):
            gone = self._most is None
        else:
            gone, self._refusal = failure.reason in NOBODY and self.left != 0, failure
        if gone:
            raise failure

    async def passes(self, seconds: float) -> None:
        """Wait so long, or to the end.

        Raises:
            DeadlineExceeded: it has come.
        """
        await asyncio.sleep(self.of_a_call(seconds))
        if self.left == 0:
            over = DeadlineExceeded(
                f"the {self._most:g} s of the watch are over",
                reason=NO_ANSWER,
                remedy="nothing was changed: watch again, or give it more time",
            )
            raise over.after(self._refusal) if self._refusal else over


def _ageless(message: Message) -> Message:
    """What is a change of it: not how old its lease is."""
    if "lease_age" not in message.DESCRIPTOR.fields_by_name:
        return message
    facts = type(message)()
    facts.CopyFrom(message)
    facts.ClearField("lease_age")
    return facts


async def these(
    transport: Transport, watched: Sequence[str], deadline: float | None
) -> AsyncIterator[Run]:
    """Each change of these runs, from how they stand now, until all have ended."""
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
    """Each change of the runs asked for, and each gap, for ever."""
    known = _Known()
    async for event in _events(transport, request, _Time(deadline)):
        if event is not None and (not event.HasField("run") or known.is_news(event.run)):
            yield value_of(RunEvent, event)


async def runs(
    transport: Transport, request: wire.WatchRunsRequest, deadline: float | None
) -> AsyncIterator[Run]:
    """As `events`, the runs alone: after a gap those that lived are looked at."""
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
    """How it stands, as soon as somebody can say so; None: it isn't kept any longer."""
    backoff, request = Backoff(0.1, 2.0), wire.GetRunRequest(run_id=run_id)
    while True:
        try:
            if (run := await _answer(transport, methods.GET_RUN, request, time)) is not None:
                return run
        except NotFound:
            return None
        except (ClusterUnavailable, DeadlineExceeded) as failure:
            time.failed(failure)
        await time.passes(backoff.next())


async def _events(
    transport: Transport, request: wire.WatchRunsRequest, time: _Time
) -> AsyncIterator[wire.RunEvent | None]:
    """The events of one stream after another; None where one came to its end."""
    backoff = Backoff(0.1, 2.0)
    while True:
        try:
            async for event in transport.stream(methods.WATCH_RUNS, request, time.left):
                backoff.reset()
                time.heard()
                if event.cursor and not request.run_ids:  # which a member may take no cursor for
                    request.resume_after = event.cursor
                if any(event.HasField(what) for what in ("run", "gap", "cluster")):
                    yield event
        except (ClusterUnavailable, DeadlineExceeded) as failure:
            time.failed(failure)
        else:
            yield None
        await time.passes(backoff.next())


class _Known:
    """How runs were told last."""

    def __init__(self) -> None:
        self._runs: dict[str, run_pb2.Run] = {}

    def is_news(self, run: run_pb2.Run) -> bool:
        """Whether it was told otherwise, or not at all; it is told now."""
        before = self._runs.pop(run.run_id, None)
        self._runs[run.run_id] = run
        if len(self._runs) > MOST_KNOWN:
            del self._runs[next(iter(self._runs))]
        return before != run

    def forget(self, run_id: str) -> None:
        """It isn't kept any longer."""
        self._runs.pop(run_id, None)

    def has_ended(self, run_id: str) -> bool:
        """Whether its end was told."""
        run = self._runs.get(run_id)
        return run is not None and value_of(Run, run).ended

    @property
    def living(self) -> list[str]:
        """Those whose end wasn't told."""
        return [run_id for run_id in self._runs if not self.has_ended(run_id)]
