"""Convert local times without an offset, such as `2026-12-24T18:00:00`, to UTC.

Invariant: a time that the clocks of the zone skip or show twice isn't guessed. The error names both
times that may be meant.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from schedd.core.schedule.cron.errors import ScheduleError
from schedd.core.schedule.zones import UnknownZone, Zone
from schedd.core.schedule.zones import zone as zone_of

_LOCAL: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?", re.ASCII)
_EXAMPLE: Final = "for example 2026-12-24T18:00:00"


def parse_local_time(text: str, field: str) -> datetime:
    """Return the local time of a text: naive, in whole seconds. Raises ScheduleError."""
    if _LOCAL.fullmatch(text):
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
    problem = f"{text[:60]!r} isn't a local time"
    raise ScheduleError(field, problem, f"write a date and a time without an offset, {_EXAMPLE}")


def instant_of(local: datetime, zone: str, field: str) -> datetime:
    """Return the UTC time at which the clocks of the zone show `local`. Raises ScheduleError."""
    if not zone:
        problem = f"{local.isoformat()} is a local time, and time_zone is missing"
        raise ScheduleError(field, problem, "set time_zone, or write the offset from UTC")
    try:
        place = zone_of(zone)
    except UnknownZone as unknown:
        raise ScheduleError("time_zone", str(unknown), unknown.hint) from None
    try:
        found = place.instants(local)
        both = found if len(found) != 0 else _around_gap(place, local)
    except (OverflowError, ValueError):
        problem = f"the time {local.isoformat()} is out of range"
        raise ScheduleError(field, problem, "give a time in the years 1 to 9999") from None
    if len(found) == 1:
        return found[0]
    happens = "occurs twice" if found else "doesn't exist"
    candidates = " or ".join(at.astimezone(place.info).isoformat() for at in both)
    problem = f"{local.isoformat()} {happens} in {zone}: the clocks change at that time"
    raise ScheduleError(field, problem, f"write {candidates}" if field == "at" else candidates)


def _around_gap(place: Zone, local: datetime) -> list[datetime]:
    """Return the skipped local time in UTC, by the offset after the gap and by that before it."""
    shown = local.replace(tzinfo=UTC)
    offsets = {place.offset(int((shown + timedelta(days=day)).timestamp())) for day in (-2, 2)}
    return sorted(shown - timedelta(seconds=offset) for offset in offsets)
