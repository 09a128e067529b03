"""Backfill: runs of a past range, of which instants, and how many at a time.

    range ─→ instants of the schedule as it stands ─→ plan: which are run, which left out, and why
                                                        └─→ made into runs as room appears

The instants are chosen once, when the backfill is made: an edit of the schedule afterwards changes
what they run, never which they are. A run of one carries its instant as its nominal time, and an id
of its own, so that the row of the schedule's own run stays what it was.

Invariants
- An instant that the schedule is still to fire by itself isn't the past yet: it is left out.
- What is under way, or another backfill is to run, is left out whatever `rerun` says.
- An instant of which nothing was ever handed out (SKIPPED, MISSED, COALESCED, no record) is run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

from schedd.core.ids import BackfillId, RunId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import LIVE, State
from schedkit.records import dataclass

MOST_INSTANTS: Final = 10_000
"""Of a range. They stand in one row."""

MOST_PARALLEL: Final = 1_000

TOGETHER: Final = frozenset({Overlap.ALLOW, Overlap.BUFFER_ALL})
"""Policies under which none of several runs that come together is lost."""


class Rerun(StrEnum):
    """Which instants are run again that ran already."""

    NONE = "NONE"
    FAILED = "FAILED"
    ALL = "ALL"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that there is of an instant: the schedule's own, a backfill's, or one done again."""

    at: datetime
    run_id: RunId
    state: State
    handed_out: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An instant of the range that isn't run. Without a `run_id` there is no run of it yet."""

    at: datetime
    state: State
    why: str
    run_id: RunId | None = None


@dataclass(frozen=True, slots=True)
class BackfillSelection:
    """What a backfill runs, oldest first, and what it leaves out."""

    instants: tuple[datetime, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class ExistingRuns:
    """What there is of a job's instants: read in one go, under the lock of its row."""

    ran: Sequence[Ran]
    promised: Collection[datetime]
    """Other backfills are to run them."""
    ahead: datetime | None
    """From this instant on the schedule accounts for them itself; None: for none any more."""


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """A backfill that somebody asks for, with all instants of its range. `overlap` None: as the
    job says.
    """

    backfill_id: BackfillId
    first: datetime
    last: datetime
    instants: tuple[datetime, ...]
    rerun: Rerun
    overlap: Overlap | None
    max_parallel: int
    priority: Priority
    by: str


def plan(instants: Iterable[datetime], standing: ExistingRuns, rerun: Rerun) -> BackfillSelection:
    """Choose among the instants of a range, which are in their order."""
    rows: dict[datetime, list[Ran]] = defaultdict(list)
    for row in standing.ran:
        rows[row.at].append(row)
    chosen: list[datetime] = []
    left_out: list[LeftOut] = []
    for at in instants:
        why = _kept_from(at, rows.get(at, ()), standing, rerun)
        if why is None:
            chosen.append(at)
        else:
            left_out.append(why)
    return BackfillSelection(tuple(chosen), tuple(left_out))


def _kept_from(
    at: datetime, rows: Sequence[Ran], standing: ExistingRuns, rerun: Rerun
) -> LeftOut | None:
    for row in rows:
        if row.state in LIVE:
            return LeftOut(at, row.state, "it is under way", row.run_id)
    if at in standing.promised:
        return LeftOut(at, State.PENDING, "another backfill is to run it")
    if standing.ahead is not None and at >= standing.ahead:
        return LeftOut(at, State.PENDING, "its schedule is still to account for it")
    succeeded = next((row for row in rows if row.state is State.SUCCEEDED), None)
    if succeeded is not None:
        if rerun is Rerun.ALL:
            return None
        return LeftOut(at, succeeded.state, "it has run: rerun all runs it again", succeeded.run_id)
    failed = next((row for row in rows if row.handed_out), None)
    if failed is not None and rerun is Rerun.NONE:
        return LeftOut(at, failed.state, "it has run: rerun failed runs it again", failed.run_id)
    return None
