"""Calendars: the times of a schedule that don't run, and the other days on which they run instead.

    what people write ──rules──▶ Rules ──closed (zones, masks)──▶ bits of each local day
    base times ─┬─▶ excluded: recorded as SKIPPED (CALENDAR)
                ├─▶ open: they run
                └─▶ moved: the same local time on the nearest open day, if a calendar rolls

Pure and cached: the days of a calendar are computed once for each version and zone, however many
jobs use it. A time is judged by the local time in the calendar's zone, so both passes of a repeated
hour are treated alike.
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
