"""Errors of schedules: the invalid field, the problem, and what to write instead."""

from collections.abc import Sequence

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An expression to write instead. The engine compared its fire times before offering it.

    `description` is its meaning in words. `start` and `end` are bounds of the job, if a year field
    was rewritten. `difference` describes how the fire times differ; empty: they are the same.
    """

    text: str
    description: str
    start: str = ""
    end: str = ""
    difference: str = ""

    def __str__(self) -> str:
        bounds = [f"{name}: {at}" for name, at in (("start", self.start), ("end", self.end)) if at]
        within = f" with {' and '.join(bounds)}" if bounds else ""
        differs = f"; other fire times: {self.difference}" if self.difference else ""
        return f"write {self.text}{within} ({self.description}{differs})"


class ScheduleError(ValueError):
    """A schedule that can't be accepted.

    `field` names the invalid part ("hour", "time_zone", "interval", …). `problem` says what is
    wrong with it, `hint` what to write instead. A compiled schedule never raises it.
    """

    def __init__(self, field: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{field}: {problem}" + (f" ({hint})" if hint else ""))
        self.field = field
        self.problem = problem
        self.hint = hint


class CronError(ScheduleError):
    """A cron expression (or its zone) that can't be accepted. `rewrites`: what to write instead."""

    def __init__(
        self, field: str, problem: str, hint: str = "", rewrites: Sequence[Rewrite] = ()
    ) -> None:
        super().__init__(field, problem, hint)
        self.rewrites = tuple(rewrites)
