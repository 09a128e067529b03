"""Calendars: which instants of a schedule don't run, and on which other day they run instead.

    what people write ──rules──▶ Rules ──closed (zones, masks)──▶ bits of each local day
    base instants ─┬─▶ excluded: accounted for, SKIPPED (CALENDAR)
                   ├─▶ open: they run
                   └─▶ moved: the same local time on the nearest open day, if a calendar rolls

Pure and cached: the days of a calendar are worked out once for each version of it and zone,
however many jobs use it. An instant is judged by what the clock of the zone shows at it, so the
two passes of a repeated hour are alike.
"""

from schedd.core.schedule.calendars.closed_time import ClosedTime, closed
from schedd.core.schedule.calendars.exclusion import Closure, Exclusion, exclusion_of
from schedd.core.schedule.calendars.groups import TimeGroup, groups
from schedd.core.schedule.calendars.open_times import FARTHEST, AllInstants, OpenInstants
from schedd.core.schedule.calendars.rolling import MOST_DAYS, Moved, moved
from schedd.core.schedule.calendars.rules import (
    NOTHING,
    CalendarVersion,
    Exclude,
    Roll,
    Rules,
    WrongRules,
    check_expression,
    rules,
)

__all__ = [
    "FARTHEST",
    "MOST_DAYS",
    "NOTHING",
    "AllInstants",
    "CalendarVersion",
    "ClosedTime",
    "Closure",
    "Exclude",
    "Exclusion",
    "Moved",
    "OpenInstants",
    "Roll",
    "Rules",
    "TimeGroup",
    "WrongRules",
    "check_expression",
    "closed",
    "exclusion_of",
    "groups",
    "moved",
    "rules",
]
