"""All PostgreSQL stores of one member."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from sqlalchemy import Connection

from schedd.core.checkup.facts import DatabaseFacts
from schedd.core.cluster.cluster_events import (
    ClusterEvent,
    EventKind,
    Losses,
    LossReason,
    RegisteredWorker,
)
from schedd.core.ids import Epoch, IncarnationId, ShardId, TenureId, Term, Timeline, Token
from schedd.core.runs.model import (
    Claim,
    Incarnation,
    LiveRun,
    Report,
    RunKey,
    ShardRow,
    Tenure,
    Verdict,
)
from schedd.core.runs.records import Drain, Probe, Unstarted
from schedd.core.timers.pre_dispatch import GUARD
from schedd.store import access_tokens
from schedd.store.access_tokens import PostgresAccessTokenStore
from schedd.store.cluster import checkup, cluster_events, drains, membership, workers
from schedd.store.cluster.cluster_pauses import PostgresPauseStore
from schedd.store.cluster.drains import AuditOf as DrainAudit
from schedd.store.cluster.fence import application_name, ending_blockers
from schedd.store.cluster.recovery import PostgresRecoveryStore
from schedd.store.connection import database_identity, write_probe
from schedd.store.connection.database import Database
from schedd.store.dispatch import live_run_changes, pool_places
from schedd.store.dispatch.unstarted import forget_expired
from schedd.store.jobs import chains
from schedd.store.jobs.calendars import PostgresCalendarStore
from schedd.store.jobs.pools import PostgresPoolStore
from schedd.store.notify.outbox_store import PostgresNotificationStore
from schedd.store.owner import PostgresOwnerStore
from schedd.store.reconcile.retention_store import PostgresRetentionStore
from schedd.store.reconcile.stats_store import PostgresSurveyStore
from schedd.store.results import reported_runs, results
from schedd.store.results.chain_store import PostgresChainStore
from schedd.store.results.dead_letter_store import PostgresDeadLetterStore
from schedd.store.runs.change_stream import PostgresChangeStore
from schedd.store.schema import partitions, revisions
from schedd.store.statements import idempotency
from schedd.store.statements.bisect import halved
from schedd.store.statements.operations import operations
from schedd.store.timers.backfill_store import PostgresBackfillStore
from schedd.store.users import PostgresUserStore
from schedkit import failpoints
from schedkit.errors import TookTooLong
from schedkit.records import dataclass, replace

log = logging.getLogger(__name__)

BEFORE_FENCE = failpoints.blocking("fence.before_commit")
BEFORE_TAKE = failpoints.blocking("take.before_commit")
BEFORE_ACCEPT = failpoints.blocking("accept.before_commit")


@operations("membership")
@dataclass(frozen=True, slots=True)
class PostgresMembershipStore:
    """`schedd.ports.MembershipStore` over PostgreSQL."""

    database: Database

    async def probe(self) -> Probe:
        """Read the server's clock, timeline and role. Raises Unavailable if the database isn't the
        known one.
        """
        known = self.database.lineage.known
        probe = await self.database.call(database_identity.look)
        database_identity.compare(self.database.lineage, probe, known)
        return probe

    async def cluster_id(self) -> str:
        """Return the id that `schedd migrate` generated for this database."""
        return await self.database.call(membership.cluster_id)

    async def open_tenure(self, tenure: Tenure) -> None:
        """Write the tenure's row, and connect under its name from now on."""
        self.database.rename(application_name(tenure.id))
        await self.database.call(lambda c: membership.open_tenure(c, tenure))

    async def unfenced_tenures(self) -> list[Tenure]:
        """Return the tenures that may still take shards."""
        return await self.database.call(membership.unfenced_tenures)

    async def fenced(self, tenures: Sequence[TenureId]) -> frozenset[TenureId]:
        """Return those of these tenures that are fenced."""
        return await self.database.call(lambda c: membership.fenced(c, tenures))

    async def fence_own(self, tenure: TenureId, why: str = "") -> None:
        """Fence the member's own tenure: a clean shutdown, or a lost tenure if `why` is given."""
        lost = LossReason.TENURE_ENDED if why else None
        await self.database.call(lambda c: membership.fence(c, [tenure], lost=lost, why=why))

    async def fence(self, tenures: Sequence[TenureId], term: Term) -> bool:
        """Fence these tenures if the term is still this one. Ends sessions that block the write."""

        def body(connection: Connection) -> bool:
            if not membership.holds_term(connection, term):
                return False
            with ending_blockers(self.database, connection, tenures):
                membership.fence(connection, tenures, lost=LossReason.LEASE_EXPIRED)
            BEFORE_FENCE()
            return True

        return await self.database.call(body)

    async def losses(self, kept: timedelta) -> Losses:
        """Return members and workers that were lost within this time and haven't returned."""
        return await self.database.call(lambda c: cluster_events.losses(c, kept))

    async def foreign_members(self, prefix: UUID) -> list[str]:
        """Return members with another etcd prefix that used this database of late."""
        return await self.database.call(lambda c: membership.foreign_members(c, prefix))

    async def event_before_term(self) -> int:
        """Return the id before that of the newest change of leader."""
        return await self.database.call(cluster_events.before_term)

    async def events_after(self, id_: int) -> list[ClusterEvent]:
        """Return the cluster events with greater ids, oldest first."""
        return await self.database.call(lambda c: cluster_events.after(c, id_))

    async def read_term(self) -> Term:
        """Return the present term; 0 before the first."""
        return await self.database.call(membership.read_term)

    async def raise_term(self, seen: Term, leader: TenureId, above: int = 0) -> Term | None:
        """Raise the term by compare-and-set. None: another member raised it."""
        return await self.database.call(lambda c: membership.raise_term(c, seen, leader, above))

    async def read_shards(self) -> list[ShardRow]:
        """Return all shard rows, by id."""
        return await self.database.call(membership.read_shards)

    async def take(
        self, tenure: TenureId, timeline: Timeline, seen: dict[ShardId, Epoch]
    ) -> dict[ShardId, Epoch]:
        """Take the free shards among these. Ends blocking sessions of fenced tenures."""

        def body(connection: Connection) -> dict[ShardId, Epoch]:
            with ending_blockers(self.database, connection):
                taken = membership.take(connection, tenure, timeline, seen)
            BEFORE_TAKE()
            return taken

        return await self.database.call(body) if seen else {}

    async def release(self, claim: Claim) -> None:
        """Release the shards that the claim still owns."""
        if claim.epochs:
            await self.database.call(lambda c: membership.release(c, claim))


