"""The filter of a list of runs in a namespace."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedd.core.ids import BackfillId, RunId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Trigger


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter of runs. A run must meet all conditions; an unset field matches all.

    - `job`: id or name, also of a deleted job.
    - `since`, `before`: bounds of the scheduled time.
    - `parent`: the children of this broadcast. Without `parent` or `worker`, no children match.
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
