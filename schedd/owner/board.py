"""What an owner has before it: the near future, the ready, the running. In memory, for one tenure.

    timers ──due──→ (fire) ──→ ready ──(dispatch)──→ running ──(collect, rescue)──→ gone
                     retries ──end of back-off──↗        └──retry──→ retries

The rows in PostgreSQL are the truth; this is what was last read or written of them. Losing an
entry costs a scan's time, keeping a stale one costs a refused statement.
"""

from collections.abc import Iterable
from datetime import datetime

from schedd.core.agenda import Agenda
from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.lifecycle import State
from schedd.core.model import LiveRun, Timer
from schedd.core.ready_queue import ReadyQueue
from schedd.owner.ownership import Ownership


class Board:
    """The owned work of one tenure."""

    def __init__(self, ownership: Ownership) -> None:
        self.ownership = ownership
        self.timers: Agenda[JobId, Timer] = Agenda()
        self.waiting: Agenda[RunId, LiveRun] = Agenda()
        """Runs that aren't ready yet: in their back-off, or due later."""
        self.ready = ReadyQueue()
        self.running: dict[RunId, LiveRun] = {}
        ownership.listen(self._shards_changed)

    def put_timers(self, timers: Iterable[Timer]) -> None:
        """Have these timers come up; paused ones and those without a next instant go."""
        for timer in timers:
            if timer.due_at is None or timer.paused or timer.shard not in self.ownership.epochs:
                self.timers.discard(timer.job_id)
            else:
                self.timers.put(timer.job_id, timer.due_at, timer)

    def put_runs(self, runs: Iterable[LiveRun], now: datetime) -> int:
        """Sort these runs in by their state; gives how many are ready and new to the queue."""
        fresh = 0
        for run in runs:
            run_id = run.key.run_id
            at_hand = self.running.get(run_id)
            if run.shard not in self.ownership.epochs:
                self.forget(run_id)
            elif at_hand is not None and at_hand.token > run.token:
                continue  # read before it was handed out
            elif run.state is State.RUNNING:
                self.forget(run_id)
                self.running[run_id] = run
            elif run.ready_at > now:
                self.forget(run_id)
                self.waiting.put(run_id, run.ready_at, run)
            else:
                fresh += run_id not in self.ready
                self.running.pop(run_id, None)
                self.waiting.discard(run_id)
                self.ready.add([run])
        return fresh

    def ripen(self, now: datetime) -> int:
        """Move what has become ready into the queue; gives how many."""
        ripe = self.waiting.pop_due(now, limit=len(self.waiting))
        self.ready.add(ripe)
        return len(ripe)

    def forget(self, run: RunId) -> None:
        """The run has ended, or is somebody else's."""
        self.running.pop(run, None)
        self.waiting.discard(run)
        self.ready.discard(run)

    def next_ripe(self) -> datetime | None:
        """When the next waiting run becomes ready."""
        return self.waiting.next_at()

    def _shards_changed(self, gained: frozenset[ShardId], dropped: frozenset[ShardId]) -> None:
        gone = gained | dropped
        self.timers.clear_where({t.job_id for t in self.timers.values() if t.shard in gone})
        self.waiting.clear_where({r.key.run_id for r in self.waiting.values() if r.shard in gone})
        self.ready.drop_shards(gone)
        self.running = {run: r for run, r in self.running.items() if r.shard not in gone}
