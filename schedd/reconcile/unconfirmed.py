"""Assignments that may never have come to their workers: asked back (PROTOCOL 4).

    a scan's RUNNING runs, their workers live ─→ may start yet, but should have by now
      ├─ in its worker's last heartbeat: it has come
      ├─ handed out under an earlier epoch, or missing in a heartbeat since ─→ revoke
      │                                              ├─→ given up: a refusal, as any (`collect`)
      │                                              └─→ it has started: nothing
      └─ on its way, for all that is known: the next scan looks again

An owner that dies between a COMMIT and its pushes leaves such, so do a COMMIT of unknown outcome
and a stream that breaks. That it never started a heartbeat proves only once `start_by` has passed;
its worker can say so at once, and then never starts it.

Invariants
- Asking changes nothing. What the worker answers is stored by its token and its sender.
- What is armed isn't asked for before it is due: it may stand where it should.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from schedd.cluster.ownership import Ownership
from schedd.core.ids import epoch_of
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.model import LiveRun
from schedd.dispatch.revocations import At
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.ports import ClusterClock
from schedkit.tasks import Loop

GRACE: Final = timedelta(seconds=0.25)
"""After it should have started: so long its push may have been on its way."""
ANSWER_WITHIN: Final = 1.0
"""Seconds; what isn't answered by then the next scan finds again."""
IDLE: Final = 60.0


class AskingBack:
    """The loop that asks for them."""

    def __init__(self, ownership: Ownership, workers: WorkerRegistry, clock: ClusterClock) -> None:
        self._ownership = ownership
        self._workers = workers
        self._clock = clock
        self._out: dict[At, tuple[datetime, LiveRun]] = {}
        """What is to be asked for, and from when on."""
        self._answered: set[At] = set()
        """Of those that the last scan found."""
        self.loop = Loop("asking back", self.step, interval=IDLE)

    def found(self, runs: Iterable[LiveRun]) -> None:
        """These a scan has found with live workers; what one before has found is forgotten."""
        now = self._clock.now()
        answered: set[At] = set()
        self._out = {}
        for run in runs:
            if run.start_by is None or run.start_by <= now:
                continue
            at, should = (run.key.run_id, run.token), run.start_by - START_WITHIN + GRACE
            if at in self._answered:
                answered.add(at)
            elif self._in_doubt(run, should):
                self._out[at] = should, run
        self._answered = answered
        if self._out:
            self.loop.wake()

    async def step(self) -> float:
        """Ask for what should have started; seconds until the next should have."""
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

    def _in_doubt(self, run: LiveRun, should: datetime) -> bool:
        """Whether an owner before us handed it out, or its worker would have named it by now."""
        if epoch_of(run.token) < self._ownership.epochs.get(run.shard, 0):
            return True
        return self._workers.lacks(run, should)