@operations("results")
@dataclass(frozen=True, slots=True)
class PostgresResultStore:
    """`schedd.ports.ResultStore` over PostgreSQL."""

    database: Database

    async def reported_runs(self, keys: Sequence[RunKey]) -> dict[RunKey, LiveRun]:
        """Return the present runs of these keys."""
        if not keys:
            return {}
        return await self.database.call(lambda c: reported_runs.reported_runs(c, keys))

    async def accept(self, reports: Sequence[Report]) -> list[Verdict | None]:
        """Return a verdict for each, in order. None: this report can't be stored.

        If PostgreSQL rejects a report, it is stored without the texts of the worker.
        """

        def body(connection: Connection, batch: Sequence[Report]) -> list[Verdict]:
            verdicts = results.accept(connection, batch)
            BEFORE_ACCEPT()
            return verdicts

        async def write(batch: Sequence[Report]) -> list[Verdict]:
            return await self.database.call(lambda c: body(c, batch))

        answers, broken = await halved(reports, write) if reports else ([], [])
        verdicts = {
            id(report): verdict
            for batch, given in answers
            for report, verdict in zip(batch, given, strict=True)
        }
        for report in broken:
            found, _ = await halved([_bare(report)], write)
            for _, [verdict] in found:
                verdicts[id(report)] = verdict
        return [verdicts.get(id(report)) for report in reports]

    async def refuse(self, unstarted: Sequence[Unstarted]) -> list[RunKey]:
        """Return runs whose worker rejected them to their earlier state, guarded by the token."""

        async def write(batch: Sequence[Unstarted]) -> list[LiveRun]:
            return await self.database.call(lambda c: live_run_changes.give_back(c, batch, None))

        answers, _ = await halved(unstarted, write) if unstarted else ([], [])
        return [run.key for _, back in answers for run in back]

    async def outdo(self, shard: ShardId, seen: Epoch) -> None:
        """Raise the shard's epoch above this one."""
        await self.database.call(lambda c: membership.outdo(c, shard, seen))

    async def started(self, starts: Sequence[tuple[RunKey, Token, datetime]]) -> None:
        """Record start times of assignments whose token is still current."""

        async def write(batch: Sequence[tuple[RunKey, Token, datetime]]) -> None:
            await self.database.call(lambda c: reported_runs.started(c, batch))

        if starts:
            await halved(starts, write)


