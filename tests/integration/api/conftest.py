"""The calls over a real database: wake_ups and lines are recorded, the rest is the real thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schedd.api import calls
from schedd.api.auth.authentication import Authentication
from schedd.api.services import Caller, Services
from schedd.core.checkup.facts import EtcdFacts, Facts, FailedRead
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView
from schedd.core.events import Event
from schedd.core.ids import Epoch, Hint, IncarnationId, JobId, RunId, ShardId, TenureId, Term
from schedd.core.runs.model import Incarnation, LiveRun
from schedd.core.runs.records import StoredDefinition, WorkerView, view_without_heartbeats
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.results.log_followers import LogFollowers
from schedd.results.objects import StoredObjects
from schedd.results.progress import MemberProgress
from schedd.watch.change_bus import ChangeBus, Watchers
from schedd.watch.subscriptions import Subscriptions
from schedkit.clock import utcnow
from schedkit.objects.files import Files
from support.callers import TESTER
from support.store import World


class MovedClock:
    """Cluster time, as far ahead of this host's as the test says."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return utcnow() + self.ahead


@dataclass
class WakeUpTargets:
    """The wake-ups that the owners received."""

    jobs: list[JobId] = field(default_factory=list)
    shards: list[ShardId] = field(default_factory=list)
    runs: list[RunId] = field(default_factory=list)
    definitions: list[StoredDefinition] = field(default_factory=list)
    cluster: int = 0

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        self.jobs += [job for job, _ in changed]

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        self.shards += shards

    def runs_created(
        self, runs: Sequence[LiveRun], definitions: Sequence[StoredDefinition] = ()
    ) -> None:
        self.shards += [run.shard for run in runs]
        self.definitions += definitions

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        self.runs += [run for run, _ in hints]

    def cluster_changed(self) -> None:
        self.cluster += 1


@dataclass
class Lines:
    """The messages that the workers received."""

    attached: list[WorkerView] = field(default_factory=list)
    revoked: list[RunId] = field(default_factory=list)
    cancelled: list[RunId] = field(default_factory=list)
    refused: dict[IncarnationId, str] = field(default_factory=dict)

    async def refusals_of_job(
        self, shard: ShardId, job: JobId, generation: int
    ) -> dict[IncarnationId, str]:
        """Return the same refusals for any job."""
        del shard, job, generation
        return self.refused

    async def revoke(self, runs: Sequence[LiveRun]) -> None:
        self.revoked += [run.key.run_id for run in runs]

    def cancel(self, run: LiveRun, *, kill: bool = False) -> None:
        self.cancelled.append(run.key.run_id)

    def workers(self) -> list[WorkerView]:
        return self.attached

    async def views(self, incarnations: Sequence[Incarnation]) -> list[WorkerView]:
        """Return the views attached here; workers without one send no heartbeats."""
        here = {view.incarnation.id: view for view in self.attached}
        return [here.get(one.id) or view_without_heartbeats(one) for one in incarnations]


@dataclass
class ClusterStub:
    """A cluster as the test sets it, empty at first. `next`: the view after a transfer of
    leadership; None: no member acts on the request.
    """

    tenure: TenureId | None = None
    now: ClusterView = EMPTY_VIEW
    next: ClusterView | None = None
    heirs: list[TenureId] = field(default_factory=list)
    willing: bool = True
    looked: Facts | None = None
    trust: bool = True
    duplicate: str = ""

    def view(self) -> ClusterView:
        return self.now

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        self.heirs.append(heir)
        return self.willing

    async def facts(self) -> Facts:
        return self.looked or Facts(
            utcnow(), "test", self.now, EtcdFacts(), FailedRead("it is away")
        )

    async def follows(self, term: Term) -> ClusterView:
        if self.next is None:
            await asyncio.Event().wait()
        assert self.next is not None
        assert self.next.term > term
        return self.next

    def owned(self) -> dict[ShardId, Epoch]:
        return {}

    def trusted(self) -> bool:
        return self.trust


@dataclass
class Api:
    """The calls, by their names."""

    world: World
    services: Services
    clock: MovedClock
    nudged: WakeUpTargets
    lines: Lines
    cluster: ClusterStub
    events: list[Event]
    """The events that the calls emitted."""

    async def __call__(self, name: str, request: Any, deadline: float | None = 5.0) -> Any:
        [call] = [call for full, call in calls.UNARY.items() if full.endswith(f".{name}")]
        return await call(self.services, Caller(TESTER, "test", deadline), request)

    def stream(self, name: str, request: Any) -> AsyncGenerator[Any, None]:
        """Return the answers of a streaming call."""
        [call] = [call for full, call in calls.STREAMING.items() if full.endswith(f".{name}")]
        return call(self.services, Caller(TESTER, "test"), request)

    async def rows(self, name: str) -> list[tuple[Any, ...]]:
        """(state, reason, count) of the job's runs, oldest first."""
        return await self.world.sql(
            "SELECT r.state, r.reason, r.count FROM runs r JOIN jobs j USING (job_id)"
            " WHERE j.name = %s ORDER BY r.scheduled_at",
            name,
        )


@pytest.fixture
async def api(dsn: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with World.at(dsn) as world:
        member = await world.member()
        clock, nudged, lines, cluster = MovedClock(), WakeUpTargets(), Lines(), ClusterStub()
        events: list[Event] = []
        services = Services(
            store=member.store.users,
            calendars=member.store.calendars,
            pools=member.store.pools,
            pauses=member.store.pauses,
            backfills=member.store.backfills,
            dead_letters=member.store.dead_letters,
            chains=member.store.chains,
            membership=member.store.membership,
            worker_store=member.store.workers,
            access_tokens=member.store.access_tokens,
            authentication=Authentication(member.store.access_tokens, clock, demanded=False),
            clock=clock,
            wake_ups=nudged,
            lines=lines,
            refusals=lines,
            changes=Watchers(),
            feed=Subscriptions(member.store.changes, ChangeBus()),
            log_followers=LogFollowers(WorkerRegistry(clock, lambda _event: None)),
            advances=MemberProgress(),
            cluster=cluster,
            succession=cluster,
            checkup=cluster,
            objects=StoredObjects(Files(tmp_path / "results")),
            version="test",
            cluster_id="test",
            emit=events.append,
        )
        yield Api(world, services, clock, nudged, lines, cluster, events)
