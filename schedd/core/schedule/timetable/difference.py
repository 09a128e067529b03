"""Compare two schedules: the fire times that only one of them has."""

from datetime import datetime, timedelta

from schedd.core.schedule.cron import EPOCH
from schedd.core.schedule.cron.expression import SECOND
from schedd.core.schedule.timetable.entries import TimetableEntry, row_of
from schedd.core.schedule.timetable.minutes import (
    Layers,
    clipped,
    count,
    first_of,
    grid_over,
    without,
)
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """The numbers of fire times only in the first, only in the second, and in both.

    Also the first of each kind, in UTC.
    """

    only_first: int
    only_second: int
    both: int
    in_first: tuple[datetime, ...]
    in_second: tuple[datetime, ...]

    @property
    def differ(self) -> bool:
        """Return whether any fire time differs."""
        return bool(self.only_first or self.only_second)


def differ(
    first: TimetableEntry, second: TimetableEntry, start: datetime, span: timedelta, limit: int
) -> Difference:
    """Compare the fire times in [start, start + span). At most `limit` of each kind are listed.

    Raises ScheduleError.
    """
    grid = grid_over(start, span)
    low, high = -((EPOCH - start) // SECOND), -((EPOCH - start - span) // SECOND)

    def within(entry: TimetableEntry) -> Layers:
        return clipped(row_of(entry, grid).layers, grid, low, high)

    def listed(layers: Layers) -> tuple[datetime, ...]:
        found = first_of(layers, grid, limit)
        return tuple(EPOCH + timedelta(seconds=second) for second in found)

    one, other = within(first), within(second)
    left, right = without(one, other), without(other, one)
    return Difference(
        count(left), count(right), count(one) - count(left), listed(left), listed(right)
    )