@operations("workers")
@dataclass(frozen=True, slots=True)
class PostgresWorkerStore:
    """`schedd.ports.WorkerStore` over PostgreSQL."""

    database: Database

    async def register(self, incarnation: Incarnation) -> Incarnation:
        """Insert the incarnation if it is new. Returns the stored row."""
        return await self.database.call(lambda c: workers.register(c, incarnation))

    async def incarnations(self, ids: Sequence[IncarnationId]) -> list[Incarnation]:
        """Return the known ones of these incarnations, lost ones too."""
        return await self.database.call(lambda c: workers.incarnations(c, ids))

    async def not_living(self, ids: Sequence[IncarnationId]) -> frozenset[IncarnationId]:
        """Return those of these incarnations that are lost or unknown."""
        return await self.database.call(lambda c: workers.not_living(c, ids))

    async def of_worker(self, worker: str) -> list[Incarnation]:
        """Return this worker's incarnations that aren't lost, newest first."""
        return await self.database.call(lambda c: workers.of_worker(c, worker))

    async def newest_of(self, names: Sequence[str]) -> list[Incarnation]:
        """Return the newest incarnation of each of these workers, lost or not."""
        return await self.database.call(lambda c: workers.newest_of(c, names))

    async def drains(self) -> list[Drain]:
        """Return the drained workers, by name."""
        return await self.database.call(drains.drains)

    async def drain(self, worker: str, by: str, reason: str, entry: DrainAudit) -> Drain:
        """Drain the worker: it gets no new work."""
        return await self.database.call(lambda c: drains.begin(c, worker, by, reason, entry))

    async def undrain(self, worker: str, entry: DrainAudit) -> bool:
        """End the worker's drain. Returns whether it was drained."""
        return await self.database.call(lambda c: drains.end(c, worker, entry))

    async def lose(self, lost: Collection[IncarnationId], kind: EventKind | None) -> None:
        """Record these incarnations as lost. An earlier record keeps its time."""
        await self.database.call(lambda c: workers.lose(c, lost, kind))

    async def registered(self) -> list[RegisteredWorker]:
        """Return the incarnations that aren't recorded as lost."""
        return await self.database.call(workers.registered)

    async def note_seen(self, seen: Collection[IncarnationId]) -> None:
        """Record that the etcd keys of these incarnations exist."""
        await self.database.call(lambda c: workers.note_seen(c, seen))


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """The stores that `app/` passes to the services."""

    database: Database
    horizon: timedelta = GUARD
    membership: PostgresMembershipStore = field(init=False)
    owner: PostgresOwnerStore = field(init=False)
    results: PostgresResultStore = field(init=False)
    workers: PostgresWorkerStore = field(init=False)
    users: PostgresUserStore = field(init=False)
    calendars: PostgresCalendarStore = field(init=False)
    pools: PostgresPoolStore = field(init=False)
    pauses: PostgresPauseStore = field(init=False)
    backfills: PostgresBackfillStore = field(init=False)
    dead_letters: PostgresDeadLetterStore = field(init=False)
    notifications: PostgresNotificationStore = field(init=False)
    chains: PostgresChainStore = field(init=False)
    recovery: PostgresRecoveryStore = field(init=False)
    retention: PostgresRetentionStore = field(init=False)
    survey: PostgresSurveyStore = field(init=False)
    changes: PostgresChangeStore = field(init=False)
    access_tokens: PostgresAccessTokenStore = field(init=False)

    def __post_init__(self) -> None:
        stores = {
            "membership": PostgresMembershipStore(self.database),
            "owner": PostgresOwnerStore(self.database, self.horizon),
            "results": PostgresResultStore(self.database),
            "workers": PostgresWorkerStore(self.database),
            "users": PostgresUserStore(self.database),
            "calendars": PostgresCalendarStore(self.database),
            "pools": PostgresPoolStore(self.database),
            "pauses": PostgresPauseStore(self.database),
            "backfills": PostgresBackfillStore(self.database),
            "dead_letters": PostgresDeadLetterStore(self.database),
            "notifications": PostgresNotificationStore(self.database),
            "chains": PostgresChainStore(self.database),
            "recovery": PostgresRecoveryStore(self.database),
            "retention": PostgresRetentionStore(self.database),
            "survey": PostgresSurveyStore(self.database),
            "changes": PostgresChangeStore(self.database),
            "access_tokens": PostgresAccessTokenStore(self.database),
        }
        for name, store in stores.items():
            object.__setattr__(self, name, store)

    async def check(self) -> None:
        """Check the schema and warn of missing timeouts, at start.

        Raises `SchemaMismatch`, or `Unavailable` if the database is unavailable.
        """
        await self.database.call(revisions.check_schema)
        await self.database.call(revisions.check_timeouts)

    async def probe_write(self) -> None:
        """Test whether PostgreSQL accepts writes and has space for them."""
        await self.database.call(write_probe.write)

    async def look(self) -> DatabaseFacts:
        """Read the facts about the database that the doctor checks."""
        return await self.database.call(checkup.look)

    async def ensure_partitions(self, days: int = partitions.DAYS_AHEAD) -> int:
        """Create the partitions of `runs` from yesterday to `days` ahead. Returns how many."""
        missing = await self.database.call(lambda c: partitions.missing_days(c, days))
        made = [await self.database.call(partitions.making(day)) for day in missing]
        return sum(made)

    async def drop_empty_days(self) -> int:
        """Drop the empty partitions of past days. Returns how many."""
        dropped = 0
        for day in await self.database.call(partitions.past_days):
            try:
                if await self.database.call(partitions.is_empty(day)):
                    dropped += await self.database.call(partitions.dropping(day))
            except TookTooLong as error:  # many deleted rows: vacuum removes them
                log.warning("partition check timed out day=%s: %s; it is repeated", day, error)
        return dropped

    async def keep_house(self) -> None:
        """Create partitions and delete expired rows, regularly and on the leader only. A task that
        times out doesn't stop the others.
        """
        chores: tuple[Callable[[], Awaitable[object]], ...] = (
            self.ensure_partitions,
            self.drop_empty_days,
            lambda: self.database.call(forget_expired),
            lambda: self.database.call(pool_places.forget_orphans),
            lambda: self.database.call(chains.forget_orphans),
            lambda: self.database.call(cluster_events.prune),
            self._forget_tokens,
            self._forget_keys,
            self._forget_incarnations,
        )
        for chore in chores:
            try:
                await chore()
            except TookTooLong as error:
                log.warning("database maintenance timed out: %s; it is repeated", error)

    async def _forget_tokens(self) -> None:
        while await self.database.call(access_tokens.forget_ended):
            pass

    async def _forget_incarnations(self) -> None:
        after: str | None = ""
        while after is not None:
            after = await self.database.call(partial(workers.forget_lost, after=after))

    async def _forget_keys(self) -> None:
        while await self.database.call(idempotency.forget_old):
            pass

    def close(self) -> None:
        """End the database's threads and close its connections."""
        self.database.close()


def _bare(report: Report) -> Report:
    """Return the report without the texts and values that the worker wrote."""
    return replace(
        report,
        error="the worker's error text and output can't be stored",
        exit_code=None,
        result=None,
        output=None,
    )
