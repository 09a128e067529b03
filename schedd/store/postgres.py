"""All PostgreSQL stores of one member."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from sqlalchemy import Connection

from schedd.core.checkup.facts import HeldLock
from schedd.core.timers.pre_dispatch import GUARD
from schedd.store import access_tokens
from schedd.store.access_tokens import AccessTokenStore
from schedd.store.cluster import checkup, cluster_events, workers
from schedd.store.cluster.cluster_pauses import PauseStore
from schedd.store.cluster.membership import MembershipStore
from schedd.store.cluster.recovery import RecoveryStore
from schedd.store.cluster.workers import WorkerStore
from schedd.store.connection import write_probe
from schedd.store.connection.database import Database, in_transaction
from schedd.store.dispatch import pool_limits
from schedd.store.dispatch.unstarted import forget_expired
from schedd.store.jobs import chains
from schedd.store.jobs.calendars import CalendarStore
from schedd.store.jobs.pools import PoolStore
from schedd.store.notify.outbox_claims import NotificationStore
from schedd.store.owner import OwnerStore
from schedd.store.reconcile.retention import RetentionStore
from schedd.store.reconcile.stats import StatisticsStore
from schedd.store.results.chain_joins import ChainStore
from schedd.store.results.redrives import DeadLetterStore
from schedd.store.results.result_writes import ResultWrites
from schedd.store.runs.change_stream import ChangeStore
from schedd.store.schema import partitions, revisions
from schedd.store.statements import idempotency
from schedd.store.timers.backfill_store import BackfillStore
from schedd.store.user_store import UserStore
from schedkit.errors import TookTooLong

log = logging.getLogger(__name__)


class Stores:
    """The stores that `app/` passes to the services."""

    def __init__(self, database: Database, horizon: timedelta = GUARD) -> None:
        self.database = database
        self.membership = MembershipStore(database)
        self.owner = OwnerStore(database, horizon)
        self.results = ResultWrites(database)
        self.workers = WorkerStore(database)
        self.users = UserStore(database)
        self.calendars = CalendarStore(database)
        self.pools = PoolStore(database)
        self.pauses = PauseStore(database)
        self.backfills = BackfillStore(database)
        self.dead_letters = DeadLetterStore(database)
        self.notifications = NotificationStore(database)
        self.chains = ChainStore(database)
        self.recovery = RecoveryStore(database)
        self.retention = RetentionStore(database)
        self.statistics = StatisticsStore(database)
        self.changes = ChangeStore(database)
        self.access_tokens = AccessTokenStore(database)

    async def check(self) -> None:
        """Check the schema and warn of missing timeouts, at start. Raises `SchemaMismatch`, or
        `Unavailable` if the database is unavailable.
        """
        await self.database.call(revisions.check_schema)
        await self.database.call(revisions.check_timeouts)

    probe_write = in_transaction(write_probe.write)
    look = in_transaction(checkup.read_facts)

    async def read_locks(self) -> tuple[HeldLock, ...]:
        """Return the sessions whose locks block schedd. Waits for none of these locks."""
        return await self.database.inspect(checkup.read_locks)

    async def ensure_partitions(self, days: int = partitions.DAYS_AHEAD) -> int:
        """Create the partitions of `runs` from yesterday to `days` ahead. Returns how many."""
        missing = await self.database.call(partitions.missing_days, days)
        made = [await self.database.call(partitions.make_day, day) for day in missing]
        return sum(made)

    async def drop_empty_days(self) -> int:
        """Drop the empty partitions of past days. Returns how many."""
        dropped = 0
        for day in await self.database.call(partitions.past_days):
            try:
                if await self.database.call(partitions.is_empty, day):
                    dropped += await self.database.call(partitions.drop_day, day)
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
            lambda: self.database.call(pool_limits.forget_orphans),
            lambda: self.database.call(chains.forget_orphans),
            lambda: self.database.call(cluster_events.prune),
            lambda: self._forget(access_tokens.forget_ended),
            lambda: self._forget(idempotency.forget_old),
            self._forget_incarnations,
        )
        for chore in chores:
            try:
                await chore()
            except TookTooLong as error:
                log.warning("database maintenance timed out: %s; it is repeated", error)

    async def _forget(self, some: Callable[[Connection], int]) -> None:
        while await self.database.call(some):
            pass

    async def _forget_incarnations(self) -> None:
        after: str | None = ""
        while after is not None:
            after = await self.database.call(workers.forget_lost, after)

    def close(self) -> None:
        self.database.close()
