"""A dispatcher over rows that the test sees: the loop itself, its board and its workers are real.

world = World()
world.attach(worker(), grant=2)
world.board.put_runs([of(1, 1)], NOW)
await world.run_until_idle()
world.handed()      # {1}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from typing import cast

from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.dispatch.placement import Need, need_of
from schedd.core.dispatch.priority_order import last_rank
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.events import Event
from schedd.core.ids import IncarnationId, JobId, RunId, ShardId, Token
from schedd.core.jobs.definition import Definition, Overlap
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import (
    Claim,
    DispatchedBatch,
    Draft,
    Incarnation,
    LiveRun,
    OverlapCandidates,
    RunKey,
)
from schedd.core.runs.pools import PoolKey, PoolUsage
from schedd.core.runs.records import NEVER_EDITED, Assignments, OverlapOutcome
from schedd.core.timers.catch_up_limits import DEFAULTS, CatchUpLimits
from schedd.core.timers.pre_dispatch import NEVER, Lookahead, may_be_pre_dispatched
from schedd.dispatch.assigner import Assigner
from schedd.dispatch.broadcasts import Broadcasts
from schedd.dispatch.catch_up_limiter import CatchUpLimiter
from schedd.dispatch.dispatch import Dispatch
from schedd.dispatch.overlap import OverlapEnforcer
from schedd.dispatch.pool_usage_cache import PoolUsageCache
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.runtime.definition_cache import DefinitionCache
from schedd.runtime.definition_texts import CachedDefinition
from schedd.store.cluster.cluster_pauses import PauseStore
from schedd.store.owner import OwnerStore
from support.definitions import cached_definition
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import NOW, RecordingLine, SetClock, owning, run


@fake_of(OwnerStore)
@dataclass
class Rows:
    """A stub of the assign statement: `limits` of admitted runs by job, `generations` now."""

    generations: dict[JobId, int] = field(default_factory=dict)
    fails: list[Exception] = field(default_factory=list)
    """Raised after the next statements have done their work."""
    limits: dict[JobId, int] = field(default_factory=dict)
    admitted: dict[JobId, int] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    given: list[RunKey] = field(default_factory=list)
    """Dispatched runs, in that order; once each."""
    due_at: dict[RunKey, datetime] = field(default_factory=dict)
    """Of runs, if it isn't NOW."""
    judged: list[JobId] = field(default_factory=list)
    """Jobs whose runs were judged."""
    places: dict[PoolKey, int] = field(default_factory=dict)
    """How many more of a pool may go."""
    looks: list[set[PoolKey]] = field(default_factory=list)
    """Which were asked for, each time."""
    skipped: frozenset[RunKey] = frozenset()
    """For overlap."""
    parted: OverlapOutcome = field(default_factory=lambda: OverlapOutcome([], []))
    workers: list[Incarnation] = field(default_factory=list)
    """Workers that are neither lost nor drained."""
    done_on: frozenset[str] = frozenset()
    """Workers on which what a broadcast does again has succeeded."""
    meanwhile: Callable[[], object] = lambda: None
    """Called before the statement ends."""

    async def assign(
        self, claim: Claim, drafts: Sequence[Draft], next_token: Callable[[ShardId], Token]
    ) -> Assignments:
        assigned, ended, waiting, held, no_room = [], [], [], [], []
        begun: list[LiveRun] = []
        for draft in drafts:
            self.drafts.append(draft)
            if draft.terms.pool and self.places.get(draft.terms.pool, 0) <= 0:
                no_room.append(draft.key)
                continue
            if draft.key in self.skipped:
                ended.append(draft.key)
                continue
            current = draft.terms.generation == self.generations.get(draft.job_id, 1)
            full = self.admitted.get(draft.job_id, 0) >= self.limits.get(draft.job_id, 10_000)
            if full or not current or draft.key in self.given:
                (held if full and current else waiting).append(draft.key)
                continue
            self.given.append(draft.key)
            if draft.terms.pool:
                self.places[draft.terms.pool] -= 1
            self.admitted[draft.job_id] = self.admitted.get(draft.job_id, 0) + 1
            if draft.terms.targets:
                begun += family(draft, next_token(draft.shard))
                continue
            made = replace(
                run(draft.key.run_id.number, shard=draft.shard, state=State.RUNNING),
                attempt=1,
                due_at=self.due_at.get(draft.key, NOW),
                job_id=draft.job_id,
                token=next_token(draft.shard),
                incarnation=draft.terms.incarnation,
                start_by=NOW + timedelta(seconds=5),
            )
            assigned.append(DispatchedBatch.of([made]))
        self.meanwhile()
        if self.fails:
            raise self.fails.pop()
        return Assignments(
            assigned, ended, waiting, frozenset(), held=held, full=no_room, begun=begun
        )

    async def pools(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        self.looks.append({*pools})
        there = {pool: self.places[pool] for pool in pools if pool in self.places}
        return {pool: PoolUsage(room, None, False, 0, 0) for pool, room in there.items()}

    async def there(self, ids: Collection[IncarnationId]) -> list[Incarnation]:
        return [one for one in self.workers if one.id in ids]

    async def done(self, keys: Sequence[RunKey]) -> dict[RunId, frozenset[str]]:
        return {key.run_id: self.done_on for key in keys}

    async def part(self, claim: Claim, candidates: Sequence[OverlapCandidates]) -> OverlapOutcome:
        self.judged += [each.job_id for each in candidates]
        return self.parted


def family(draft: Draft, token: Token) -> list[LiveRun]:
    """A broadcast that has begun, and its children."""
    number = draft.key.run_id.number
    of = {"job_id": draft.job_id, "shard": draft.shard}
    state, children = State.RUNNING, len(draft.terms.targets)
    parent = replace(run(number, state=state, token=token, children=children), **of)
    made = enumerate(draft.terms.targets, 1)
    return [
        parent,
        *(
            replace(run(100 * number + n, parent=draft.key.run_id, target=name), **of)
            for n, name in made
        ),
    ]


class Definitions(DefinitionCache):
    """Definitions as the test sets them; `stale` is what is at hand until it is forgotten."""

    any_broadcast = True

    def __init__(self, default: Definition) -> None:
        self.default = default
        self.jobs: dict[JobId, Definition] = {}
        self.stale: dict[JobId, Definition] = {}
        self.unread: set[JobId] = set()
        """Jobs without a definition in the cache."""
        self.edited_at = NEVER_EDITED

    async def newest(self, jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        self.unread -= set(jobs)
        return {job: self._one(job) for job in jobs}

    async def of_runs(self, runs: Iterable[LiveRun]) -> dict[JobId, CachedDefinition]:
        return await self.newest({run.job_id for run in runs})

    def forget(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            self.stale.pop(job, None)

    def knows(self, job: JobId) -> bool:
        return job not in self.unread

    def definition_of(self, job: JobId) -> Definition:
        return self._one(job).definition

    def known_of(self, job: JobId) -> CachedDefinition | None:
        return self._one(job)

    def early_need_of(self, run: LiveRun) -> Need | None:
        entry = self._one(run.job_id)
        fits = may_be_pre_dispatched(run, entry.definition, entry.compiled)
        return need_of(entry.definition, run) if fits else None

    def _one(self, job: JobId) -> CachedDefinition:
        definition = self.stale.get(job) or self.jobs.get(job) or self.default
        return cached_definition(definition, edited_at=self.edited_at)


class WakeUps:
    def jobs_changed(self, changed: object) -> None: ...
    def runs_ready(self, shards: object) -> None: ...
    def runs_changed(self, runs: object) -> None: ...


SHELL = Definition(1, "default", action="shell", overlap=Overlap.ALLOW)


class World:
    """A dispatcher over rows that the test sees. `owned`: so many of the shards are its own."""

    def __init__(
        self,
        definitions: Callable[[Definition], Definitions] = Definitions,
        limits: CatchUpLimits = DEFAULTS,
        owned: int = 1,
        ahead: Lookahead = NEVER,
    ) -> None:
        self.rows = Rows()
        self.events: list[Event] = []
        self.passed: list[LiveRun] = []
        """Runs that waited too long, or for a scheduled time that was removed."""
        self.definitions = definitions(SHELL)
        self.workers = WorkerRegistry(SetClock(), lambda _event: None)
        self.clock = SetClock()
        self.run_index = RunIndex(
            owning(*range(owned)),
            need_of=self.definitions.need_of,
            early_need_of=self.definitions.early_need_of,
            lookahead=ahead,
        )
        self.run_index.were_read(map(ShardId, range(owned)))
        self.seconds = 1_000.0
        """On the clock of what is released."""
        self.cluster_pause = ClusterPause(cast("PauseStore", None), lambda _event: None)
        context = owner_context(
            self.run_index,
            self.definitions,
            workers=self.workers,
            store=self.rows,
            clock=self.clock,
            cluster_pause=self.cluster_pause,
            wake_ups=WakeUps(),
            emit=self.events.append,
        )
        self.late = CatchUpLimiter(context, limits, boot=lambda: self.seconds)
        self.overlap = OverlapEnforcer(context)
        silent = replace(context, emit=lambda _event: None)
        pools = PoolUsageCache(
            context.store, lambda: self.run_index.ended, boot=lambda: self.seconds
        )
        self.dispatch = Dispatch(
            silent,
            Broadcasts(silent, cast("WorkerLeases", self)),
            self.late,
            pools,
            Assigner(context, self.overlap, self.late, pools),
            self.passed.append,
        )
        self.lines: dict[str, RecordingLine] = {}

    async def live(self) -> frozenset[IncarnationId]:
        """Of the workers' leases: none is of a worker that isn't attached here."""
        return frozenset()

    def attach(self, one: Incarnation, *, grant: int) -> RecordingLine:
        line = self.lines[one.worker] = RecordingLine()
        self.rows.workers.append(one)
        self.workers.attach(one, line)
        self.grant(one, grant)
        return line

    def grant(
        self, one: Incarnation, slots: int, before: QueueHead | None = None, serial: int = 0
    ) -> None:
        """Slots of a worker that has received nothing yet; `before`: another member's head;
        `serial`: fewer than it granted once.
        """
        attached = self.workers.attached(one.id)
        assert attached is not None
        last = inf if before is None else last_rank(before.priority, before.waiting_since)
        self.workers.granted(attached, slots, 0, last, serial)

    async def run_until_idle(self) -> None:
        for _ in range(100):
            if await self.dispatch.step() > 0:
                return
        raise AssertionError("it never comes to rest")

    def handed(self) -> set[int]:
        return {r.key.run_id.number for line in self.lines.values() for r in line.assigned}


def of(job: int, number: int, waited: float = 0) -> LiveRun:
    ready = NOW - timedelta(seconds=waited)
    return replace(run(number), job_id=run(job).job_id, ready_at=ready)
