"""Pauses of the whole cluster, and what they make of a timer. Pure.

    unaccounted instants, oldest first
    ──┬────────┬─────[══ pause ══]──┬───────[═ pause ═]──┬────────▶ now
      by the job's    SKIPPED        by the job's          by the job's
      catch-up        (PAUSED)       catch-up             catch-up

Invariants
- An instant whose due time is in a pause, (began, ended], never runs and is accounted for once,
  unless the one who ended the pause asked for it to be caught up.
- One step of a timer goes no further than the next border of a pause: what follows is the next
  step's.
- A step that was reckoned from one count of `switched` counts for nothing under another: the fire
  statement compares it under the shard's lock.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedd.core import catch_up
from schedd.core.catch_up import Plan
from schedd.core.lifecycle import Reason, State
from schedd.core.model import CatchUp
from schedd.core.schedule import CompiledSchedule, Occurrence


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of the cluster. `ended` is None while it lasts."""

    began: datetime
    by: str
    note: str = ""
    ended: datetime | None = None
    caught_up: bool = False
    """What fell due in it goes by each job's catch-up policy, as after an outage."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Every pause there was, oldest first, and how often the cluster was paused or resumed."""

    switched: int = 0
    all: tuple[Pause, ...] = ()

    @property
    def present(self) -> Pause | None:
        """The pause that lasts."""
        return self.all[-1] if self.all and self.all[-1].ended is None else None


NO_PAUSES: Final = Pauses()


def plan(
    compiled: CompiledSchedule,
    policy: CatchUp,
    nominal: datetime,
    due: datetime,
    now: datetime,
    pauses: Pauses = NO_PAUSES,
) -> Plan:
    """One step of a timer that stands at (`nominal`, `due`), looked at `now`."""
    for pause in pauses.all:
        if pause.ended is None or pause.caught_up or pause.ended < due:
            continue
        if due <= pause.began:
            return catch_up.plan(compiled, policy, nominal, due, now, until=pause.began)
        occurrence = Occurrence(nominal, due)
        fold, following = catch_up.settle(
            compiled, occurrence, pause.ended, State.SKIPPED, Reason.PAUSED
        )
        return Plan((fold,) if fold else (), (), following)
    return catch_up.plan(compiled, policy, nominal, due, now)
