"""The owner's store: each call one transaction on the lane of its shards, fenced by their rows.

lock shard rows, alone ─→ the items whose shards are still owned ─→ body ─→ COMMIT
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import Connection

from schedd.core.ids import JobId, ShardId, Token
from schedd.core.runs.broadcast import ClosedBroadcasts, Closing
from schedd.core.runs.model import Claim, Draft, Firing, FiringToSlot, LiveRun, OverlapCandidates
from schedd.core.runs.records import (
    Assignments,
    FireOutcome,
    OverlapOutcome,
    Submit,
    SubmitOutcome,
    SubmitToSlot,
)
from schedd.core.timers.backfill import OpenBackfill
from schedd.core.timers.pre_dispatch import GUARD
from schedd.store.cluster.fence import lock_free_shards
from schedd.store.cluster.fenced_transaction import fenced, fenced_batches, in_fence, shards_of
from schedd.store.connection.database import Database, in_autocommit, in_transaction
from schedd.store.dispatch import assign, broadcasts, overlap, pool_limits
from schedd.store.jobs import job_rows, owner_changes
from schedd.store.jobs.submits import submit_all
from schedd.store.reconcile import deadlines, live_run_scan, rescue
from schedd.store.reconcile.stats import read_pending_work
from schedd.store.results import redrive_feed
from schedd.store.runs import change_stream
from schedd.store.statements.bisect import halved
from schedd.store.statements.operations import operations
from schedd.store.timers import backfill_feed, fire
from schedd.store.timers.fire_running import fire_running
from schedkit import failpoints
from schedkit.records import dataclass

Fired = TypeVar("Fired", Firing, FiringToSlot)

IN_FIRE = failpoints.blocking("fire.in_transaction")
BEFORE_FIRE = failpoints.blocking("fire.before_commit")
BEFORE_ASSIGN = failpoints.blocking("assign.before_commit")
BEFORE_CLOSE = failpoints.blocking("close.before_commit")
BEFORE_PART = failpoints.blocking("part.before_commit")
BEFORE_RESCUE = failpoints.blocking("rescue.before_commit")
BEFORE_SUBMIT = failpoints.blocking("submit.before_commit")


def _feed(connection: Connection, claim: Claim, wanted: Sequence[OpenBackfill]) -> list[LiveRun]:
    return backfill_feed.feed(connection, claim.tenure, wanted, shards_of(wanted))


@operations("owner")
@dataclass(frozen=True, slots=True)
class OwnerStore:
    """Reads and writes of a shard's owner. Each writing call is one transaction, fenced by its
    shards' rows. Items of shards that the claim doesn't own any more are left out.
    """

    database: Database
    horizon: timedelta = GUARD
    """How early the database lets a timer be fired, by its own clock."""

    pending_work = in_autocommit(read_pending_work)
    new_timers = in_transaction(fire.new_timers)
    due_timers = in_transaction(fire.due_timers)
    timers = in_transaction(fire.timers)
    live_runs = in_transaction(live_run_scan.live_runs)
    moment = in_autocommit(change_stream.moment)
    written_runs = in_transaction(live_run_scan.written_runs)
    changed_assignments = in_transaction(live_run_scan.changed_assignments)
    live_keys = in_transaction(live_run_scan.live_keys)
    runs_by_key = in_transaction(live_run_scan.runs_by_key)
    end_of_next = in_transaction(live_run_scan.end_of_next)
    next_runs = in_transaction(live_run_scan.next_runs)
    definitions_by_text = in_transaction(job_rows.definitions_by_text)

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        """Advance timers and insert the runs of those that advanced. `switched`: the version of
        the cluster's pauses that the firings were planned with (`core/timers/cluster_pauses.py`).
        """

        def write(
            connection: Connection, mine: Sequence[Firing]
        ) -> tuple[list[LiveRun], list[JobId]]:
            return fire.fire(connection, claim.tenure, mine, self.horizon, switched)

        return await self._fired(claim, firings, write)

    async def fire_running(
        self,
        claim: Claim,
        firings: Sequence[FiringToSlot],
        next_token: Callable[[ShardId], Token],
        switched: int = 0,
    ) -> FireOutcome:
        """Advance timers and insert their runs as RUNNING, or as PENDING beside another live run.
        `next_token` is called after the shard rows are locked, once for each run of an owned shard
        (docs/protocol-rules.md, P1.2).
        """

        def write(
            connection: Connection, mine: Sequence[FiringToSlot]
        ) -> tuple[list[LiveRun], list[JobId]]:
            tenure, horizon = claim.tenure, self.horizon
            return fire_running(connection, tenure, mine, next_token, horizon, switched)

        return await self._fired(claim, firings, write)

    async def _fired(
        self,
        claim: Claim,
        firings: Sequence[Fired],
        fire_batch: Callable[[Connection, Sequence[Fired]], tuple[list[LiveRun], list[JobId]]],
    ) -> FireOutcome:
        def body(
            connection: Connection, mine: Sequence[Fired]
        ) -> tuple[list[LiveRun], list[JobId]]:
            IN_FIRE()
            answer = fire_batch(connection, mine)
            BEFORE_FIRE()
            return answer

        async def write(batch: Sequence[Fired]) -> FireOutcome:
            lost, answer = await fenced(self.database, claim, batch, body)
            return FireOutcome(*(answer or ([], [])), lost)

        answers, broken = await halved(firings, write)
        return FireOutcome(
            [run for _, each in answers for run in each.runs],
            [job for _, each in answers for job in each.refused],
            frozenset().union(*(each.lost for _, each in answers)),
            [firing.job_id for firing in broken],
        )

    async def assign(
        self, claim: Claim, drafts: Sequence[Draft], next_token: Callable[[ShardId], Token]
    ) -> Assignments:
        """Dispatch the runs that may start now. `next_token` is called after the shard rows are
        locked, once for each run of an owned shard (docs/protocol-rules.md, P1.1).

        Raises `OutcomeUnknown` also if the assignments are
        committed but their payloads can't be read: the runs are given back as never started.
        """

        def body(connection: Connection, mine: Sequence[Draft]) -> assign.AssignOutcome:
            answer = assign.assign(connection, claim.tenure, mine, next_token)
            BEFORE_ASSIGN()
            return answer

        async def write(batch: Sequence[Draft]) -> tuple[frozenset[ShardId], assign.AssignOutcome]:
            lost, answer = await fenced(self.database, claim, batch, body)
            return lost, answer or assign.NOTHING

        distinct = list({draft.run.key.run_id: draft for draft in drafts}.values())
        answers, broken = await halved(distinct, write)
        outcomes = [outcome for _, (_, outcome) in answers]
        batches = [each for outcome in outcomes for each in outcome.assigned]
        unread = {key for outcome in outcomes for key in outcome.unread}
        if unread:
            payloads = await self.database.call(assign.read_payloads, [*unread])
            batches = [
                one
                for batch in batches
                for one in (batch.with_payloads(payloads) if batch.first.key in unread else [batch])
            ]
        return Assignments(
            batches,
            [key for outcome in outcomes for key in outcome.ended],
            [key for outcome in outcomes for key in outcome.waiting],
            frozenset().union(*(lost for _, (lost, _) in answers)),
            [draft.key for draft in broken],
            [key for outcome in outcomes for key in outcome.held],
            [key for outcome in outcomes for key in outcome.full],
            [run for outcome in outcomes for run in outcome.begun],
        )

    async def submit(
        self,
        claim: Claim,
        submits: Sequence[Submit],
        to_slots: Sequence[SubmitToSlot],
        next_token: Callable[[ShardId], Token],
    ) -> SubmitOutcome:
        """Store the submits of several callers, and dispatch those with a slot. `next_token` is
        called after the shard rows are locked, once for each run of an owned shard
        (docs/protocol-rules.md, P1.2). A submit waits for no lock: a run whose shard another
        session has locked is stored as PENDING.
        """

        def transaction(connection: Connection) -> SubmitOutcome:
            owned, lost = lock_free_shards(connection, claim)
            dispatches = {
                each.place: (next_token(each.shard), each.terms)
                for each in to_slots
                if each.shard in owned
            }
            records = submit_all(connection, submits, dispatches)
            BEFORE_SUBMIT()
            return SubmitOutcome(records, lost)

        return await self.database.on_lane(claim.epochs, transaction)

    there = in_transaction(broadcasts.there)
    done = in_transaction(broadcasts.done)
    over = in_transaction(broadcasts.broadcasts_to_close)

    async def close(self, claim: Claim, closings: Sequence[Closing]) -> ClosedBroadcasts:
        """End broadcasts whose children have ended. Cancel the children of canceled ones: the
        caller sends the cancels to their workers.
        """

        def body(connection: Connection, mine: Sequence[Closing]) -> ClosedBroadcasts:
            answer = broadcasts.close(connection, mine, shards_of(mine))
            BEFORE_CLOSE()
            return answer

        closed = await fenced_batches(self.database, claim, closings, body)
        return ClosedBroadcasts(
            [run for each in closed for run in each.ended],
            [one for each in closed for one in each.waited],
            [run for each in closed for run in each.cancelled],
        )

    pools = in_transaction(pool_limits.usage)

    async def part(self, claim: Claim, candidates: Sequence[OverlapCandidates]) -> OverlapOutcome:
        """End runs that the overlap policy of their job replaces or skips, a limited number: call
        again. Running ones are marked, and the caller sends the cancels to their workers.
        """

        def body(connection: Connection, mine: Sequence[OverlapCandidates]) -> OverlapOutcome:
            answer = overlap.part(connection, claim.tenure, mine)
            BEFORE_PART()
            return answer

        parted = await fenced_batches(self.database, claim, candidates, body)
        return OverlapOutcome(
            [run for each in parted for run in each.ended],
            [run for each in parted for run in each.cancelled],
            sum(each.skipped for each in parted),
            sum(each.overlapped for each in parted),
        )

    backfills = in_transaction(backfill_feed.with_room)

    feed = in_fence(_feed)
    redrives = in_transaction(redrive_feed.to_feed)
    redrive = in_fence(redrive_feed.feed)
    give_back = in_fence(rescue.give_back_own)
    rescue = in_fence(rescue.rescue, BEFORE_RESCUE)
    read_due_pause_changes = in_transaction(owner_changes.read_due_pause_changes)
    resume = in_fence(owner_changes.resume)
    pause_failing = in_fence(owner_changes.pause_failing)
    end_waiting = in_fence(deadlines.end_waiting)
