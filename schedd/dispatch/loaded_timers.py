"""Timers of owned shards that are due within the horizon, for one tenure.

A timer comes up by the lookahead before its due time. A late timer comes up behind timers that are
due now: as if due when it was added, and one class lower. So work that an outage delayed is caught
up beside current work, not before it.

A late timer whose catch-up hasn't begun ranks half a class below timers whose catch-up has. The
latter's next scheduled times fall due meanwhile, and can't be on time until the missed ones have
fired. A timer with one missed time delays nothing else, and waits at most half a minute longer,
however late the others are.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

from schedd.cluster.ownership import Ownership
from schedd.core.ids import JobId, ShardId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import Timer
from schedd.core.timers.due_index import KEPT, DueIndex
from schedd.core.timers.fire_plan import GRACE
from schedd.core.timers.pre_dispatch import Lookahead

BEGUN: Final = 1.0
UNBEGUN: Final = 1.5
"""Classes by which late timers rank lower: `BEGUN` if their catch-up has begun, else `UNBEGUN`."""

T = TypeVar("T")

_Places: TypeAlias = dict[tuple[datetime, float], list[Timer]]
"""Timers by the time and the class of their place in the order."""


class Timers(DueIndex[JobId, Timer]):
    """Timers by job, in the order in which they fire."""

    def __init__(
        self, ownership: Ownership, lookahead: Lookahead, priority_of: Callable[[JobId], Priority]
    ) -> None:
        """`priority_of` returns the priority of a job, if known."""
        super().__init__()
        self._ownership = ownership
        self._lookahead = lookahead
        self._priority_of = priority_of
        self.has_begun: Callable[[JobId], bool] = lambda _: False
        """Whether the job's catch-up has begun and will create more than one run."""

    def come_up(
        self, timers: Iterable[Timer], until: datetime | None = None, now: datetime | None = None
    ) -> None:
        """Add timers, to come up by the lookahead before their due time.

        Paused timers, those without a next scheduled time and those due later than `until` are
        removed: a later load reads them in time. `now` decides which timers are late.
        """
        owned, ahead = self._ownership.epochs, self._lookahead.fire
        priority_of = self._priority_of
        late_before = None if now is None else now - GRACE
        places: _Places = {}
        late: list[Timer] = []
        for timer in timers:
            due = timer.due_at
            later = due is not None and until is not None and due > until
            if due is None or later or timer.paused or timer.shard not in owned:
                self.discard(timer.job_id)
            elif late_before is None or due >= late_before:
                places.setdefault((due - ahead, priority_of(timer.job_id)), []).append(timer)
            else:
                late.append(timer)
        if now is not None:
            for timer in self.changed(late):  # a timer that is already here keeps its place
                places.setdefault((now, self._late_rank(timer.job_id)), []).append(timer)
        self._place(places)

    def put_off(self, timer: Timer, at: datetime) -> None:
        """Let the timer come up at `at`: it must not fire sooner."""
        self.put(timer.job_id, at, timer, self._priority_of(timer.job_id))

    def pop_same(self, timers: Iterable[tuple[Timer, T]]) -> list[tuple[Timer, T]]:
        """Remove and return those of these timers that are still here, the same objects. Each has
        a value beside it.
        """
        entries = self._entries
        here = [
            each
            for each in timers
            if (entry := entries.get(each[0].job_id)) is not None and entry[2] is each[0]
        ]
        for timer, _ in here:
            del entries[timer.job_id]
        return here

    def changed(self, timers: Iterable[Timer]) -> list[Timer]:
        """Return those of these timers that aren't here unchanged."""
        entries = self._entries
        return [
            timer
            for timer in timers
            if (entry := entries.get(timer.job_id)) is None or entry[2] != timer
        ]

    def sort(self, jobs: Iterable[JobId]) -> None:
        """Sort timers again: the known priorities of their jobs may have changed."""
        places: _Places = {}
        for job in jobs:
            entry = self._entries.get(job)
            if entry is None or entry[1] == KEPT:
                continue
            at, _, timer, before = entry
            late = timer.due_at is not None and at > timer.due_at
            its = self._late_rank(job) if late else self._priority_of(job)
            if its != before:
                places.setdefault((at, its), []).append(timer)
        self._place(places)

    def _place(self, places: _Places) -> None:
        for (at, its), timers in places.items():
            self.put_all([timer.job_id for timer in timers], at, timers, its)

    def _late_rank(self, job: JobId) -> float:
        return self._priority_of(job) - (BEGUN if self.has_begun(job) else UNBEGUN)

    def drop_shards(self, shards: Collection[ShardId]) -> None:
        """Remove the timers of these shards."""
        self.clear_where({timer.job_id for timer in self.values() if timer.shard in shards})
