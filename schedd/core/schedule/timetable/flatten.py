"""Propose schedules that should use `H`, and compute the busiest minute with and without them.

A proposal is measured. Jobs that start in a minute busier than a bound are moved to the minute that
`H` gives them. The bound is lowered step by step, and the lowest peak wins. Then jobs that can stay
without raising the peak stay, the rarest first. The reason: the minute of a nightly job is more
often chosen on purpose than that of an hourly job. Hours and days don't change.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Final

from schedd.core.schedule.compiled_schedule import CronSchedule, EverySchedule
from schedd.core.schedule.cron import (
    DEBIAN,
    CronError,
    CronExpression,
    DstPolicy,
    ScheduleError,
    parse,
)
from schedd.core.schedule.cron.dialect import MACROS, is_hashed
from schedd.core.schedule.cron.rewrites import split_zone
from schedd.core.schedule.timetable.load import Row, TimetableEntry, row_of, tally_of
from schedd.core.schedule.timetable.minutes import MinuteGrid, count
from schedd.core.schedule.zones import TWO_YEARS
from schedd.core.schedule.zones import zone as zone_of
from schedkit.records import dataclass, replace

_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Move:
    """A changed text of an entry. `number`: position of the expression, or −1 for the phase.
    `fixed`: `after` with the value that `H` has for this entry.
    """

    entry: TimetableEntry
    number: int
    before: str
    after: str
    fixed: str


@dataclass(frozen=True, slots=True)
class Flattened:
    """A proposal: what to write instead, and the starts in the hottest minute before and after."""

    moves: tuple[Move, ...]
    peak_before: int
    peak_after: int


def flatten(rows: Sequence[Row], grid: MinuteGrid) -> Flattened | None:
    """Return the proposal with the lowest peak; None: none is lower than the current peak."""
    tally = tally_of(rows, grid)
    peak, _ = tally.peak()
    moved = [_moved(row, grid) for row in rows]
    best: tuple[int, list[int]] | None = None
    bound = peak // 2
    while bound >= 1:
        hot = tally.above(bound)
        chosen = [n for n, row in enumerate(rows) if moved[n] and row.minutes & hot]
        reached, _ = tally_of(_after(rows, moved, chosen), grid).peak()
        if reached < (peak if best is None else best[0]):
            best = reached, chosen
        bound //= 2
    if best is None:
        return None
    kept = _rows_kept_moved(rows, moved, best[1], best[0], grid)
    reached, _ = tally_of(_after(rows, moved, kept), grid).peak()
    moves = [move for n in kept for move in _moves(rows[n].entry, (moved[n] or rows[n]).entry)]
    return Flattened(tuple(moves), peak, reached)


def _after(
    rows: Sequence[Row], moved: Sequence[Row | None], chosen: Iterable[int]
) -> Sequence[Row]:
    after = list(rows)
    for number in chosen:
        after[number] = moved[number] or rows[number]
    return after


def _rows_kept_moved(
    rows: Sequence[Row],
    moved: Sequence[Row | None],
    chosen: Sequence[int],
    peak: int,
    grid: MinuteGrid,
) -> list[int]:
    """Return those of `chosen` that must move: without the move, a minute would exceed `peak`."""
    tally = tally_of(_after(rows, moved, chosen), grid)
    must: list[int] = []
    for number in sorted(chosen, key=lambda n: count(rows[n].layers)):
        weight = max(seconds.bit_count() for _, seconds in rows[number].layers)
        if weight > peak or rows[number].minutes & tally.above(peak - weight):
            must.append(number)
            continue
        # The minute that the row would have moved to still counts it. The count is never too low.
        for minutes, seconds in rows[number].layers:
            tally.add(minutes, seconds.bit_count())
    return sorted(must)


def _moved(row: Row, grid: MinuteGrid) -> Row | None:
    """Return the row with its minutes hashed; None if that changes nothing."""
    entry = row.entry
    match entry.schedule:
        case CronSchedule(expressions):
            texts = _apart(entry, entry.schedule, grid)
            if texts == expressions:
                return None
            changed = replace(entry, schedule=replace(entry.schedule, expressions=texts))
        case EverySchedule(interval, phase, None) if not phase and interval >= 2 * _MINUTE:
            digest = sha256(f"{entry.seed}\0phase".encode()).digest()
            minutes = int.from_bytes(digest[:8], "big") % (interval // _MINUTE)
            changed = replace(entry, schedule=EverySchedule(interval, minutes * _MINUTE))
        case _:
            return None
    try:
        return row_of(changed, grid)
    except ScheduleError:
        return None  # an invalid day or zone, which `lint` reports


def _apart(entry: TimetableEntry, schedule: CronSchedule, grid: MinuteGrid) -> tuple[str, ...]:
    """Return the entry's expressions with `H`, except where two of them would coincide, and so a
    run would be lost: they have the same `H` minute.
    """
    texts = schedule.expressions

    def spread_out(text: str) -> str:
        return spread(text, schedule.zone, entry.seed, schedule.dst) or text

    def times_of(*texts: str) -> int:
        changed = replace(entry, schedule=replace(schedule, expressions=texts))
        return count(row_of(changed, grid).layers)

    def together(texts: tuple[str, ...]) -> int:
        return sum(map(times_of, texts)) - times_of(*texts)

    if len(texts) == 1:
        return (spread_out(texts[0]),)
    found = texts
    try:
        before = together(texts)
        for number, text in enumerate(texts):
            moved = (*found[:number], spread_out(text), *found[number + 1 :])
            if moved != found and together(moved) <= before:
                found = moved
    except ScheduleError:
        return texts  # reported by `lint`
    return found


def _moves(before: TimetableEntry, after: TimetableEntry) -> list[Move]:
    old, new = before.schedule, after.schedule
    if isinstance(old, EverySchedule) and isinstance(new, EverySchedule):
        phase = f"{new.phase // _MINUTE}m"
        return [Move(before, -1, "0s", phase, phase)]
    assert isinstance(old, CronSchedule), "only these two are moved"
    assert isinstance(new, CronSchedule), "a move keeps the kind"
    return [
        Move(before, number, one, other, fixed(other, before.seed))
        for number, (one, other) in enumerate(zip(old.expressions, new.expressions, strict=True))
        if one != other
    ]


# -- One expression --
#
# A spread expression runs as often as before on each day, also when clocks change; one that
# wouldn't isn't spread. `*/15 2 * * *` follows elapsed time and `H/15 2 * * *` doesn't.

_DAY: Final = 86400


def spread(
    expression: str, zone: str = "UTC", seed: str = "", dst: DstPolicy = DEBIAN
) -> str | None:
    """Return the expression with `H` for its minute: `H * * * *`, `H/5 * * * *`. None if the minute
    is neither single nor an even step, has an `H` already, or the number of runs would change on
    any day of two years.
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
    prefix, body = split_zone(expression.strip())
    words = MACROS.get(body.lower(), body).split()
    minutes = [value for value in range(60) if masks.minute >> value & 1]
    step = minutes[1] - minutes[0] if len(minutes) > 1 else 60
    if step == 1 or minutes != list(range(minutes[0], 60, step)) or 60 % step:
        return None
    words[-5] = "H" if step == 60 else f"H/{step}"
    return prefix + " ".join(words)


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
