"""The owner's store: each call one transaction on the lane of its shards, fenced by their rows.

lock shard rows, alone ─→ the items whose shards are still owned ─→ body ─→ COMMIT
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from schedd.core.ids import IncarnationId, JobId, RunId, ShardId, Token
from schedd.core.runs.broadcast import ClosedBroadcasts, Closing
from schedd.core.runs.change_stream import ChangedRuns, Cursor
from schedd.core.runs.deadlines import Expiry
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import (
    Assigned,
    Claim,
    Crowd,
    Draft,
    Firing,
    Incarnation,
    LiveRun,
    Loss,
    RunKey,
    Timer,
)
from schedd.core.runs.pools import PoolKey, PoolUsage
from schedd.core.runs.records import (
    Assignments,
    FailedTooOften,
    FireOutcome,
    JobRecord,
    Parted,
    Resumption,
    StoredDefinition,
    Unstarted,
)
from schedd.core.runs.redrive import OpenRedrive, RedriveLine
from schedd.core.timers.backfill_records import OpenBackfill
from schedd.core.timers.pre_dispatch import GUARD
from schedd.store.cluster.fenced_transaction import fenced, fenced_rows, shards_of
from schedd.store.connection.database import Database
from schedd.store.dispatch import (
    assign,
    broadcasts,
    live_run_changes,
    live_run_scan,
    overlap,
    pool_places,
)
from schedd.store.jobs import owner_changes
from schedd.store.reconcile import deadlines
from schedd.store.results import redrive_feed
from schedd.store.runs import change_stream
from schedd.store.statements.bisect import halved
from schedd.store.statements.operations import operations
from schedd.store.timers import backfill_feed, fire
from schedkit import failpoints
from schedkit.records import dataclass

IN_FIRE = failpoints.blocking("fire.in_transaction")
BEFORE_FIRE = failpoints.blocking("fire.before_commit")
BEFORE_ASSIGN = failpoints.blocking("assign.before_commit")
BEFORE_CLOSE = failpoints.blocking("close.before_commit")
BEFORE_PART = failpoints.blocking("part.before_commit")
BEFORE_RESCUE = failpoints.blocking("rescue.before_commit")


@operations("owner")
@dataclass(frozen=True, slots=True)
class PostgresOwnerStore:
    """`schedd.ports.OwnerStore` over PostgreSQL."""

    database: Database
    horizon: timedelta = GUARD
    """How early the database lets a timer be fired, by its own clock."""

    async def due_timers(
        self, shards: Sequence[ShardId], until: datetime, limit: int, *, latest: bool = False
    ) -> list[Timer]:
        """Timers due by `until`, soonest first or latest first, paused ones left out."""
        return await self.database.call(
            lambda c: fire.due_timers(c, shards, until, limit, latest=latest)
        )

    async def timers(self, jobs: Sequence[JobId]) -> list[Timer]:
        """The timers of these jobs; none for a deleted one."""
        return await self.database.call(lambda c: fire.timers(c, jobs))

    async def live_runs(
        self,
        shards: Sequence[ShardId],
        states: Sequence[State],
        until: datetime | None = None,
        of: Collection[RunId] | None = None,
    ) -> list[LiveRun]:
        """Runs that haven't ended, in these states; waiting ones if they are ready at `until`."""
        return await self.database.call(
            lambda c: live_run_scan.live_runs(c, shards, states, until, of)
        )

    async def moment(self) -> Cursor:
        """Return the present position in the change stream."""
        return await self.database.call(change_stream.moment)

    async def changed_runs(
        self, shards: Sequence[ShardId], states: Sequence[State], until: datetime, since: Cursor
    ) -> ChangedRuns | None:
        """Return those of these runs that may have changed since."""
        return await self.database.call(
            lambda c: live_run_scan.changed_runs(c, shards, states, until, since)
        )

    async def definitions(self, jobs: Sequence[JobId]) -> dict[JobId, StoredDefinition]:
        """Return the present definitions."""
        return await self.database.call(lambda c: live_run_changes.definitions(c, jobs))

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        """Advance timers and insert the runs of those that advanced."""

        def body(
            connection: Connection, mine: Sequence[Firing]
        ) -> tuple[list[LiveRun], list[JobId]]:
            IN_FIRE()
            answer = fire.fire(connection, claim.tenure, mine, self.horizon, switched)
            BEFORE_FIRE()
            return answer

        async def write(batch: Sequence[Firing]) -> FireOutcome:
            lost, answer = await fenced(self.database, claim, batch, body)
            return FireOutcome(*(answer or ([], [])), lost)

        answers, broken = await halved(firings, write) if firings else ([], [])
        return FireOutcome(
            [run for _, each in answers for run in each.runs],
            [job for _, each in answers for job in each.refused],
            frozenset().union(*(each.lost for _, each in answers)),
            [each.job_id for each in broken],
        )

    async def assign(
        self,
        claim: Claim,
        drafts: Sequence[Draft],
        next_token: Callable[[ShardId], Token],
    ) -> Assignments:
        """Dispatch the runs that may start now. Raises `OutcomeUnknown` also if the assignments are
        committed but their payloads can't be read: the runs are given back as never started.
        """

        def body(connection: Connection, mine: Sequence[Draft]) -> assign.AssignOutcome:
            answer = assign.assign(connection, claim.tenure, mine, next_token)
            BEFORE_ASSIGN()
            return answer

        async def write(batch: Sequence[Draft]) -> tuple[frozenset[ShardId], assign.AssignOutcome]:
            lost, answer = await fenced(self.database, claim, batch, body)
            return lost, answer or assign.NOTHING

        distinct = list({draft.key: draft for draft in drafts}.values())
        answers, broken = await halved(distinct, write) if distinct else ([], [])
        outcomes = [outcome for _, (_, outcome) in answers]
        assigned = [each for outcome in outcomes for each in outcome.assigned]
        paid = [run.key for run, paid in assigned if paid]
        payloads = await self.database.call(lambda c: assign.payloads(c, paid)) if paid else {}
        return Assignments(
            [Assigned(run, payloads.get(run.key.run_id)) for run, _ in assigned],
            [key for outcome in outcomes for key in outcome.ended],
            [key for outcome in outcomes for key in outcome.waiting],
            frozenset().union(*(lost for _, (lost, _) in answers)),
            [draft.key for draft in broken],
            [key for outcome in outcomes for key in outcome.held],
            [key for outcome in outcomes for key in outcome.full],
            [run for outcome in outcomes for run in outcome.begun],
        )

    async def there(self, ids: Collection[IncarnationId]) -> list[Incarnation]:
        """Return those of these incarnations that are neither lost nor drained."""
        return await self.database.call(lambda c: broadcasts.there(c, ids))

    async def done(self, keys: Sequence[RunKey]) -> dict[RunId, frozenset[str]]:
        """Return the workers on which the redriven work of these broadcasts has succeeded."""
        return await self.database.call(lambda c: broadcasts.done(c, keys))

    async def over(self, keys: Sequence[RunKey]) -> list[RunKey]:
        """Return those of these broadcasts that need `close`."""
        return await self.database.call(lambda c: broadcasts.over(c, keys))

    async def close(self, claim: Claim, closings: Sequence[Closing]) -> ClosedBroadcasts:
        """End broadcasts whose children have ended. Cancel the children of canceled ones."""

        def body(connection: Connection, mine: Sequence[Closing]) -> ClosedBroadcasts:
            closed = broadcasts.close(connection, mine, shards_of(mine))
            BEFORE_CLOSE()
            return closed

        async def write(batch: Sequence[Closing]) -> ClosedBroadcasts:
            _, answer = await fenced(self.database, claim, batch, body)
            return answer or ClosedBroadcasts([], [], [])

        answers, _ = await halved(closings, write) if closings else ([], [])
        return ClosedBroadcasts(
            [run for _, each in answers for run in each.ended],
            [one for _, each in answers for one in each.waited],
            [run for _, each in answers for run in each.cancelled],
        )

    async def pools(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        """Return how much of these pools is in use."""
        return await self.database.call(lambda c: pool_places.standings(c, pools))

    async def part(self, claim: Claim, crowds: Sequence[Crowd]) -> Parted:
        """End runs that the overlap policy of their job replaces or skips."""

        def body(connection: Connection, mine: Sequence[Crowd]) -> Parted:
            parted = overlap.part(connection, claim.tenure, mine)
            BEFORE_PART()
            return parted

        async def write(batch: Sequence[Crowd]) -> Parted:
            _, answer = await fenced(self.database, claim, batch, body)
            return answer or Parted([], [])

        answers, _ = await halved(crowds, write) if crowds else ([], [])
        return Parted(
            [each for _, parted in answers for each in parted.ended],
            [run for _, parted in answers for run in parted.cancelled],
            sum(parted.skipped for _, parted in answers),
            sum(parted.overlapped for _, parted in answers),
        )

    async def backfills(self, shards: Sequence[ShardId]) -> list[OpenBackfill]:
        """Return backfills that may get more runs now, oldest first."""
        return await self.database.call(lambda c: backfill_feed.with_room(c, shards))

    async def feed(self, claim: Claim, wanted: Sequence[OpenBackfill]) -> list[LiveRun]:
        """Create the next runs of these backfills, up to their `max_parallel`."""

        def body(connection: Connection, mine: Sequence[OpenBackfill]) -> list[LiveRun]:
            return backfill_feed.feed(connection, claim.tenure, mine, shards_of(mine))

        return await fenced_rows(self.database, claim, wanted, body)

    async def redrives(self, shards: Sequence[ShardId]) -> list[OpenRedrive]:
        """Return the open redrives of these shards, oldest first."""
        return await self.database.call(lambda c: redrive_feed.to_feed(c, shards))

    async def redrive(
        self,
        claim: Claim,
        wanted: Sequence[OpenRedrive],
        lines: Mapping[JobId, RedriveLine],
    ) -> list[LiveRun]:
        """Create the next runs of these redrives, as many as their rates allow."""

        def body(connection: Connection, mine: Sequence[OpenRedrive]) -> list[LiveRun]:
            return redrive_feed.feed(connection, claim.tenure, mine, lines)

        return await fenced_rows(self.database, claim, wanted, body)

    async def give_back(self, claim: Claim, unstarted: Sequence[Unstarted]) -> list[LiveRun]:
        """Return runs whose assignment never started to their state before it."""

        def body(connection: Connection, mine: Sequence[Unstarted]) -> list[LiveRun]:
            return live_run_changes.give_back(connection, mine, shards_of(mine))

        return await fenced_rows(self.database, claim, unstarted, body)

    async def rescue(self, claim: Claim, losses: Sequence[Loss]) -> list[RunKey]:
        """Record lost assignments, and retry or end their runs."""

        def body(connection: Connection, mine: Sequence[Loss]) -> list[RunKey]:
            rescued = live_run_changes.rescue(connection, mine, shards_of(mine))
            BEFORE_RESCUE()
            return rescued

        return await fenced_rows(self.database, claim, losses, body)

    async def unsettled(
        self, shards: Sequence[ShardId], now: datetime, limit: int
    ) -> tuple[list[JobRecord], list[tuple[JobRecord, int]]]:
        """Return jobs that their owner must resume, or pause."""
        return await self.database.call(lambda c: owner_changes.unsettled(c, shards, now, limit))

    async def resume(self, claim: Claim, ended: Sequence[Resumption]) -> list[JobId]:
        """Resume these jobs, unless they changed since they were read."""
        return await fenced_rows(
            self.database, claim, ended, lambda c, mine: owner_changes.resume(c, claim.tenure, mine)
        )

    async def pause_failing(self, claim: Claim, failed: Sequence[FailedTooOften]) -> list[JobId]:
        """Pause these jobs, unless they changed since they were read."""
        return await fenced_rows(self.database, claim, failed, owner_changes.pause_failing)

    async def end_waiting(self, claim: Claim, ends: Sequence[Expiry]) -> list[RunKey]:
        """End waiting runs of the claim's shards that are past their deadline."""

        def body(connection: Connection, mine: Sequence[Expiry]) -> list[RunKey]:
            return deadlines.end_waiting(connection, claim.tenure, mine, shards_of(mine))

        return await fenced_rows(self.database, claim, ends, body)
