"""Many schedules looked at together: what is wrong with them, and what they add up to.

    crontab ──crontab──▶ lines ╮
    manifests, jobs ───────────┴▶ entries ──minutes──▶ bits of a grid ──tally──▶ starts a minute
                                    │                        ├─▶ load: the hottest minutes, who
                                    │                        ├─▶ difference: in one, not in both
                                    ╰─▶ lint                 ╰─▶ flatten: the herd spread by `H`

One idea: over a span, a schedule is one number with a bit for each minute. Putting schedules
together, comparing and counting them are operations on such numbers, so ten thousand of them over
a week take a second, and no instant is ever an object.

Pure, like `cron`: zones come from tzdata, and time is an argument.
"""

from schedd.core.schedule.timetable.crontab import Crontab, Line, Trap, Unread, read
from schedd.core.schedule.timetable.difference import Difference, differ
from schedd.core.schedule.timetable.entries import Entry, Row, Wrong, row_of, rows_of
from schedd.core.schedule.timetable.flatten import Flattened, Move, flatten
from schedd.core.schedule.timetable.lint import Finding, Level, lint, never_finishes
from schedd.core.schedule.timetable.load import (
    Collisions,
    Forecast,
    Hot,
    Together,
    beside,
    collide,
    forecast,
)
from schedd.core.schedule.timetable.minutes import Grid, grid_over
from schedd.core.schedule.timetable.spreading import spread

__all__ = [
    "Collisions",
    "Crontab",
    "Difference",
    "Entry",
    "Finding",
    "Flattened",
    "Forecast",
    "Grid",
    "Hot",
    "Level",
    "Line",
    "Move",
    "Row",
    "Together",
    "Trap",
    "Unread",
    "Wrong",
    "beside",
    "collide",
    "differ",
    "flatten",
    "forecast",
    "grid_over",
    "lint",
    "never_finishes",
    "read",
    "row_of",
    "rows_of",
    "spread",
]
