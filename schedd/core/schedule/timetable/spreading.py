"""Replace the minute of an expression by `H`, and back by plain numbers.

A spread expression runs as often as before on each day, also when clocks change. An expression that
wouldn't isn't spread. `*/15 2 * * *` follows elapsed time and `H/15 2 * * *` doesn't.
"""

from typing import Final

from schedd.core.schedule.cron import DEBIAN, CronError, CronExpression, DstPolicy, parse
from schedd.core.schedule.cron.dialect import MACROS, is_hashed
from schedd.core.schedule.zones import TWO_YEARS
from schedd.core.schedule.zones import zone as zone_of

_DAY: Final = 86400


def spread(
    expression: str, zone: str = "UTC", seed: str = "", dst: DstPolicy = DEBIAN
) -> str | None:
    """Return the expression with `H` for its minute.

    `0 * * * *` becomes `H * * * *`, and `*/5 * * * *` becomes `H/5 * * * *`.

    None if the minute is neither single nor an even step, or has an `H` already. None also if the
    number of runs would change on any day of two years.
    """
    if is_hashed(expression):
        return None
    try:
        before = parse(expression, zone=zone, seed=seed)
    except CronError:
        return None
    text = _hashed(expression, before)
    if text is None or not _as_often(before, parse(text, zone=zone, seed=seed), dst):
        return None
    return text


def _as_often(before: CronExpression, after: CronExpression, dst: DstPolicy) -> bool:
    """Return whether both have as many runs on each day of two years."""
    one, other = before.masks, after.masks
    assert one is not None, "spread is asked of calendar expressions"
    assert other is not None, "the minute alone was replaced"
    same = (one.hour, one.days, one.month) == (other.hour, other.days, other.month)
    counts = (one.times.count, before.wildcard) == (other.times.count, after.wildcard)
    return (
        same
        and counts
        and all(
            before.count(start, end, dst) == after.count(start, end, dst)
            for start, end in _days_of_changes(before.zone)
        )
    )


def _days_of_changes(zone: str) -> list[tuple[int, int]]:
    """Return each clock change in two years, as (start, end]: its local day and the days beside it.

    The span begins and ends at local midnight, so it has whole days of both expressions.
    """
    found = []
    for one in zone_of(zone).segments(*TWO_YEARS):
        if one.before != one.offset and one.start > TWO_YEARS[0]:
            day = (one.start + min(one.before, one.offset)) // _DAY
            start, end = (day - 1) * _DAY - one.before, (day + 2) * _DAY - one.offset
            found.append((start - 1, end - 1))
    return found


def _hashed(expression: str, parsed: CronExpression) -> str | None:
    """Return the text with an `H` for its minute, if the minute is single or an even step."""
    masks = parsed.masks
    if masks is None:
        return None
    words = expression.split()
    prefix = [words.pop(0)] if words[0].upper().startswith("CRON_TZ=") else []
    words = MACROS.get(words[0].lower(), " ".join(words)).split()
    minutes = [value for value in range(60) if masks.minute >> value & 1]
    step = minutes[1] - minutes[0] if len(minutes) > 1 else 60
    if step == 1 or minutes != list(range(minutes[0], 60, step)) or 60 % step:
        return None
    words[-5] = "H" if step == 60 else f"H/{step}"
    return " ".join((*prefix, *words))


def fixed(expression: str, seed: str) -> str:
    """Return the expression with the numbers of its `H`, which any cron can read."""
    masks = parse(expression, seed=seed).masks
    assert masks is not None, "an H stands in a calendar expression"
    minutes = [value for value in range(60) if masks.minute >> value & 1]
    words = expression.split()
    step = minutes[1] - minutes[0] if len(minutes) > 1 else 0
    if not step:
        words[-5] = str(minutes[0])
    elif len(minutes) < 5:
        words[-5] = ",".join(map(str, minutes))
    else:
        words[-5] = f"{minutes[0]}-{minutes[-1]}/{step}"
    return " ".join(words)
