"""The six fields of an expression: their names, their values, and the terms written in them."""

from typing import Final

from schedd.core.schedule.cron.errors import CronError
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class FieldTerms:
    """A translated field.

    `plain`: a comma list of `*`, `*/n`, `a`, `a-b`, `a-b/n`; empty if all terms are special.
    `special`: `l`, `l-3` and `15w` (day of month), `5#2` and `l5` (day of week).
    `star`: whether the field as written begins with `*` (or is `?`).
    """

    plain: str
    special: tuple[str, ...]
    star: bool


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field's name, its values, the names of its values, and the values that `H` chooses from."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    hash_high: int = 0

    def value_of(self, text: str) -> int:
        """Return the number of a value. Raises CronError."""
        if text.isascii() and text.isdigit():
            value = int(text) if len(text) < 5 else 99999
            if not self.low <= value <= self.high:
                raise CronError(
                    self.name,
                    f"the value {text} is out of range in this field of the cron expression",
                    f"use {self.range_text}",
                )
            return value
        if text in self.names:
            return self.names.index(text) + self.low
        for name in self.names:
            if text.startswith(name):
                raise CronError(
                    self.name,
                    f"the value {text!r} isn't valid in this field of the cron expression",
                    f"write the name as {name}",
                )
        raise CronError(
            self.name,
            f"the value {text!r} isn't valid in this field of the cron expression",
            f"use {self.range_text}",
        )

    @property
    def range_text(self) -> str:
        names = f", or {self.names[0]}-{self.names[-1]}" if self.names else ""
        sunday = ", 0 and 7 are Sunday" if self is DAY_OF_WEEK else ""
        return f"{self.low}-{self.high}{names}{sunday}"


SECOND = FieldSpec("second", 0, 59, hash_high=59)
MINUTE = FieldSpec("minute", 0, 59, hash_high=59)
HOUR = FieldSpec("hour", 0, 23, hash_high=23)
# `H` ends at 28, so that a monthly job runs in each month.
DAY_OF_MONTH = FieldSpec("day of month", 1, 31, hash_high=28)
MONTH = FieldSpec(
    "month",
    1,
    12,
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    hash_high=12,
)
DAY_OF_WEEK = FieldSpec(
    "day of week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat"), hash_high=6
)
FIELDS: Final = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)
