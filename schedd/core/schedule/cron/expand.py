"""Build masks from translated terms: croniter expands them.

croniter gets only the plain terms of `dialect`, which every parser reads alike. It expands lists,
ranges and steps. It never computes a fire time.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import cast

from croniter import croniter

from schedd.core.schedule.cron.dialect import DAY_OF_WEEK, FIELDS, FieldSpec, FieldTerms
from schedd.core.schedule.cron.errors import CronError
from schedd.core.schedule.cron.masks import Masks


@lru_cache(maxsize=4096)
def build(fields: tuple[FieldTerms, ...]) -> Masks:
    """Return the masks of six translated fields. Raises CronError if no day can ever match."""
    masks = _expand(fields)
    if any(masks.months_days()):  # exact: all shapes of months occur
        return masks
    if masks.both_days and (masks.day_of_week != 127 or masks.nth):
        raise CronError(
            "expression",
            "the expression never matches: because one day field begins with *, a day must"
            " match both day fields, and no day matches both",
            "write that day field as a list, such as 1,11,21 instead of */10: then a day that"
            " matches one of the fields is enough",
        )
    problem = "the expression never matches: none of its months has such a day"
    hint = "use days that its months have; L is the last day of any month"
    raise CronError("expression", problem, hint)


def _expand(fields: tuple[FieldTerms, ...]) -> Masks:
    second, minute, hour, day_of_month, month, day_of_week = _plain_masks(fields)
    days, weekdays = fields[3].special, fields[5].special
    weeks = (term[1:] + "#-1" if term[0] == "l" else term for term in weekdays)  # l5, 5#2
    return Masks(
        second,
        minute,
        hour,
        day_of_month,
        month,
        day_of_week,
        last_day="l" in days,
        before_last=tuple(sorted({int(term[2:]) for term in days if term.startswith("l-")})),
        nearest=tuple(sorted({int(term[:-1]) for term in days if term.endswith("w")})),
        nth=tuple(sorted({(int(term[0]), int(term[2:])) for term in weeks})),
        both_days=fields[3].star or fields[5].star,
    )


def _plain_masks(fields: tuple[FieldTerms, ...]) -> list[int]:
    words = [terms.plain or "*" for terms in fields]
    try:
        parsed = croniter(" ".join(words), 0, second_at_beginning=True)
    except (ValueError, KeyError, IndexError, TypeError) as refusal:
        # A term that `dialect` accepts and croniter rejects: never a bug of the caller.
        problem = f"the fields {' '.join(words)!r} (seconds first) can't be parsed: {refusal}"
        hint = "use numbers, ranges (1-5), lists (1,3) and steps (*/10) in these fields"
        raise CronError("expression", problem, hint) from refusal
    *others, second = cast("list[list[int | str]]", parsed.expanded)  # seconds are last here
    return [
        _mask(spec, values) if terms.plain else 0
        for spec, terms, values in zip(FIELDS, fields, [second, *others], strict=True)
    ]


def _mask(spec: FieldSpec, values: Iterable[int | str]) -> int:
    mask = 0
    for value in values:
        if value == "*":
            high = 6 if spec is DAY_OF_WEEK else spec.high
            return (2 << high) - (1 << spec.low)
        mask |= 1 << int(value)
    return mask
