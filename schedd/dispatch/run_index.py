"""Index of an owner's work: due timers, ready runs, running runs. In memory, for one tenure.

    timers ──due──→ (fire) ──→ ready ──(dispatch)──→ running ──(collect, rescue)──→ ended
                      retries ──end of backoff──↗ │     └──retry──→ retries
                                     overlap limit ├──→ blocked ──run of its job ended──→ ready
                                  it is a broadcast └──→ broadcasts ──its children ended──→ ended

The rows in PostgreSQL are authoritative; the index holds what was last read or written. A lost
entry costs the time until the next scan. A stale entry costs a refused statement, and lasts until
the next scan.

A run that is due later is in `early` as soon as it may be pre-dispatched, and also in `waiting`
(`core/timers/pre_dispatch`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import Final

from schedd.cluster.ownership import Ownership
from schedd.core.dispatch.blocked import BlockedRuns
from schedd.core.dispatch.deferred_runs import may_wait_in_its_row
from schedd.core.dispatch.dispatched_runs import DispatchedRuns
from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.ready_queue import ReadyQueue
from schedd.core.ids import JobId, RunId, ShardId, Token
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import DispatchedBatch, LiveKey, LiveRun
from schedd.core.timers.due_index import DueIndex
from schedd.core.timers.pre_dispatch import NEVER, EarlyRuns, Lookahead, may_go_early
from schedd.dispatch.held_timers import HERD, HeldTimers
from schedd.dispatch.loaded_timers import Timers

NOWHERE: Final = Token(-1)
"""Token below every real one."""


def _medium(_: JobId) -> Priority:
    return Priority.MEDIUM


def _unknown(_: LiveRun) -> Need | None:
    return None


class RunIndex:
    """The owned work of one tenure. `priority_of`: the priority of a job, if known. `need_of`: the
    need of a run that is sorted at once, with or without slots. `early_need_of`: the need of a run
    that may be pre-dispatched, if known.
    """

    def __init__(
        self,
        ownership: Ownership,
        priority_of: Callable[[JobId], Priority] = _medium,
        need_of: Callable[[LiveRun], Need | None] = _unknown,
        early_need_of: Callable[[LiveRun], Need | None] = _unknown,
        lookahead: Lookahead = NEVER,
    ) -> None:
        self.ownership = ownership
        self.lookahead = lookahead
        self._early_need_of = early_need_of
        self._priority_of = priority_of
        self._need_of = need_of
        self.timers = Timers(ownership, lookahead, priority_of)
        self.held_timers = HeldTimers(self.timers, lookahead)
        """Timers whose runs are fired as RUNNING when slots are free."""
        self.waiting: DueIndex[RunId, LiveRun] = DueIndex()
        """Runs that aren't ready yet: in their backoff, or due later."""
        self.early = EarlyRuns()
        """Waiting runs that may be pre-dispatched."""
        self.ready = ReadyQueue()
        self.running = DispatchedRuns()
        self.broadcasts: dict[RunId, LiveRun] = {}
        """Broadcasts that have begun; no worker has them."""
        self.ended = 0
        """Number of attempts known to have ended here."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when a run has ended while runs wait for pools, which may have room now."""
        self.on_short: Callable[[], None] = lambda: None
        """Called when few waiting runs are left here and more wait in their rows."""
        self._reading = 0
        self._over: dict[RunId, Token] = {}
        """Runs that ended while rows were read, with their tokens."""
        self.read: set[ShardId] = set()
        """Owned shards whose live runs were all read since the takeover, so their runs in progress
        are known.
        """
        self._kept: dict[JobId, set[RunId]] = {}
        """Waiting runs that aren't pre-dispatched until another run of their job has ended."""
        self._held = BlockedRuns()
        self._judged: dict[JobId, int] = {}
        """Runs ended meanwhile, by job whose runs are being checked."""
        self._doubtful: dict[LiveKey, None] = {}
        """Runs that must be read again, in order."""
        ownership.listen(self._shards_changed)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Surround the reading and sorting of rows. Runs that end meanwhile stay removed, although
        the rows include them.
        """
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            if not self._reading:
                self._over.clear()

    def report(self, run_ids: Sequence[RunId], tokens: Sequence[Token]) -> bool:
        """Note that results of these assignments arrived and aren't stored yet.

        Return whether another late run may take the place of one without a new grant.
        """
        self.running.report(run_ids, tokens)
        return self.ready.late > 0 and self.running.any_late(run_ids)

    def put_runs(self, runs: Iterable[LiveRun], now: datetime) -> int:
        """Sort these runs in by state; return how many are ready and new to the queue."""
        listed = [*runs]
        ids, owned = {run.key.run_id for run in listed}, self.ownership.epochs
        here = ids & self.running.ids
        for others in (self.broadcasts, self.waiting, self._over):
            here |= ids & others.keys()
        some_held, holds = self._held.some, self._held.holds
        ready: list[LiveRun] = []
        for run in listed:
            known = run.key.run_id in here or (some_held and holds(run.job_id))
            waits = run.state is State.PENDING and run.ready_at <= now and run.shard in owned
            if (waits and not known) or self._is_ready(run, now):
                ready.append(run)
        return self._put_ready(ready)

    def _is_ready(self, run: LiveRun, now: datetime) -> bool:
        """Return whether this run belongs into the queue, and take it from elsewhere. Sort it in if
        it doesn't.
        """
        run_id = run.key.run_id
        if self._over and run.token <= self._over.get(run_id, NOWHERE):
            return False  # row was read before the run ended
        at_hand = self.running.get(run_id) or self.broadcasts.get(run_id)
        if run.shard not in self.ownership.epochs or run.state not in LIVE:
            self.forget(run_id, run.job_id)
        elif at_hand is not None and at_hand.token > run.token:
            return False  # row was read before the run was dispatched
        elif run.state is State.RUNNING:
            self._put_running(run)
        elif run.ready_at > now:
            self._no_longer_runs(run_id)
            self.ready.discard(run_id)
            self._held.discard(run_id, run.job_id)
            self._wait(run, now)
        else:
            self._no_longer_runs(run_id)
            self._waits_no_more(run_id, run.job_id)
            if not self._held.contains(run_id, run.job_id):
                return True
            self._held.add(run)
        return False

    def unsure(self) -> list[LiveRun]:
        """Return the runs that `put_again` may sort in elsewhere."""
        here = self.ready.unsorted().values()
        return [
            *[run for run in here if run.line is not None or self._need_of(run) is not None],
            *self.waiting.values(),
        ]

    def put_again(self, runs: Iterable[LiveRun], now: datetime) -> None:
        """Sort runs in again because more is known of their jobs; their rows haven't changed."""
        learnt: list[LiveRun] = []
        for run in runs:
            run_id = run.key.run_id
            if self.ready.is_unsorted(run_id):
                if self.ready.learnt(run_id) or self._need_of(run) is not None:
                    learnt.append(run)
            elif run.ready_at > now and run_id in self.waiting and run_id not in self.early:
                self._wait(run, now)
        self._put_ready(learnt)

    def runs_not_loaded(self, runs: Iterable[LiveRun]) -> list[LiveRun]:
        """Return the runs that wait in rows only: not all runs are held in memory."""
        if not self.ready.leaves_some:
            return []
        return [run for run in runs if run.state is not State.RUNNING and not self._contains(run)]

    @property
    def all_read(self) -> bool:
        """Whether the live runs of all owned shards were read since their takeover."""
        return len(self.read) == len(self.ownership.epochs)

    def were_read(self, shards: Iterable[ShardId]) -> None:
        """Note that all live runs of these shards were sorted in."""
        self.read.update(self.ownership.epochs.keys() & set(shards))

    def missing(self, keys: Iterable[LiveKey]) -> list[LiveKey]:
        """Return which of these runs aren't here, or wait here under another shard."""
        elsewhere = (self.running.ids, self.broadcasts, self._over)
        return [
            key
            for key in keys
            if not any(key.run_id in place for place in elsewhere)
            and ((run := self._find_waiting(key)) is None or run.shard != key.shard)
        ]

    def find(self, key: LiveKey) -> LiveRun | None:
        """Return the run as it is here: it waits, runs, or is a broadcast that has begun."""
        run_id = key.run_id
        run = self.running.get(run_id) or self.broadcasts.get(run_id)
        return run or self._find_waiting(key)

    def _find_waiting(self, key: LiveKey) -> LiveRun | None:
        run = self.ready.get(key.run_id) or self._held.get(key.run_id, key.job_id)
        if run is None and (found := self.waiting.get(key.run_id)) is not None:
            run = found[1]
        return run

    def forget_unchanged(self, run: LiveRun) -> int:
        """Remove a run that has ended or is paused, if it is here as before; return the same as
        `forget`.
        """
        here = self.find(run.live_key)
        same = here is not None and (here.token, here.shard) == (run.token, run.shard)
        return self.forget(run.key.run_id, run.job_id) if same else 0

    def read_again(self, runs: Iterable[LiveRun]) -> None:
        """Let the next scan read the rows of these runs, which may not be as known here."""
        self._doubtful.update((run.live_key, None) for run in runs)

    def take_doubtful(self) -> list[LiveKey]:
        """Remove and return the runs that must be read again."""
        taken, self._doubtful = self._doubtful, {}
        return [*taken]

    def ripen(self, now: datetime) -> int:
        """Queue runs that have become ready, and let due runs be pre-dispatched. Return how many
        are ready.
        """
        ripe: list[LiveRun] = []
        for run in self.waiting.pop_due(now, limit=len(self.waiting)):
            if run.ready_at > now:
                self._wait(run, now)
            else:
                self._waits_no_more(run.key.run_id, run.job_id)
                ripe.append(run)
        self._put_ready(ripe)
        return len(ripe)

    def take_early(self, count: int, goes: Callable[[Need], bool]) -> list[LiveRun]:
        """Remove and return the soonest due runs that may be pre-dispatched."""
        taken = self.early.take_runs(count, goes)
        for run in taken:
            self._waits_no_more(run.key.run_id, run.job_id)
        return taken

    def dispatched(self, batch: DispatchedBatch) -> None:
        """Note that runs were dispatched; a scan may have read them as waiting meanwhile."""
        self.running.add_batch(batch)
        for run_id in self.ready.ids() & batch.places.keys():
            self.ready.discard(run_id)
        if self.waiting or self._kept:
            for run in batch.runs:
                if run.key.run_id in self.waiting or run.job_id in self._kept:
                    self._waits_no_more(run.key.run_id, run.job_id)

    def wait(self, run: LiveRun) -> None:
        """Keep a run until it is ready; pre-dispatch it only after another of its job has ended."""
        run_id = run.key.run_id
        self.early.discard(run_id)
        self.waiting.put(run_id, run.ready_at, run)
        self._kept.setdefault(run.job_id, set()).add(run_id)

    def hold(self, run: LiveRun) -> None:
        """Block a run until another of its job has ended: the job is at its overlap limit."""
        self.ready.discard(run.key.run_id)
        self._held.add(run)

    def release(self, job: JobId, count: int = 1) -> int:
        """Let blocked runs of this job be tried again, in the order of their rows; return their
        number.
        """
        released = self._held.pop(job, count)
        self.ready.add(released)
        return len(released)

    def judge(self, jobs: Iterable[JobId]) -> None:
        """Take runs of these jobs off the queue until `judged` is called.

        Runs of these jobs that end meanwhile are counted, because the statement may not have seen
        their ends. Blocked runs must not go before runs that are being checked.
        """
        self._judged = dict.fromkeys(jobs, 0)

    def judged(self) -> int:
        """End the check of a job: as many blocked runs as ended meanwhile may be tried. Return
        their number.
        """
        gone, self._judged = self._judged, {}
        for job, count in gone.items():
            if count:
                self._unkeep(job)
        if not self._held.some:
            return 0
        return sum(self.release(job, count) for job, count in gone.items())

    @property
    def held(self) -> list[JobId]:
        """Jobs with blocked runs."""
        return self._held.jobs

    def remove_ended(self, runs: Sequence[LiveRun], tokens: Sequence[Token]) -> int:
        """Remove runs that ended under these tokens; return how many runs may go now
        (`release_after_end`).
        """
        owned = self.ownership.epochs
        here = {run.key.run_id: run for run in runs if run.shard in owned}
        if self._reading:
            ids = [run.key.run_id for run in runs]
            self._over |= {one: t for one, t in zip(ids, tokens, strict=True) if one in here}
        gone = self.running.pop_all(here)
        self._attempts_ended(len(gone))
        kept, judged, held = self._kept, self._judged, self._held
        some_held = held.some
        go = 0
        for run_id, run in here.items():
            job = run.job_id
            if run_id not in gone:
                go += self.forget(run_id, job)
            elif job in kept or job in judged or (some_held and held.holds(job)):
                go += self.release_after_end(job)
        return go

    def forget(self, run_id: RunId, job: JobId) -> int:
        """Remove a run that has ended or has another owner now; return the same."""
        return self.release_after_end(job) if self._take_off(run_id, job) else 0

    def release_after_end(self, job: JobId) -> int:
        """Count a removed run of this job. A blocked run may take its place: at once, or when the
        check of other runs of its job ends. One may be pre-dispatched. Return how many may go now.
        """
        early = self._unkeep(job)
        if job in self._judged:
            self._judged[job] += 1
            return early
        return early + self.release(job)

    def standing(self, until: datetime) -> Iterator[LiveRun]:
        """Iterate over the runs that are here now, except those that become ready later than
        `until`. Dispatched runs are looked up one by one: those that end meanwhile are left out.
        """
        soon = [run for run in self.waiting.values() if run.ready_at <= until]
        waiting = [*self.broadcasts.values(), *self.ready, *soon, *self._held]
        found = map(self.running.get, [*self.running])
        return chain(waiting, (run for run in found if run is not None))

    def waiting_runs(self) -> list[LiveRun]:
        """Return all runs that wait for their first attempt or a retry."""
        return [*self.ready, *self.waiting.values(), *self._held]

    def next_ripe(self) -> datetime | None:
        """Return when the next waiting run becomes ready."""
        return self.waiting.next_at()

    def clear(self) -> None:
        """Release all memory at the end of the tenure. Parts of a tenure refer to each other, so
        only a full garbage collection would free them.
        """
        self.timers = Timers(self.ownership, self.lookahead, self._priority_of)
        self.held_timers = HeldTimers(self.timers, self.lookahead)
        self.waiting, self.early = DueIndex(), EarlyRuns()
        self.ready, self.running, self._held, self._judged = (
            ReadyQueue(),
            DispatchedRuns(),
            BlockedRuns(),
            {},
        )
        self.broadcasts, self._kept = {}, {}
        self.on_room = self.on_short = lambda: None

    def _wait(self, run: LiveRun, now: datetime) -> None:
        """Keep a run until it is ready or may be pre-dispatched, or leave it to a later scan."""
        many = len(self.waiting) >= HERD
        if many and self._is_for_later(run, now):
            self._waits_no_more(run.key.run_id, run.job_id)
            return
        run_id, may = run.key.run_id, bool(self.lookahead.dispatch) and may_go_early(run)
        dispatch_at = run.ready_at - self.lookahead.dispatch
        if may and dispatch_at > now and not many:
            self.waiting.put(run_id, dispatch_at, run)
            return
        self.waiting.put(run_id, run.ready_at, run)
        if may and run_id not in self._kept.get(run.job_id, ()):
            self._may_pre_dispatch(run)

    def _is_for_later(self, run: LiveRun, now: datetime) -> bool:
        """Return whether a scan reads the run again before it is needed here."""
        return may_wait_in_its_row(run, now) and not self._held.holds(run.job_id)

    def _may_pre_dispatch(self, run: LiveRun) -> bool:
        need = self._early_need_of(run)
        if need is not None:
            self.early.add(run, need)
        return need is not None

    def _unkeep(self, job: JobId) -> int:
        """Allow pre-dispatch of the job's kept runs; return how many may be, as far as known."""
        kept = [self.waiting.get(run_id) for run_id in self._kept.pop(job, ())]
        return sum(self._may_pre_dispatch(found[1]) for found in kept if found is not None)

    def _waits_no_more(self, run_id: RunId, job: JobId) -> LiveRun | None:
        self.early.discard(run_id)
        if (kept := self._kept.get(job)) is not None:
            kept.discard(run_id)
            if not kept:
                del self._kept[job]
        return self.waiting.discard(run_id)

    def _contains(self, run: LiveRun) -> bool:
        """Return whether the run is here, in any state."""
        run_id = run.key.run_id
        places = (self.ready, self.waiting, self.running, self.broadcasts, self._over)
        return any(run_id in place for place in places) or self._held.contains(run_id, run.job_id)

    def _put_running(self, run: LiveRun) -> None:
        """Add a running run; a known run of the same assignment counts as the same attempt."""
        run_id = run.key.run_id
        stands = self.running.get(run_id)
        if stands is None or stands.token != run.token or run.children is not None:
            self._take_off(run_id, run.job_id)
        if run.children is None:
            self.running.add(run)
        else:
            self.broadcasts[run_id] = run

    def _put_ready(self, runs: Iterable[LiveRun]) -> int:
        """Queue ready runs; return how many are new."""
        by_need: dict[Need | None, list[LiveRun]] = defaultdict(list)
        for run in runs:
            by_need[self._need_of(run)].append(run)
        return sum(self.ready.add(same, need) for need, same in by_need.items())

    def _take_off(self, run_id: RunId, job: JobId) -> bool:
        """Remove a run; return whether it was there."""
        running = self._no_longer_runs(run_id)
        waiting = self._waits_no_more(run_id, job)
        ready = self.ready.discard(run_id)
        held = self._held.discard(run_id, job)
        begun = self.broadcasts.pop(run_id, None)
        return running or any(place is not None for place in (waiting, ready, held, begun))

    def _no_longer_runs(self, run_id: RunId) -> bool:
        running = self.running.discard(run_id)
        self._attempts_ended(running)
        return running

    def _attempts_ended(self, count: int) -> None:
        self.ended += count
        if count and self.ready.has_pool_runs:
            self.on_room()

    def _shards_changed(self, gained: frozenset[ShardId], dropped: frozenset[ShardId]) -> None:
        gone = gained | dropped
        self.read -= gone
        self.timers.drop_shards(gone)
        self.waiting.clear_where({r.key.run_id for r in self.waiting.values() if r.shard in gone})
        self.early.drop_shards(gone)
        self.ready.drop_shards(gone)
        self._doubtful = {key: None for key in self._doubtful if key.shard not in gone}
        self.running.drop_shards(gone)
        self.broadcasts = {run: r for run, r in self.broadcasts.items() if r.shard not in gone}
        for job, kept in list(self._kept.items()):
            self._kept[job] = {run for run in kept if run in self.waiting}
            if not self._kept[job]:
                del self._kept[job]
        self._held.drop_shards(gone)
