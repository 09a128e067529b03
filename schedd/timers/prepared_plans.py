"""Steps of timers that need more work than one turn of the event loop allows.

    fire ──too much work──▶ add ──thread──▶ prepared ──the timer comes up again──▶ take
                                       └──failed──▶ the timer is put off

A step is computed here beside the loop, and used by the fire loop when the timer comes up again,
if nothing that it was computed from has changed. Meanwhile other timers fire on time.

Invariants
- A step that is used was computed from the timer, the definition and the pauses as they are.
- A step fires the times that were due when it was computed; later ones belong to the next step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from schedd.core.ids import JobId
from schedd.core.runs.model import Firing, Timer
from schedd.core.schedule.work_budget import OF_OWNER
from schedd.core.timers.cluster_pauses import Pauses
from schedd.runtime.budgeted_work import THREAD
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass
from schedkit.set_aside import set_aside
from schedkit.tasks import Loop

MOST: Final = 10_000
"""Steps that wait to be computed or used, at most. Other timers wait until they come up again."""
EVERY: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Basis:
    """Input of a step."""

    timer: Timer
    known: CachedDefinition
    switched: int


class PreparedPlans:
    """Steps of one tenure that are computed off the event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[JobId, tuple[_Basis, Callable[[], Firing]]] = OrderedDict()
        self._prepared: OrderedDict[JobId, tuple[_Basis, Firing]] = OrderedDict()
        self._computed: Callable[[Timer], None] = lambda _: None
        self._failed: Callable[[Timer, Exception], None] = lambda _timer, _error: None
        self.loop = Loop("prepared plans", self.step, interval=EVERY)

    def on_computed(self, callback: Callable[[Timer], None]) -> None:
        """Call `callback(timer)` when the step of a timer can be taken."""
        self._computed = callback

    def on_failed(self, put_off: Callable[[Timer, Exception], None]) -> None:
        """Call `put_off(timer, error)` when the step of a timer can't be computed."""
        self._failed = put_off

    @property
    def timers(self) -> Collection[Timer]:
        """Timers whose steps wait to be computed."""
        return [basis.timer for basis, _ in self._waiting.values()]

    def add(
        self, timer: Timer, known: CachedDefinition, pauses: Pauses, step: Callable[[], Firing]
    ) -> None:
        """Queue the computation of this timer's step."""
        basis = _Basis(timer, known, pauses.switched)
        there = self._waiting.get(timer.job_id)
        if there is None and len(self._waiting) >= MOST:
            return
        if there is None or not _same(there[0], basis):
            self._waiting[timer.job_id] = basis, step
            self.loop.wake()

    def take_firing(self, timer: Timer, known: CachedDefinition, pauses: Pauses) -> Firing | None:
        """Return the step computed from exactly this input; None if there is none."""
        found = self._prepared.pop(timer.job_id, None) if self._prepared else None
        if found is None or not _same(found[0], _Basis(timer, known, pauses.switched)):
            return None
        return found[1]

    def needs_step(self, timer: Timer, known: CachedDefinition, pauses: Pauses) -> bool:
        """Return whether the step of exactly this input waits to be computed."""
        there = self._waiting.get(timer.job_id) if self._waiting else None
        return there is not None and _same(there[0], _Basis(timer, known, pauses.switched))

    async def step(self) -> float:
        """Compute the step that has waited longest; return the seconds until the next."""
        if not self._waiting:
            return EVERY
        job, (basis, computation) = next(iter(self._waiting.items()))
        firing: Firing | None = None
        with set_aside("timer", basis.timer, then=partial(self._failed, basis.timer)):
            firing = await THREAD.run(OF_OWNER, computation)
        self._drop(job, basis)
        if firing is None:
            return 0.0
        self._prepared[job] = basis, firing
        if len(self._prepared) > MOST:
            self._prepared.popitem(last=False)
        self._computed(basis.timer)
        return 0.0

    def _drop(self, job: JobId, basis: _Basis) -> None:
        if self._waiting[job][0] is basis:  # else it was added again meanwhile, with another input
            del self._waiting[job]


def _same(one: _Basis, other: _Basis) -> bool:
    return (
        one.timer == other.timer
        and one.switched == other.switched
        and one.known.definition.generation == other.known.definition.generation
    )
