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
from typing import Final

from schedd.cluster.ownership import Ownership
from schedd.core.ids import JobId, ShardId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import Timer
from schedd.core.timers.due_index import DueIndex
from schedd.core.timers.fire_plan import GRACE
from schedd.core.timers.pre_dispatch import Lookahead

BEGUN: Final = 1.0
UNBEGUN: Final = 1.5
"""Classes by which late timers rank lower: `BEGUN` if their catch-up has begun, else `UNBEGUN`."""


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
        self,
        timers: Iterable[Timer],
        until: datetime | None = None,
        now: datetime | None = None,
    ) -> None:
        """Add timers, to come up by the lookahead before their due time.

        Paused timers, those without a next scheduled time and those due later than `until` are
        removed: a later load reads them in time. `now` decides which timers are late.
        """
        owned, ahead = self._ownership.epochs, self._lookahead.fire
        for timer in timers:
            due = timer.due_at
            later = due is not None and until is not None and due > until
            if due is None or later or timer.paused or timer.shard not in owned:
                self.discard(timer.job_id)
            elif now is None or due >= now - GRACE:
                self.put(timer.job_id, due - ahead, timer, self._priority_of(timer.job_id))
            elif not self.contains(timer):  # a timer that is already here keeps its place
                self.put(timer.job_id, now, timer, self._late_rank(timer.job_id))

    def put_off(self, timer: Timer, at: datetime) -> None:
        """Let the timer come up at `at`: it must not fire sooner."""
        self.put(timer.job_id, at, timer, self._priority_of(timer.job_id))

    def contains(self, timer: Timer) -> bool:
        """Return whether this timer is already here, unchanged."""
        found = self.get(timer.job_id)
        return found is not None and found[1] == timer

    def sort(self, job: JobId) -> None:
        """Sort a timer again: the known priority of its job has changed."""
        found = self.get(job)
        if found is not None:
            at, timer = found
            late = timer.due_at is not None and at > timer.due_at
            self.put(job, at, timer, self._late_rank(job) if late else self._priority_of(job))

    def _late_rank(self, job: JobId) -> float:
        return self._priority_of(job) - (BEGUN if self.has_begun(job) else UNBEGUN)

    def drop_shards(self, shards: Collection[ShardId]) -> None:
        """Remove the timers of these shards."""
        self.clear_where({timer.job_id for timer in self.values() if timer.shard in shards})
