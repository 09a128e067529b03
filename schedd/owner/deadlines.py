"""Deadlines: runs that wait too long end, whether or not a worker is there.

    all that waits on the board, each second ──→ whose time is over (`core/deadlines`)
    what dispatch came upon ─────────────────╯        └──one transaction a lane──→ MISSED, FAILED

The definitions of what waits may not be at hand, for a new owner's say: so many are read in a look.
What goes on meanwhile (it is handed out, cancelled) stays as it is: the statement ends what waits.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from schedd.core.deadlines import Ending, hurried, overdue
from schedd.core.ids import RunId
from schedd.core.lifecycle import Reason, State
from schedd.core.model import Definition, LiveRun
from schedd.core.retry import fingerprint
from schedd.owner.board import Board
from schedd.owner.brake import Brake
from schedd.owner.catalogue import Catalogue
from schedd.owner.transact import Transactor
from schedd.ports import ClusterClock, Nudges, OwnerStore
from schedkit.tasks import Loop, in_turns

LOOK_EVERY: Final = 1.0
READ_AT_ONCE: Final = 500
"""Definitions that one look reads."""
BATCH: Final = 500
"""Runs that one look ends."""


class Deadlines:
    """The loop that ends what waits too long."""

    def __init__(
        self,
        board: Board,
        catalogue: Catalogue,
        store: OwnerStore,
        transactor: Transactor,
        clock: ClusterClock,
        brake: Brake,
        nudges: Nudges,
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._brake = brake
        self._nudges = nudges
        self._told: dict[RunId, LiveRun] = {}
        self.loop = Loop("deadlines", self.step, interval=LOOK_EVERY)

    def passed(self, run: LiveRun) -> None:
        """Its time is over, and it is off the queue: end it now."""
        self._told[run.key.run_id] = run
        self.loop.wake()

    async def step(self) -> float:
        """One look; seconds until the next."""
        if self._brake.on:
            return LOOK_EVERY
        told = dict(self._told)  # more may come meanwhile
        waiting = {run.key.run_id: run for run in self._board.waits()} | told
        ends = await self._over(waiting.values())
        ended = set(await self._transactor.rows(ends, self._store.end_waiting)) if ends else set()
        for run_id in told if len(ends) < BATCH else [end.key.run_id for end in ends]:
            self._told.pop(run_id, None)
        if not ends:
            return LOOK_EVERY
        for end in ends:
            if end.key in ended:
                self._board.forget(end.key.run_id, end.job_id)
        self._catalogue.forget(end.job_id for end in ends if end.key not in ended)
        self._nudges.runs_changed([key.run_id for key in ended])
        if turns := [(end.job_id, end.shard) for end in ends if end.counted]:
            self._nudges.jobs_changed(turns)
        return 0.0 if len(ends) == BATCH else LOOK_EVERY

    async def _over(self, waiting: Collection[LiveRun]) -> list[Ending]:
        """How those end whose time is over, some at a time."""
        unknown = {run.job_id for run in waiting if not self._catalogue.knows(run.job_id)}
        await self._catalogue.newest([*islice(unknown, READ_AT_ONCE)])
        now = self._clock.now()
        ends: list[Ending] = []
        async for run in in_turns(waiting, every=1_000):
            definition = self._catalogue.definition_of(run.job_id)
            if definition is None or not hurried(definition):
                continue
            reason = overdue(run, definition, now)
            if reason is not None and len(ends) < BATCH:
                ends.append(_ending(run, definition, reason))
        return ends


def _ending(run: LiveRun, definition: Definition, reason: Reason) -> Ending:
    missed = reason is Reason.START_DEADLINE
    return Ending(
        run.key,
        run.job_id,
        run.shard,
        State.MISSED if missed else State.FAILED,
        reason,
        fingerprint="" if missed else fingerprint(reason, None, ""),
        counted=definition.max_runs > 0,
        pause_after=0 if missed else definition.pause_after_failures,
        generation=definition.generation,
    )
