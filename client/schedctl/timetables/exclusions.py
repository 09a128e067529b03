"""`schedctl cron explain` with calendars: what runs next, and what is left out between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice, takewhile
from typing import Final
from uuid import UUID

from schedctl.failure import CommandFailure
from schedctl.manifests import manifests
from schedctl.manifests.manifests import CalendarManifest
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.calendars import (
    FARTHEST,
    Calendar,
    Exclude,
    Roll,
    WrongRules,
    check_expression,
    rules,
)
from schedd.core.schedule.compiled_schedule import CronSchedule, ScheduleBounds
from schedd.core.schedule.cron import CronError, CronExplanation, Dst
from schedproto.v1 import calendar_service_pb2

NAMED: Final = 5
"""Excluded instants that are told one by one."""


def exclude_of(cron: Sequence[str], files: Sequence[str], zone: str) -> Exclude:
    """What the flags exclude. Raises Failure for what can't be read."""
    for expression in cron:
        try:
            check_expression(expression)
        except CronError as wrong:
            raise CommandFailure(
                f"--exclude-cron: {wrong.problem}",
                reason="WRONG_EXPRESSION",
                remedy=wrong.hint or "for example '* 22-23 * * *': the minutes from 22:00 on",
            ) from None
    found = manifests.read_or_fail(files).calendars if files else ()
    return Exclude(tuple(map(_calendar, found)), tuple(cron), zone)


def without(
    told: CronExplanation,
    exclude: Exclude,
    after: datetime,
    count: int,
    seed: str,
    dst: Dst,
) -> CronExplanation:
    """The explanation with the instants that run, and notes of those between that don't."""
    when = CronSchedule((told.expression,), told.time_zone, dst)
    compiled = compiled_schedule.compile(when, seed, UUID(int=0), ScheduleBounds(), exclude)
    zone = told.instants[0].tzinfo if told.instants else after.tzinfo
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
        notes.append("No more of them run within five years.")
    return replace(
        told, instants=tuple(at.astimezone(zone) for at in runs), notes=(*notes, *told.notes)
    )


def _calendar(manifest: CalendarManifest) -> Calendar:
    said = manifest.calendar
    roll = calendar_service_pb2.Roll.Name(said.roll).removeprefix("ROLL_")
    try:
        read = rules(
            dates=said.dates,
            weekdays=said.weekdays,
            ranges=[(getattr(span, "from"), span.to) for span in said.ranges],
            cron=said.cron,
            zone=said.time_zone,
            roll=Roll.NONE if roll == "UNSPECIFIED" else Roll(roll),
        )
    except WrongRules as wrong:
        first, *others = wrong.faults
        raise CommandFailure(
            f"{manifest.where}: {first}",
            reason="WRONG_MANIFEST",
            details=[str(one) for one in others],
            remedy=first.hint or "mend it",
        ) from None
    return Calendar(said.name, 0, read)
