"""Firing over rows that the test sees: both its loops and its board are real.

rows = Rows(behind=True)
world = World(rows)
await world.step()
rows.fired          # []
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, cast

from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.owner_transactions import Transactor
from schedd.core.ids import Id, JobId, ShardId, Token
from schedd.core.jobs.definition import CatchUp, Definition, Priority
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import (
    Claim,
    Firing,
    FiringToSlot,
    Incarnation,
    LiveRun,
    NewRun,
    Timer,
)
from schedd.core.runs.records import FireOutcome
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.calendars.exclusion import Exclusion
from schedd.core.timers.packed_timer import LastLoad
from schedd.core.timers.pre_dispatch import NEVER, Lookahead
from schedd.dispatch.assigner import Assigner
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.runtime.definition_cache import DefinitionCache
from schedd.runtime.definition_texts import CachedDefinition, DefinitionText
from schedd.store.cluster.cluster_pauses import PauseStore
from schedd.store.owner import OwnerStore
from schedd.timers.fire import FireLoop
from schedd.timers.timer_loader import TimerLoader
from support.definitions import cached_definition
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import NOW, RecordingLine, SetClock, owning, run

JOB = run(1).job_id
TIMER = Timer(JOB, run(1).shard, 1, NOW, NOW)
EVERY = compiled_schedule.EverySchedule(timedelta(seconds=5))


@fake_of(OwnerStore)
@dataclass
class Rows:
    """A timer, and a fire statement that does as the test says."""

    timer: Timer = TIMER
    fails: list[Exception] = field(default_factory=list)
    behind: bool = False
    """The database's clock is far behind: its guard refuses."""
    switched: int = 0
    """How often the cluster was paused or resumed."""
    seconds: float = 0.0
    """The time that a fire statement takes."""
    fired: list[NewRun] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    rows_read: int = 0
    """The number of rows that loads returned."""
    _moments: list[dict[JobId, Timer]] = field(default_factory=list)
    """The rows at the time of each load."""

    async def new_timers(
        self,
        shards: Collection[int],
        until: datetime,
        limit: int,
        since: LastLoad | None,
        again: Collection[JobId] = (),
    ) -> tuple[list[bytes], str]:
        self.calls.append("load")
        now = {one.job_id: one for one in self._due() if one.due_at and one.due_at <= until}
        before = {} if since is None else self._moments[int(since.oldest)]
        found = [
            one
            for job, one in now.items()
            if since is None or job in again or before.get(job) != one or not _known(one, since)
        ]
        self._moments.append({one.job_id: one for one in self._due()})
        found.sort(key=lambda one: one.due_at or NOW)
        self.rows_read += len(found[:limit])
        return packed(found[:limit]), str(len(self._moments) - 1)

    async def due_timers(
        self, shards: Collection[int], until: datetime, limit: int, *, latest: bool = False
    ) -> list[bytes]:
        self.calls.append("latest" if latest else "first")
        due = [one for one in self._due() if one.due_at and one.due_at <= until]
        due.sort(key=lambda one: one.due_at or NOW, reverse=latest)
        self.rows_read += len(due[:limit])
        return packed(due[:limit])

    def _due(self) -> Collection[Timer]:
        """Return the timers that aren't paused."""
        return [self.timer]

    async def timers(self, jobs: Collection[JobId]) -> list[Timer]:
        self.calls.append("reread")
        return [self.timer]

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        self.calls.append("fire")
        [step] = firings
        if self.behind or switched != self.switched or step.due_at != self.timer.due_at:
            return FireOutcome([], [step.job_id], frozenset())
        self.fired += step.runs
        self.timer = self.timer._replace(
            due_at=step.next_due_at,
            nominal=step.next_nominal,
            fired=self.timer.fired + step.counted,
        )
        if self.fails:
            raise self.fails.pop()
        return FireOutcome([live_of(step)] if step.runs else [], [], frozenset())


def _known(timer: Timer, since: LastLoad) -> bool:
    """Whether the last load returned the timer, if it hasn't changed."""
    return timer.due_at is not None and timer.due_at <= since.until


