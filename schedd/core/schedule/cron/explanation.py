"""Explain an expression: its meaning in words, fire times, and changes of the clock."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from schedd.core.schedule.cron import day_bits
from schedd.core.schedule.cron.day_bits import DAY
from schedd.core.schedule.cron.descriptions import describe_parsed
from schedd.core.schedule.cron.dialect import is_hashed
from schedd.core.schedule.cron.dst import DEBIAN, DstGap, DstOverlap, DstPolicy
from schedd.core.schedule.cron.errors import CronError
from schedd.core.schedule.cron.expression import EPOCH, SECOND, CronExpression
from schedd.core.schedule.cron.masks import Masks
from schedd.core.schedule.cron.rewrites import parse
from schedd.core.schedule.zones import Segment, zone
from schedkit.records import dataclass

_YEAR: Final = 366 * DAY
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class CronExplanation:
    """The result of `cron explain`. `instants`: aware fire times, in the expression's own zone."""

    expression: str
    time_zone: str
    description: str
    instants: tuple[datetime, ...]
    notes: tuple[str, ...]


def explain(
    expression: str,
    zone: str = "UTC",
    *,
    after: datetime,
    count: int = 10,
    seed: str = "",
    dst: DstPolicy = DEBIAN,
) -> CronExplanation:
    """Explain an expression: the next `count` fire times after `after` (exclusive), and notes.

    `seed` is "namespace/job", used only by `H`. Raises CronError.
    """
    parsed = parse(expression, zone=zone, seed=seed)
    if parsed.next_after(after, dst) is None:
        raise never(parsed)
    found = list(notes(parsed, after, dst))
    if is_hashed(expression):
        whose = f"of {seed}" if seed else "of a job without a name"
        found.insert(0, f"H is a hash of namespace and job name; these times use the hash {whose}.")
    return CronExplanation(
        expression=expression,
        time_zone=parsed.zone,
        description=describe_parsed(parsed),
        instants=tuple(islice(_walk(parsed, after, dst), count)),
        notes=tuple(found),
    )


def describe(expression: str, seed: str = "") -> str:
    """Return the expression in plain English. Raises CronError."""
    return describe_parsed(parse(expression, seed=seed))


def never(expression: CronExpression) -> CronError:
    """Return the error for an expression whose times the clocks of its zone always skip."""
    return CronError(
        "expression",
        f"the expression never matches: the clocks of {expression.zone} skip all its times",
        "use another hour, or dst.gap: run_after",
    )


def notes(expression: CronExpression, after: datetime, dst: DstPolicy = DEBIAN) -> tuple[str, ...]:
    """Return the effects of clock changes in the year after `after`, one line each."""
    if expression.masks is None:
        return ()
    start = (after - EPOCH) // SECOND
    changes = zone(expression.zone).segments(start, start + _YEAR)
    found = [
        _note(expression, expression.masks, segment, dst)
        for segment in changes
        if segment.start > start and segment.before != segment.offset
    ]
    return tuple(note for note in found if note)


def _walk(expression: CronExpression, after: datetime, dst: DstPolicy) -> Iterator[datetime]:
    """Yield the fire times after `after`, in the expression's own zone."""
    found = expression.next_after(after, dst)
    while found is not None:
        yield found.astimezone(zone(expression.zone).info)
        found = expression.next_after(found, dst)


def _note(expression: CronExpression, masks: Masks, change: Segment, dst: DstPolicy) -> str:
    """Return the effect of one clock change; empty: no matching time is affected."""
    left, reached = change.start + change.before, change.start + change.offset
    affected = day_bits.count(masks.matches_on_day, min(left, reached) - 1, max(left, reached) - 1)
    if not affected:
        return ""
    times = _times(masks, min(left, reached), affected)
    forward = left < reached
    happens = "does not exist" if forward else "comes twice"
    if affected > 1:
        happens = "do not exist" if forward else "come twice"
    moved = f"clocks go {'forward' if forward else 'back'} from {_clock(left)} to {_clock(reached)}"
    if expression.wildcard:
        does = "the schedule follows elapsed time and runs in both passes"
        if forward:
            does = "the schedule follows elapsed time: these times don't run"
            does += "" if _runs_that_day(expression, change) else ", so no run on that day"
    elif forward:
        does = f"runs once, at {_shown(expression, change.start)}"
        if affected > 1:
            does = f"runs once for all of them, at {_shown(expression, change.start)}"
        if dst.gap is DstGap.SKIP:
            does = f"{'these times don' if affected > 1 else 'this time doesn'}'t run"
    else:
        does = _repeated(expression, masks, change, dst, each=affected > 1)
    day = EPOCH + timedelta(seconds=min(left, reached))
    return f"{day:%Y-%m-%d}: {times} {happens} in {expression.zone} ({moved}); {does}."


def _runs_that_day(expression: CronExpression, change: Segment) -> bool:
    """Return whether the expression runs on the local day of a gap."""
    day = (change.start + change.before) // DAY
    first, stop = day * DAY - change.before, (day + 1) * DAY - change.offset
    return expression.count(first - 1, stop - 1) > 0


def _repeated(
    expression: CronExpression, masks: Masks, change: Segment, dst: DstPolicy, *, each: bool
) -> str:
    """Return the pass of the repeated time in which the expression runs, with its first time."""
    first = masks.next_local(change.start + change.offset)
    assert first is not None, "a note is made for times that match"
    passes = {
        DstOverlap.FIRST: (("first", change.before),),
        DstOverlap.SECOND: (("second", change.offset),),
        DstOverlap.BOTH: (("first", change.before), ("second", change.offset)),
    }[dst.overlap]
    named = [f"{name} pass ({_shown(expression, first - offset)})" for name, offset in passes]
    often = "once" if len(named) == 1 else "twice"
    return f"runs {often}{' for each' if each else ''}, in the " + " and the ".join(named)


def _times(masks: Masks, start: int, count: int) -> str:
    """Return the first few matching local times from `start` on."""
    shown: list[str] = []
    local: int | None = start
    while len(shown) < min(count, _NAMED) and (local := masks.next_local(local or 0)) is not None:
        shown.append(_clock(local))
        local += 1
    return ", ".join(shown) + (", …" if count > _NAMED else "")


def _clock(local: int) -> str:
    at = EPOCH + timedelta(seconds=local)
    return f"{at:%H:%M:%S}".removesuffix(":00")


def _shown(expression: CronExpression, second: int) -> str:
    """Return a time on the zone's clock: "03:00+02:00"."""
    at = datetime.fromtimestamp(second, UTC).astimezone(zone(expression.zone).info)
    return at.isoformat()[11:].replace(":00+", "+").replace(":00-", "-")
