"""The entries of a timetable, and the bits of each over one grid."""

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule as schedules
from schedd.core.schedule.compiled_schedule import Schedule, ScheduleBounds
from schedd.core.schedule.cron import EPOCH, ScheduleError
from schedd.core.schedule.cron.expression import SECOND
from schedd.core.schedule.timetable.minutes import (
    Layers,
    MinuteGrid,
    any_minute,
    clipped,
    layers_of,
)
from schedkit.records import dataclass

_NO_JOB: Final = Id.from_int(0)
"""Placeholder for the job id, which only jitter uses. Scheduled times have no jitter."""


@dataclass(frozen=True, slots=True)
class TimetableEntry:
    """A schedule with a name. `where`: its source, such as `crontab:12`, `jobs.yaml:3`, `job`.
    `lines`: line numbers of its expressions (or its interval) in the file, if they are known.
    """

    name: str
    where: str
    schedule: Schedule
    namespace: str = "default"
    bounds: ScheduleBounds = field(default_factory=ScheduleBounds)
    lines: tuple[int, ...] = ()

    @property
    def seed(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Row:
    """An entry's scheduled times within a grid."""

    entry: TimetableEntry
    layers: Layers

    @property
    def minutes(self) -> int:
        """The minutes in which the entry starts, as bits."""
        return any_minute(self.layers)


@dataclass(frozen=True, slots=True)
class Wrong:
    """An invalid entry, and the error."""

    entry: TimetableEntry
    error: ScheduleError


def row_of(entry: TimetableEntry, grid: MinuteGrid) -> Row:
    """Return the scheduled times of an entry within its bounds and this grid.

    Raises ScheduleError.
    """
    compiled = schedules.compile(entry.schedule, entry.seed, _NO_JOB, entry.bounds)
    layers = layers_of(compiled.instants, grid)
    start, end = compiled.bounds.start, compiled.bounds.end
    if start is None and end is None:
        return Row(entry, layers)
    first = grid.start if start is None else -((EPOCH - start) // SECOND)
    stop = grid.stop if end is None else (end - EPOCH) // SECOND + 1
    return Row(entry, clipped(layers, grid, first, stop))


def rows_of(entries: Iterable[TimetableEntry], grid: MinuteGrid) -> tuple[list[Row], list[Wrong]]:
    """Return the valid entries as rows, and the invalid ones."""
    rows: list[Row] = []
    wrong: list[Wrong] = []
    for entry in entries:
        try:
            rows.append(row_of(entry, grid))
        except ScheduleError as error:
            wrong.append(Wrong(entry, error))
    return rows, wrong