def packed(timers: Iterable[Timer]) -> list[bytes]:
    """Return the timers as a load returns them."""
    since = datetime(2000, 1, 1, tzinfo=UTC)

    def microseconds(at: datetime | None) -> int:
        return -(1 << 63) if at is None else (at - since) // timedelta(microseconds=1)

    return [
        struct.pack(
            ">16siiiqq",
            one.job_id,
            one.shard,
            one.generation,
            one.fired,
            microseconds(one.due_at),
            microseconds(one.nominal),
        )
        for one in timers
    ]


def live_of(step: Firing) -> LiveRun:
    new, at = step.runs[0], step.ready_at
    return LiveRun(new.key, step.job_id, step.shard, State.PENDING, Priority.MEDIUM, new.due_at, at)


def sent_of(one: FiringToSlot, token: Token) -> LiveRun:
    """The run that was fired as RUNNING."""
    ready_at, terms = one.batch.step.ready_at, one.batch.terms
    return replace(
        live_of(one.batch.step),
        key=one.key,
        job_id=one.job_id,
        state=State.RUNNING,
        priority=one.batch.priority,
        attempt=1,
        token=token,
        worker=terms.worker,
        incarnation=terms.incarnation,
        start_by=max(ready_at, NOW) + START_WITHIN,
        generation=1,
    )


class WakeUps:
    """The wake-ups of other members."""

    def jobs_changed(self, changed: object) -> None: ...
    def runs_ready(self, shards: object) -> None: ...
    def runs_changed(self, runs: object) -> None: ...


