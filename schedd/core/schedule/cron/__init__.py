"""Cron: parse expressions, describe them, and compute their fire times.

    text ──dialect──▶ plain terms ──masks (croniter)──▶ bits ──expression (zones)──▶ times
                                                             ╰─words──▶ plain English, DST notes

Pure and cached: the same expression, zone and seed give the same object and the same times on every
member. docs/semantics/cron-expressions.md defines the meaning; `DIALECT` is its version.
"""

from schedd.core.schedule.cron.dialect import DIALECT, is_hashed
from schedd.core.schedule.cron.dst import DEBIAN, DstGap, DstOverlap, DstPolicy
from schedd.core.schedule.cron.errors import CronError, Rewrite, ScheduleError
from schedd.core.schedule.cron.explanation import CronExplanation, describe, explain, notes
from schedd.core.schedule.cron.expression import EPOCH, CronExpression
from schedd.core.schedule.cron.rewrites import parse

__all__ = [
    "DEBIAN",
    "DIALECT",
    "EPOCH",
    "CronError",
    "CronExplanation",
    "CronExpression",
    "DstGap",
    "DstOverlap",
    "DstPolicy",
    "Rewrite",
    "ScheduleError",
    "describe",
    "explain",
    "is_hashed",
    "notes",
    "parse",
]
