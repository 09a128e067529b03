"""Errors of the schedule core: which field, what is wrong, what to write instead."""

from collections.abc import Sequence

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An expression to write instead. The engine compared its fire times before it was offered.

    `description` is its meaning in words. `start` and `end` are bounds of the job, if a year field
    was rewritten. `difference` says in words how the fire times differ; empty: they are the same.
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

    `field` names the part that is wrong ("hour", "time_zone", "interval", …), `problem` says what
    is wrong with it, `hint` what to write instead. Never raised once a schedule was compiled.
    """

    def __init__(self, field: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{field}: {problem}" + (f" ({hint})" if hint else ""))
        self.field = field
        self.problem = problem
        self.hint = hint


class CronError(ScheduleError):
    """A cron expression (or its zone) that can't be accepted. `rewrites` are what to write."""

    def __init__(
        self, field: str, problem: str, hint: str = "", rewrites: Sequence[Rewrite] = ()
    ) -> None:
        super().__init__(field, problem, hint)
        self.rewrites = tuple(rewrites)
