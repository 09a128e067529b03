"""The one refusal of the schedule core: which field, what is wrong, what to write instead."""


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
    """A cron expression (or its zone) that can't be accepted."""
