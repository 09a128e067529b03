"""The owned timers that come up soon: the near future of one tenure.

They come up so long before they are due as runs are made early. One that is late when it is put
here comes up behind what is due now: as if it had been due when it was put, and were of the class
below. So what fell due in an outage is caught up with beside what falls due meanwhile, and not
before it.

One that hasn't begun to catch up is half a class behind those that have: their next instants fall
due meanwhile, and can't be on time until those before them are made. What is missed once holds
nothing up; it waits half a minute more at most, however far behind the others are.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Final

from schedd.cluster.ownership import Ownership
from schedd.core.ids import JobId, ShardId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import Timer
from schedd.core.timers.due_index import Agenda
from schedd.core.timers.fire_plan import GRACE
from schedd.core.timers.pre_dispatch import Lookahead

BEGUN: Final = 1.0
UNBEGUN: Final = 1.5
"""By so many classes what is late stands behind: if it has begun to catch up, and if it hasn't."""


class Timers(Agenda[JobId, Timer]):
    """Timers by job, in the order in which they fire."""

    def __init__(
        self, ownership: Ownership, ahead: Lookahead, priority_of: Callable[[JobId], Priority]
    ) -> None:
        """`priority_of`: of a job, as far as it is known."""
        super().__init__()
        self._ownership = ownership
        self._ahead = ahead
        self._priority_of = priority_of
        self.has_begun: Callable[[JobId], bool] = lambda _: False
        """Whether this job has begun to catch up, and there is more to make of it than one run."""

    def come_up(
        self,
        timers: Iterable[Timer],
        until: datetime | None = None,
        now: datetime | None = None,
    ) -> None:
        """Have these come up, so long before they are due as runs are made ahead; paused ones,
        those without a next instant and those due later than `until` go: the load brings the latter
        in time. Which are late is seen by `now`.
        """
        for timer in timers:
            due = timer.due_at
            late = due is not None and until is not None and due > until
            if due is None or late or timer.paused or timer.shard not in self._ownership.epochs:
                self.discard(timer.job_id)
            elif now is None or due >= now - GRACE:
                self.put_off(timer, due - self._ahead.fire)
            elif not self.stands(timer):  # one that is there keeps its place
                self.put(timer.job_id, now, timer, self._late_rank(timer.job_id))

    def put_off(self, timer: Timer, at: datetime) -> None:
        """It comes up then: nothing of it may be made sooner."""
        self.put(timer.job_id, at, timer, self._priority_of(timer.job_id))

    def stands(self, timer: Timer) -> bool:
        """Whether it is here already, as it is."""
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
        """Take out those of these shards."""
        self.clear_where({timer.job_id for timer in self.values() if timer.shard in shards})