class Definitions(DefinitionCache):
    """Of any job; `urgent` ones are HIGH, once they have been read."""

    def __init__(self, urgent: Collection[JobId] = ()) -> None:
        self._urgent = urgent
        self.max_runs = 0
        self.changes: dict[str, Any] = {}
        """Other fields of all definitions."""
        self.catch_up = CatchUp()
        self.exclusion: Exclusion | None = None
        self.one_text = False
        """Whether all jobs have the same text; else each has its own."""
        self.text: DefinitionText | None = None
        self.read_of: set[JobId] = set()
        self.room = inf
        """Number of definitions that the cache has room for."""

    async def at_generations(self, wanted: dict[JobId, int]) -> dict[JobId, CachedDefinition]:
        return await self.newest(wanted)

    async def newest(self, jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        self.read_of.update(jobs)
        return {job: self._made(job) for job in jobs}

    def has_room(self) -> bool:
        return len(self.read_of) < self.room

    def knows(self, job: JobId) -> bool:
        return job in self.read_of

    def priority_of(self, job: JobId) -> Priority:
        urgent = job in self._urgent and job in self.read_of
        return Priority.HIGH if urgent else Priority.MEDIUM

    def _made(self, job: JobId) -> CachedDefinition:
        priority = Priority.HIGH if job in self._urgent else Priority.MEDIUM
        definition = Definition(
            1,
            "default",
            action="shell",
            priority=priority,
            max_runs=self.max_runs,
            catch_up=self.catch_up,
        )
        definition = replace(definition, **self.changes)
        compiled = compiled_schedule.compile(EVERY, "default/j", job)
        excluding = None if self.exclusion is None else compiled
        compiled = replace(compiled, exclusion=self.exclusion, excluding=excluding)
        entry = cached_definition(definition, compiled)
        if self.one_text:
            self.text = self.text or entry.text
            entry = replace(entry, text=self.text)
        return entry

    def forget(self, jobs: object) -> None: ...


class World:
    def __init__(
        self,
        rows: Rows,
        *,
        trusted: bool | Callable[[], bool] = True,
        urgent: Collection[JobId] = (),
        ahead: Lookahead = NEVER,
    ) -> None:
        self.clock = SetClock()
        self.definitions = Definitions(urgent)
        self.run_index = RunIndex(owning(0), self.definitions.priority_of, lookahead=ahead)
        trust = trusted if callable(trusted) else lambda: trusted
        transactor = Transactor(self.run_index.ownership, trust, lambda _event: None)
        self.cluster_pause = ClusterPause(cast("PauseStore", None), lambda _event: None)
        self.workers = WorkerRegistry(self.clock, lambda _event: None)
        self.placeable: Callable[[], int] = lambda: len(self.run_index.ready)
        context = owner_context(
            self.run_index,
            self.definitions,
            workers=self.workers,
            store=rows,
            transactor=transactor,
            clock=self.clock,
            cluster_pause=self.cluster_pause,
            wake_ups=WakeUps(),
        )
        self.near = TimerLoader(context)
        unused: Any = None  # it only pushes: nothing is dispatched from the ready queue here
        self.fire = FireLoop(
            context,
            self.near,
            lambda: self.placeable(),
            Assigner(context, unused, unused, unused),
            boot=lambda: rows.seconds,
        )

    def attach(self, one: Incarnation, slots: int) -> RecordingLine:
        """Attach a worker that grants so many slots, and return its stream."""
        line = RecordingLine()
        attached = self.workers.attach(one, line)
        self.workers.granted(attached, slots, received=0)
        return line

    def grant(self, one: Incarnation, slots: int, received: int = 0, last: float = inf) -> None:
        """Let the worker grant so many slots, after it has received so many runs."""
        attached = self.workers.attached(one.id)
        assert attached is not None
        self.workers.granted(attached, slots, received, last)

    async def after(self, seconds: float) -> None:
        """Let time pass; step until nothing is left to do."""
        self.clock.time += timedelta(seconds=seconds)
        for _ in range(100):
            if await self.step() > 0:
                return
        raise AssertionError("it never comes to rest")

    async def step(self) -> float:
        """Both loops, one after the other; seconds until the next of either."""
        return min(await self.near.step(), await self.fire.step())


@dataclass
class Herd(Rows):
    """So many timers, due at one instant."""

    count: int = 0
    each: float = 0.0
    """Seconds that it takes to fire one."""
    batches: list[int] = field(default_factory=list)
    due: dict[JobId, Timer] = field(init=False)
    sent: list[FiringToSlot] = field(default_factory=list)
    """Timers fired as RUNNING, in that order."""
    fails: list[Exception] = field(default_factory=list)
    """Raised after the next statements have done their work."""
    beside: set[JobId] = field(default_factory=set)
    """Jobs with another live run."""
    edited: set[JobId] = field(default_factory=set)
    """Jobs whose timers have changed."""
    switched: int = 0
    meanwhile: Callable[[], object] = lambda: None
    """Called before a statement ends that fires as RUNNING."""

    def __post_init__(self) -> None:
        ids = (JobId(Id.from_int(n)) for n in range(self.count))
        self.due = {job: TIMER._replace(job_id=job) for job in ids}

    def _due(self) -> Collection[Timer]:
        return self.due.values()

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        self.calls.append("fire")
        self.batches.append(len(firings))
        self.seconds += self.each * len(firings)
        for step in firings:
            del self.due[step.job_id]
        return FireOutcome([live_of(step) for step in firings], [], frozenset())

    async def fire_running(
        self,
        claim: Claim,
        firings: Sequence[FiringToSlot],
        next_token: Callable[[ShardId], Token],
        switched: int = 0,
    ) -> FireOutcome:
        self.calls.append("fire running")
        self.batches.append(len(firings))
        self.seconds += self.each * len(firings)
        stale = switched != self.switched
        refused = [one.job_id for one in firings if stale or one.job_id in self.edited]
        went = [one for one in firings if one.job_id not in refused]
        runs = [
            replace(live_of(one.batch.step), key=one.key, job_id=one.job_id)
            if one.job_id in self.beside
            else sent_of(one, next_token(one.shard))
            for one in went
        ]
        for one in went:
            del self.due[one.job_id]
        self.sent += went
        self.meanwhile()
        if self.fails:
            raise self.fails.pop()
        return FireOutcome(runs, refused, frozenset())
