"""How broadcasts end, as it is counted: each that fails is a dead letter, as its row is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.events import DeadLettered, EndedUnreported, dead_run
from schedd.core.ids import JobId, Token
from schedd.core.runs.broadcast import ClosedBroadcasts, Closing
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Claim, LiveRun, RunKey
from schedd.dispatch.broadcasts import Broadcasts
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.store.owner import OwnerStore
from support.dispatching import SHELL, Definitions, WakeUps
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import NOW, SetClock, owning, run


@fake_of(OwnerStore)
@dataclass
class Rows:
    """All children have ended; the parents end so."""

    ends: Sequence[LiveRun]
    waited: list[tuple[RunKey, JobId, Reason | None]]

    async def over(self, keys: Sequence[RunKey]) -> list[RunKey]:
        return list(keys)

    async def close(self, _claim: Claim, closings: Sequence[Closing]) -> ClosedBroadcasts:
        mine = {one.key for one in closings}
        return ClosedBroadcasts([end for end in self.ends if end.key in mine], self.waited, [])


async def test_broadcasts_and_their_waiting_children_are_counted_by_state_and_as_dead_letters() -> (
    None
):
    events: list[object] = []
    begun = [
        replace(run(number, state=State.RUNNING, token=Token(9)), children=2)
        for number in (1, 2, 3)
    ]
    failed, well, cancelled = begun
    rows = Rows(
        [
            replace(failed, state=State.FAILED),
            replace(well, state=State.SUCCEEDED),
            replace(cancelled, state=State.CANCELLED),
        ],
        waited=[
            (run(number).key, run(number).job_id, why)
            for number, why in ((4, Reason.BY_USER), (5, Reason.BY_USER), (6, Reason.BY_OVERLAP))
        ],
    )
    ownership = owning(0)
    run_index = RunIndex(ownership)
    run_index.put_runs(begun, NOW)
    broadcasts = Broadcasts(
        owner_context(
            run_index,
            Definitions(SHELL),
            workers=WorkerRegistry(SetClock(), events.append),
            store=rows,
            wake_ups=WakeUps(),
            emit=events.append,
        ),
        cast("WorkerLeases", None),
    )

    await broadcasts.step()

    assert not run_index.broadcasts
    assert set(map(str, events)) == {
        str(EndedUnreported(State.FAILED, Reason.CHILDREN_FAILED, 1)),
        str(EndedUnreported(State.SUCCEEDED, None, 1)),
        str(EndedUnreported(State.CANCELLED, None, 1)),
        str(EndedUnreported(State.CANCELLED, Reason.BY_USER, 2)),
        str(EndedUnreported(State.CANCELLED, Reason.BY_OVERLAP, 1)),
        str(DeadLettered((dead_run(failed, Reason.CHILDREN_FAILED),))),
    }
