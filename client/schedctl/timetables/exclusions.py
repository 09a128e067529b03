"""`schedctl cron explain` with calendars: the next times that run, and those excluded between."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice, takewhile
from typing import Final

from schedctl.failure import CommandFailure
from schedctl.manifests import manifests
from schedctl.manifests.manifests import CalendarManifest
from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.calendars.open_times import FARTHEST
from schedd.core.schedule.calendars.rules import (
    CalendarVersion,
    Exclude,
    Roll,
    WrongRules,
    check_expression,
    rules,
)
from schedd.core.schedule.compiled_schedule import CronSchedule, ScheduleBounds
from schedd.core.schedule.cron import CronError, CronExplanation, DstPolicy
from schedproto.v1 import calendar_service_pb2

NAMED: Final = 5
"""Number of excluded times that are listed one by one."""


def exclude_of(cron: Sequence[str], files: Sequence[str], zone: str) -> Exclude:
    """Return the exclusions of the options; raise CommandFailure if one isn't valid."""
    for expression in cron:
        try:
            check_expression(expression)
        except CronError as wrong:
            raise CommandFailure(
                f"--exclude-cron: {wrong.problem}",
                reason="WRONG_EXPRESSION",
                remedy=wrong.hint or "for example '* 22-23 * * *': the minutes from 22:00 to 23:59",
            ) from None
    found = manifests.read_or_fail(files).calendars if files else ()
    return Exclude(tuple(map(_calendar, found)), tuple(cron), zone)


def without(
    found: CronExplanation,
    exclude: Exclude,
    after: datetime,
    count: int,
    seed: str,
    dst: DstPolicy,
) -> CronExplanation:
    """Return the explanation with the times that run, and notes on the excluded ones between."""
    when = CronSchedule((found.expression,), found.time_zone, dst)
    compiled = compiled_schedule.compile(when, seed, Id.from_int(0), ScheduleBounds(), exclude)
    zone = found.instants[0].tzinfo if found.instants else after.tzinfo
    runs = [one.nominal for one in islice(compiled.walk_after(after), count)]
    until = runs[-1] if len(runs) == count else after + FARTHEST
    left_out = compiled.whole.count(after, until, 0)[0] - len(runs)
    whole = takewhile(lambda one: one.nominal < until, compiled.whole.walk_after(after))
    excluded = (one.nominal for one in whole if compiled.excludes(one.nominal))
    notes = [
        f"{at.astimezone(zone).isoformat(sep=' ')} is excluded by {compiled.excluded_by(at)}."
        for at in islice(excluded, min(NAMED, left_out))
    ]
    if left_out > NAMED:
        notes.append(f"{left_out - NAMED:,} more are excluded.")
    if len(runs) < count:
        notes.append("All other scheduled times of the next five years are excluded.")
    return replace(
        found, instants=tuple(at.astimezone(zone) for at in runs), notes=(*notes, *found.notes)
    )


def _calendar(manifest: CalendarManifest) -> CalendarVersion:
    spec = manifest.calendar
    roll = calendar_service_pb2.Roll.Name(spec.roll).removeprefix("ROLL_")
    try:
        read = rules(
            dates=spec.dates,
            weekdays=spec.weekdays,
            ranges=[(getattr(span, "from"), span.to) for span in spec.ranges],
            cron=spec.cron,
            zone=spec.time_zone,
            roll=Roll.NONE if roll == "UNSPECIFIED" else Roll(roll),
        )
    except WrongRules as wrong:
        first, *others = wrong.faults
        raise CommandFailure(
            f"{manifest.where}: {first}",
            reason="WRONG_MANIFEST",
            details=[str(one) for one in others],
            remedy=first.hint or "fix the manifest",
        ) from None
    return CalendarVersion(spec.name, 0, read)
