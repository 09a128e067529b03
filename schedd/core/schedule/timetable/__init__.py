"""Timetables: many schedules together, their problems and their combined load.

    crontab ──crontab──▶ lines ╮
    manifests, jobs ───────────┴▶ entries ──minutes──▶ bits of a grid ──tally──▶ starts a minute
                                    │                        ├─▶ load: the hottest minutes
                                    │                        ├─▶ difference: in one, not in both
                                    ╰─▶ lint                 ╰─▶ flatten: the load spread by `H`

Over a span, a schedule is one number with a bit for each minute. Schedules are combined, compared
and counted by operations on such numbers. So ten thousand schedules over a week take a second, and
no time is ever an object.

Pure, like `cron`: zones come from tzdata, and time is an argument.
"""

from schedd.core.schedule.timetable.crontab import (
    Crontab,
    CrontabLine,
    CrontabWarning,
    UnreadLine,
    read_crontab,
)
from schedd.core.schedule.timetable.entries import Row, TimetableEntry, Wrong, row_of, rows_of
from schedd.core.schedule.timetable.flatten import Flattened, Move, flatten
from schedd.core.schedule.timetable.lint import LintFinding, LintLevel, lint, never_finishes
from schedd.core.schedule.timetable.load import (
    BusyMinute,
    Collisions,
    Difference,
    Forecast,
    StartsAtOnce,
    beside,
    collide,
    differ,
    forecast,
)
from schedd.core.schedule.timetable.minutes import MinuteGrid, grid_over
from schedd.core.schedule.timetable.spreading import spread

__all__ = [
    "BusyMinute",
    "Collisions",
    "Crontab",
    "CrontabLine",
    "CrontabWarning",
    "Difference",
    "Flattened",
    "Forecast",
    "LintFinding",
    "LintLevel",
    "MinuteGrid",
    "Move",
    "Row",
    "StartsAtOnce",
    "TimetableEntry",
    "UnreadLine",
    "Wrong",
    "beside",
    "collide",
    "differ",
    "flatten",
    "forecast",
    "grid_over",
    "lint",
    "never_finishes",
    "read_crontab",
    "row_of",
    "rows_of",
    "spread",
]
