"""Check the `exclude` of a job, and find its calendars."""

from collections.abc import Iterator, Sequence
from typing import Final

from schedd.api.errors import AbortedError, FieldViolation
from schedd.api.services import Services
from schedd.core.runs.records import PinnedCalendar
from schedd.core.schedule.calendars.rules import check_expression
from schedd.core.schedule.cron import CronError
from schedproto.v1 import job_pb2

MOST_CALENDARS: Final = 20
"""Calendars of one job."""
MOST_EXPRESSIONS: Final = 100


async def calendars_of(
    services: Services, namespace: str, job: job_pb2.Job
) -> tuple[PinnedCalendar, ...]:
    """Return the newest versions of the calendars that a job names and that exist."""
    names = sorted({*job.exclude.calendars})[:MOST_CALENDARS]
    return await services.calendars.current(namespace, names) if names else ()


def violations(
    exclude: job_pb2.Exclude, calendars: Sequence[PinnedCalendar]
) -> Iterator[FieldViolation]:
    """Return the violations of `exclude`, given the calendars that exist."""
    named, there = list(exclude.calendars), {one.name for one in calendars}
    if len(named) > MOST_CALENDARS:
        problem = f"has {len(named):,} calendars; at most {MOST_CALENDARS} are allowed"
        yield FieldViolation("exclude.calendars", problem)
        return
    for name in dict.fromkeys(named):
        if named.count(name) > 1:
            yield FieldViolation("exclude.calendars", f"{name[:140]!r} is given twice")
        if name not in there:
            yield FieldViolation("exclude.calendars", f"calendar {name[:140]!r} not found")
    if len(exclude.cron) > MOST_EXPRESSIONS:
        problem = f"has {len(exclude.cron):,} expressions; at most {MOST_EXPRESSIONS} are allowed"
        yield FieldViolation("exclude.cron", problem)
        return
    for expression in exclude.cron:
        try:
            check_expression(expression)
        except CronError as wrong:
            problem = wrong.problem + (f" ({wrong.hint})" if wrong.hint else "")
            yield FieldViolation("exclude.cron", problem)


def changed_meanwhile(name: str) -> AbortedError:
    """Return the error for a job whose calendars were changed while it was checked."""
    return AbortedError(
        f"a calendar of job {name!r} was changed meanwhile",
        reason="CALENDAR_CHANGED",
        remedy="call again: the job is then checked with the new version",
    )
