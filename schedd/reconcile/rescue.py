"""Rescue: the periodic scan that finds all work, also when hints were lost.

    rows of the owned shards, read ──→ then the live workers, listed linearizably ──→ decide
      PENDING, RETRYING   → into the run index (a wake-up may be lost)
      RUNNING, worker lost → RETRYING at once with a new token, or FAILED
      RUNNING, its key merely missing → read again until the key exists, or the worker is lost
      RUNNING, never started past start_by → back to its previous state, no attempt spent
      RUNNING, maybe unknown to its worker, before that → revoked (`UnconfirmedAssignments`)
      RUNNING, cancelling  → the cancel is sent again
      RUNNING, a broadcast → no worker has it: it ends with its children (`broadcasts`)
      several of one job   → runs that the overlap policy replaces or skips end (`overlap`)

Lost workers are found in a list that is read after the rows (P6.4), so a run that was
dispatched after the list was read is never taken for lost. The rescuing transaction commits the
loss of an incarnation, and the loss is final.

A scan reads parts of about `PART` rows and takes a tenth of the time; a long scan is followed by a
pause of ten seconds. So no statement comes near its timeout and no other work is blocked, however
many runs wait. Runs that were in the index before the scan and aren't among its rows are removed.
Runs that don't fit into the index are checked while they are read (`on_left`). Once few are left in
the index, the next ones are read, in the order of the queue (`_refill`).

For runs whose rows haven't changed since the last scan, or are as they were created, only the id is
read, and for running ones the id and the token. Such runs are compared as sets, without a step for
each. Each `FULL_EVERY`, and after an error, all rows are read: so a wrong entry of the index
doesn't last. While runs are left in their rows, all rows are read more often: the pause is `REST`
times the duration of such a scan. Between two such scans, a lost hint of a run whose row hasn't
changed isn't made up for, and `on_left` checks only runs whose rows have changed.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Final

from schedd.cluster.owner_transactions import Failed
from schedd.cluster.ownership import Ownership
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.dispatch.deferred_runs import horizon
from schedd.core.events import (
    AssignmentsNotStarted,
    DeadLettered,
    EndedUnreported,
    RunsRescued,
    dead_run,
)
from schedd.core.ids import SHARDS, Id, IncarnationId, JobId, RunId, ShardId, epoch_of
from schedd.core.runs.broadcast import own
from schedd.core.runs.change_stream import Cursor
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Loss, RunKey
from schedd.core.runs.records import Unstarted
from schedd.core.runs.retry import after_loss, fingerprint, reissue_after
from schedd.dispatch.overlap import OverlapEnforcer, crowded, piled_up
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.dispatch.revocations import At
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.ports import ClusterClock
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.set_aside import each, together
from schedkit.tasks import Loop, in_turns

# Assignments that may not have reached their workers are revoked (docs/protocol-rules.md, P4.8).
# They remain when an owner stops between a COMMIT and its pushes, a COMMIT's outcome is unknown, or
# a stream breaks. A revoke changes no row: the worker's answer is stored by its token and sender. A
# pre-dispatched run isn't revoked before it is due: its worker may correctly hold it.

GRACE: Final = timedelta(seconds=0.25)
"""Time after the expected start for which the push may still be on its way."""
ANSWER_WITHIN: Final = 1.0
"""Seconds to wait for answers; the next scan finds unanswered assignments again."""
IDLE: Final = 60.0


class UnconfirmedAssignments:
    """Revokes assignments that may not have reached their workers."""

    def __init__(self, ownership: Ownership, workers: WorkerRegistry, clock: ClusterClock) -> None:
        self._ownership = ownership
        self._workers = workers
        self._clock = clock
        self._out: dict[At, tuple[datetime, LiveRun]] = {}
        """Assignments to revoke, each with the time from which to do so."""
        self._answered: set[At] = set()
        """Answered assignments that the last scan found."""
        self.loop = Loop("unconfirmed assignments", self.step, interval=IDLE)

    def set_found(self, runs: Iterable[LiveRun]) -> None:
        """Replace the assignments to check by those of a scan: runs with running workers."""
        now = self._clock.now()
        answered: set[At] = set()
        self._out = {}
        for run in runs:
            if run.start_by is None or run.start_by <= now:
                continue
            at, should = (run.key.run_id, run.token), run.start_by - START_WITHIN + GRACE
            if at in self._answered:
                answered.add(at)
            elif (
                epoch_of(run.token) < self._ownership.epochs.get(run.shard, 0)
                or self._workers.lacks(run, should)  # a heartbeat should have listed it by now
            ):
                self._out[at] = should, run
        self._answered = answered
        if self._out:
            self.loop.wake()

    async def step(self) -> float:
        """Revoke assignments that should have started; return the seconds until the next is due."""
        now = self._clock.now()
        ripe = {at: run for at, (should, run) in self._out.items() if should <= now}
        for at in ripe:
            del self._out[at]
        ours = self._ownership.epochs
        asked = [run for run in ripe.values() if run.shard in ours and not self._workers.lists(run)]
        if asked:
            unanswered = await self._workers.revoke(asked, ANSWER_WITHIN)
            self._answered |= ripe.keys() - set(unanswered)
        waits = (should - self._clock.now() for should, _ in self._out.values())
        return max(0.0, min((wait.total_seconds() for wait in waits), default=IDLE))


SCAN_EVERY: Final = 1.0
BACK_WITHIN: Final = 1.0
"""Longest pause in seconds before the next scan, after a dependency was unavailable."""
REST: Final = 9
"""Minimum pause before the next scan, as a multiple of the last scan's time. A deleted worker key
starts a scan at once.
"""
LONGEST_REST: Final = 10.0
"""Upper limit of that pause, in seconds."""
ID, TOKEN = 16, 8
FULL_EVERY: Final = 60.0
"""Seconds between two scans that read all rows in full; at most so many while runs are left."""
PART: Final = 2_000
"""Rows that one statement of a scan should read."""
FIRST_PARTS: Final = 8
"""Parts of the first scan, before the number of waiting runs is known."""
SORTED_AT_ONCE: Final = 200
"""Runs that are sorted in between two turns of the event loop."""
WAITING: Final = (State.PENDING, State.RETRYING)
ALL: Final = (*WAITING, State.RUNNING)


class Rescue(OwnerPart):
    """The loop that scans the live runs of the owned shards."""

    def __init__(
        self, context: OwnerContext, leases: WorkerLeases, overlap: OverlapEnforcer
    ) -> None:
        super().__init__(context)
        self._leases, self._overlap = leases, overlap
        self._left: Sequence[Callable[[Sequence[LiveRun]], Awaitable[None]]] = ()
        self._look_at: set[ShardId] = set()
        self._scan_at = 0.0
        self._scan_again_at = 0.0
        """Earliest time of a scan because a refill found too few runs."""
        self._short = False
        """Whether few waiting runs are left in the index and more are in rows."""
        self._took = 0.0
        """Duration of the last scan, in seconds."""
        self._parts = FIRST_PARTS
        self._since: Cursor | None = None
        """Changes committed before it are in the run index; None: unknown."""
        self._read_until = datetime.min.replace(tzinfo=UTC)
        """Until when runs become ready that the last scan looked at."""
        self._full_at = 0.0
        self._left_at = 0.0
        """When a scan reads all rows again because some runs are left there; 0: the next does."""
        self._gone: frozenset[IncarnationId] = frozenset()
        self._unconfirmed = UnconfirmedAssignments(
            self._run_index.ownership, self._workers, self._clock
        )
        look_every = self._leases.ttl / 6
        self._search = Loop(
            "missing workers",
            self.look_again,
            interval=look_every,
            backoff=Backoff(initial=0.1, maximum=look_every),
        )
        backoff = Backoff(initial=0.1, maximum=BACK_WITHIN)
        self.loop = Loop("rescue", self.step, interval=SCAN_EVERY, backoff=backoff)
        self._run_index.ownership.listen(lambda gained, _dropped: self.wake() if gained else None)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return self.loop, self._search, self._unconfirmed.loop

    def on_left(self, *callbacks: Callable[[Sequence[LiveRun]], Awaitable[None]]) -> None:
        """Call `callbacks` with the runs that a scan finds waiting in rows only."""
        self._left = callbacks

    def refill(self) -> None:
        """Read more waiting runs: few are left in the index, and more are in rows. If the next scan
        reads all rows, wait for that.
        """
        if self._left_at and not self._short:
            self._short = True
            self.loop.wake()

    def wake(self) -> None:
        """Scan now: a worker's key was deleted."""
        self._scan_at = 0.0
        self.loop.wake()

    def look_at(self, shards: Iterable[ShardId]) -> None:
        """Read the runs of these shards into the index now: some were inserted or made ready."""
        self._look_at.update(shards)
        self.loop.wake()

    async def step(self) -> float:
        """Scan all shards; before a scan is due, refill the index, or read those of `look_at`."""
        now = boottime()
        if now < self._scan_at and self._short:
            await self._refill(sorted(self._run_index.ownership.epochs))
        elif now < self._scan_at and self._look_at:
            shards = sorted(self._look_at.intersection(self._run_index.ownership.epochs))
            self._look_at = set()
            with self._run_index.reading():
                await self._put(await self._store.live_runs(shards, WAITING, self._until()))
        elif now >= self._scan_at:
            self._look_at, self._scan_at = set(), now + SCAN_EVERY
            try:
                with self._run_index.reading():
                    await self._scan(sorted(self._run_index.ownership.epochs))
            except BaseException:
                self._scan_at = 0.0  # the next step is this one again, not an empty one
                raise
            ended = boottime()
            self._took = ended - now
            self._scan_again_at = ended + min(self._took, LONGEST_REST)
            if self._scan_at:  # else a key was deleted after the list was read: scan again
                self._scan_at = max(self._scan_at, ended + min(REST * self._took, LONGEST_REST))
        again = self._look_at or self._short
        return 0.0 if again else max(0.0, self._scan_at - boottime())

    async def look_again(self) -> None:
        """Check workers whose keys are missing. Checks are frequent: a worker counts as lost only
        if it can't have returned and stopped again between two of them. A lost worker starts a
        scan.
        """
        gone = await self._leases.look_again()
        if gone - self._gone:
            self.wake()
        self._gone = gone

    def _until(self) -> datetime:
        return self._clock.now() + horizon(self._took)

    async def _refill(self, shards: Sequence[ShardId]) -> None:
        """Read the next waiting runs into the index, as many as a bucket keeps. If so many don't
        wait, or can't be read, or none of them is new here, the next scan reads all rows.
        """
        ready, now = self._run_index.ready, self._clock.now()
        first, fresh = ready.first_left, 0
        try:
            end = first and await self._store.end_of_next(shards, first, ready.most, now)
            if first and end:
                since, until = first.scheduled_at, end.scheduled_at
                with self._run_index.reading(), ready.refilling(since, end):
                    for part in _parts(shards, math.ceil(ready.most / PART)):
                        fresh += await self._put(
                            await self._store.next_runs(part, since, end, until)
                        )
        except BaseException:
            fresh = 0
            raise
        finally:
            self._short = False
            if first and not fresh:
                self._left_at = 0.0
                self._scan_at = min(self._scan_at, self._scan_again_at)

    async def _scan(self, shards: Sequence[ShardId]) -> None:
        running: list[LiveRun] = []
        overlapping: list[LiveRun] = []
        piled: dict[JobId, Sequence[LiveRun]] = {}
        at = self._clock.now()
        until, now = self._until(), boottime()
        since, self._since = self._since, None
        if now >= self._full_at:
            since, self._full_at = None, now + FULL_EVERY
        if self._run_index.ready.leaves_some and now >= self._left_at:
            since = None
        whole, leaves_some = since is None, self._run_index.ready.leaves_some
        moment = await self._store.moment()
        here: dict[bytes, LiveRun] = {}
        stood: dict[ShardId, list[bytes]] = defaultdict(list)
        async for run in in_turns(self._run_index.standing(until), SORTED_AT_ONCE):
            run_id = run.key.run_id
            here[run_id] = run
            stood[run.shard].append(run_id)
        self._parts = max(self._parts, math.ceil(len(here) / PART))
        rows = 0
        seen: set[bytes] = set()
        with self._run_index.ready.scanning() if whole else nullcontext():
            for part in _parts(shards, self._parts):
                known = self._run_index.read.issuperset(part)
                runs, same = await self._read(
                    part, until, since if known else None, here, leaves_some
                )
                if known and not self._run_index.read.issuperset(part):
                    known = False  # dropped, perhaps gained again: its runs were removed
                    runs, same = await self._read(part, until, None, here, leaves_some)
                rows += len(runs) + len(same)
                if not known:  # blocked runs are released in order from the start
                    runs.sort(key=lambda run: run.due_at)
                seen.update(same, here.keys() & {run.key.run_id for run in runs})
                gone = [here[one] for shard in part for one in stood[shard] if one not in seen]
                await self._sort_in(runs, gone)
                await self._sort_again(same)
                self._run_index.were_read(part)
                running += [r for r in runs if r.state is State.RUNNING and r.children is None]
                unchanged = [here[one] for one in same]
                running += [run for run in unchanged if run.state is State.RUNNING]
                live = [*runs, *unchanged]
                for run in live:
                    if run.cancelling and run.state is State.RUNNING:
                        self._workers.cancel(run, kill=run.killing)
                overlapping += crowded(live)
                piled |= piled_up(live, at)
                await asyncio.sleep(0)  # let other tasks run between two parts
        counted = whole or not leaves_some
        self._parts = max(1 if counted else self._parts, math.ceil(rows / PART))
        self._since, self._read_until = moment, until
        took = boottime() - now
        pause = took + min(REST * took, FULL_EVERY) if whole else 0.0
        self._left_at = max(self._left_at, now + pause)
        if running:
            await self._look_after(running)
        else:
            self._leases.forget_missing()
        if overlapping and await self._overlap.judge_blocked(overlapping, piled):
            self._ready()

    async def _look_after(self, running: Sequence[LiveRun]) -> None:
        named = {run.incarnation for run in running if run.incarnation is not None}
        liveness = await self._leases.liveness(named)
        nowhere = {*liveness.gone, None}  # None would be a bug, which the rescue raises
        await self._rescue([run for run in running if run.incarnation in nowhere])
        alive = [run for run in running if run.incarnation in liveness.live]
        self._unconfirmed.set_found(alive)
        await self._give_back(await self._workers.never_started(alive))

    async def _read(
        self,
        shards: Sequence[ShardId],
        until: datetime,
        since: Cursor | None,
        here: Mapping[bytes, LiveRun],
        leaves_some: bool,
    ) -> tuple[list[LiveRun], Set[bytes]]:
        """Return the runs of these shards, and which runs in `here` have unchanged rows. If some
        are left in their rows, unchanged runs that aren't here are, except those of `soon`.
        """
        try:
            found = since and await self._store.changed_runs(
                shards, ALL, until, since, self._read_until
            )
            if not found:
                return await self._store.live_runs(shards, ALL, until), frozenset()
            known = found.same.intersection(here)
            same = {one for one in known if here[one].state is not State.RUNNING}
            untouched, part = found.untouched.intersection(here), frozenset(shards)
            same |= {one for one in untouched if here[one].untouched and here[one].shard in part}
            unchanged = (found.same & here.keys()) | found.soon if leaves_some else found.same
            others = (unchanged - same) | (found.untouched - same)
            wanted = [*found.changed, *(RunId(Id(one)) for one in others)]
            for entry in found.running:
                run = here.get(entry[:ID])
                if (
                    run is not None
                    and run.children is None
                    and run.state is State.RUNNING
                    and run.key.run_id + run.token.to_bytes(TOKEN) == entry
                ):
                    same.add(entry[:ID])
                else:
                    wanted.append(RunId(Id(entry[:ID])))
            runs = await self._store.live_runs(shards, ALL, until, wanted) if wanted else []
            return runs, same
        except Unavailable:
            self._parts = min(2 * self._parts, SHARDS)  # smaller parts, in case this one timed out
            raise

    async def _sort_in(self, runs: Sequence[LiveRun], gone: Sequence[LiveRun]) -> None:
        """Sort in the runs of a scan, and forget the runs `gone`: neither this part nor earlier
        ones had them. A job may move between two parts; its runs are then found under the new
        shard.
        """
        released = 0
        async for run in in_turns(gone, SORTED_AT_ONCE):
            released += self._run_index.forget(run.key.run_id, run.job_id)
        if released:
            self._ready()
        await self._put(runs)
        if left := self._run_index.runs_not_loaded(runs):
            for callback in self._left:
                await callback(left)

    async def _sort_again(self, same: Set[bytes]) -> None:
        runs, now = self._run_index.unsure(same), self._clock.now()
        for first in range(0, len(runs), SORTED_AT_ONCE):
            self._run_index.put_again(runs[first : first + SORTED_AT_ONCE], now)
            await asyncio.sleep(0)

    async def _put(self, runs: Sequence[LiveRun]) -> int:
        """Sort these runs in; return how many are ready and new here."""
        fresh, now = 0, self._clock.now()
        put, name = partial(self._run_index.put_runs, now=now), attrgetter("key.run_id")
        for first in range(0, len(runs), SORTED_AT_ONCE):
            part = runs[first : first + SORTED_AT_ONCE]
            fresh += sum(together("run", part, put, name=name))
            if len(part) == SORTED_AT_ONCE:
                await asyncio.sleep(0)  # let other tasks run between
        if fresh:
            self._ready()
        return fresh

    async def _rescue(self, lost: Sequence[LiveRun]) -> None:
        if not lost:
            return
        doubted = {run.incarnation for run in lost if run.incarnation}
        self._workers.lost(doubted)
        try:
            known = await self._definition_cache.of_runs(lost)
            readable = [run for run in lost if run.job_id in known]
            losses = each(
                "lost run",
                readable,
                lambda run: _loss(run, known[run.job_id]),
                name=lambda run: run.key.run_id,
            )
            answers = await self._transactor.by_lane(losses, self._store.rescue)
            moved = [each for each in answers if isinstance(each, list)]
            doubted -= self._rescued(lost, losses, moved)
        finally:
            self._workers.spared(doubted)  # the loss wasn't committed: they may return
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error

    def _rescued(
        self, lost: Sequence[LiveRun], losses: Sequence[Loss], answers: Iterable[Iterable[RunKey]]
    ) -> set[IncarnationId]:
        """Report rescued runs, even if another lane failed; return the lost incarnations."""
        moved = {key for answer in answers for key in answer}
        done = {loss.key: loss for loss in losses if loss.key in moved}.values()
        gone = {loss.incarnation for loss in done}
        if dead := {loss.key: loss.reason for loss in done if loss.dead}:
            self._emit(DeadLettered(tuple(dead_run(r, dead[r.key]) for r in lost if r.key in dead)))
        states = Counter((loss.state, loss.reason) for loss in done)
        for (state, reason), count in states.items():
            self._emit(EndedUnreported(state, reason, count))
        if moved:
            runs = tuple(sorted(key.run_id for key in moved))
            self._emit(RunsRescued(runs, tuple(sorted(gone))))
            self._wake_ups.runs_changed([(key.run_id, None) for key in moved])
            self.look_at({loss.shard for loss in losses})
        return gone

    async def _give_back(self, never_started: Sequence[LiveRun]) -> None:
        unstarted = [Unstarted(run.key, run.shard, run.token) for run in never_started]
        back = await self._transactor.rows(unstarted, self._store.give_back)
        if back:
            self._emit(AssignmentsNotStarted(tuple(run.key.run_id for run in back)))
            await self._put(back)


def _parts(shards: Sequence[ShardId], count: int) -> list[Sequence[ShardId]]:
    size = max(1, math.ceil(len(shards) / count))
    return [shards[at : at + size] for at in range(0, len(shards), size)]


def _loss(run: LiveRun, known: CachedDefinition) -> Loss:
    if run.incarnation is None:
        raise ValueError(
            f"run {run.key.run_id} is RUNNING, but its record names no worker (a bug of"
            " schedd: please report this message)"
        )
    definition = own(run, known.definition)
    sequel = after_loss(run, definition)
    return Loss(
        key=run.key,
        shard=run.shard,
        token=run.token,
        incarnation=run.incarnation,
        state=sequel.state,
        reason=sequel.reason,
        dead=sequel.dead and run.parent is None,
        pause_after=definition.pause_after_failures,
        notices=definition.notices,
        fingerprint=fingerprint(sequel.reason, None, "") if sequel.dead else "",
        wait=reissue_after(definition),
    )
