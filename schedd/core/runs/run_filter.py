"""Which runs of a namespace a list is of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedd.core.ids import BackfillId, RunId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Trigger


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Every condition holds at once.

    `job`: an id or a name, a deleted job's too; empty: any. `states`: any if there are none.
    `since`, `before`: of the nominal instant. A broadcast's children are among them if it is their
    `parent`, or their `worker`, that is asked for.
    """

    job: str = ""
    states: tuple[State, ...] = ()
    worker: str = ""
    since: datetime | None = None
    before: datetime | None = None
    trigger: Trigger | None = None
    backfill: BackfillId | None = None
    parent: RunId | None = None


ALL_RUNS: Final = RunFilter()
