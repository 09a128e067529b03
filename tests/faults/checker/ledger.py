"""Which instants a job owes, and which rows stand for each: the oracle beside the ledger.

An instant is owed where the oracle has it under a schedule that certainly was in force: after the
commit that brought the schedule, up to the call that asked for the next one. In between either
schedule is right, and nothing is owed. A deletion owes a row for whatever fell due before it. A
merged row counts for each instant of its span.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from faults import oracle
from faults.checker.lives import Life
from faults.checker.rows import FIRED, NEVER_RAN, Run, ticks
from faults.checker.tables import Step
from faults.checker.windows import ON_TIME, QUIET_BOUND, Windows

MARGIN = 2.0
"""Seconds before the end of a run within which nothing is judged."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row of the ledger: as it was inserted, and as it is at the end."""

    inserted: Step[Run]
    first: Run
    row: Run
    ended: Step[Run]

    @property
    def fired(self) -> bool:
        """Whether a commit inserted it as a run."""
        return self.inserted.op == "insert" and self.first.state in FIRED

    @property
    def ran(self) -> bool:
        """Whether it is a run, and no account of instants that didn't run."""
        return self.row.state not in NEVER_RAN


@dataclass(frozen=True, slots=True)
class Due:
    """Due instant of a job, with its rows: one row, if all is well."""

    life: Life
    at: float
    rows: tuple[LedgerRow, ...]
    deadline: float
    in_time: bool

    @property
    def name(self) -> str:
        """The job's."""
        return self.life.name


def spread(life: Life, ledger_row: LedgerRow) -> list[float]:
    """The instants that a row stands for, by the schedule of its generation."""
    row = ledger_row.first
    last = row.scheduled_until
    phase = life.at_generation(row.generation)
    if last is None or phase is None:
        return [row.scheduled_at]
    schedule = phase.definition.schedule
    return oracle.due(schedule, row.scheduled_at - oracle.HALF, last + oracle.HALF)


def covering(life: Life, rows: Iterable[LedgerRow]) -> Mapping[int, list[LedgerRow]]:
    """Instant in milliseconds → the rows that stand for it."""
    found: dict[int, list[LedgerRow]] = defaultdict(list)
    for ledger_row in rows:
        for at in spread(life, ledger_row):
            found[ticks(at)].append(ledger_row)
    return found


def dues_of(
    lives: Iterable[Life], rows: Mapping[str, Sequence[LedgerRow]], windows: Windows
) -> list[Due]:
    """All that is owed and can be judged: its deadline lies before the end of the run."""
    dues: list[Due] = []
    end = windows.meta.ended - MARGIN
    for life in lives:
        covered = covering(life, rows.get(life.job_id, ()))
        for at in _owed(life, end):
            in_time = windows.in_time(at)
            deadline = windows.deadline(at)
            if deadline > end or at + ON_TIME > life.stopped:
                continue
            if at >= life.left and not in_time:
                continue
            found = tuple(covered.get(ticks(at), ()))
            dues.append(Due(life, at, found, deadline, in_time))
    return dues


def dues_at_deletion(
    lives: Iterable[Life], rows: Mapping[str, Sequence[LedgerRow]], windows: Windows
) -> list[Due]:
    """Due instants that deletions of jobs left without an owner: those their timers hadn't, and
    those of the last second before.
    """
    dues: list[Due] = []
    for life in lives:
        if life.deletion is None:
            continue
        at, left = life.deletion.at, life.deletion.left
        covered = covering(life, rows.get(life.job_id, ()))
        for schedule, since, until in life.segments():
            for due in oracle.due(schedule, since, min(until, at - QUIET_BOUND)):
                if due >= left or due + ON_TIME > at:
                    found = tuple(covered.get(ticks(due), ()))
                    dues.append(Due(life, due, found, at, windows.in_time(due)))
    return dues


def _owed(life: Life, end: float) -> Iterable[float]:
    for schedule, since, until in life.segments():
        yield from oracle.due(schedule, since, min(until, life.stopped, end))
