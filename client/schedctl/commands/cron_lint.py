"""`schedctl cron lint` and `schedctl cron diff`."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click

from schedctl.failure import CommandFailure
from schedctl.options.global_options import Command, dst_options, flag, option, pass_session
from schedctl.options.types import TIME, TIME_TYPE
from schedctl.output import message, show_data, show_objects
from schedctl.session import Session
from schedctl.timetables.timetables import (
    ScheduleTable,
    dst_of,
    given,
    on_one_line,
    source_options,
    window_options,
)
from schedd.core.schedule.compiled_schedule import CronSchedule
from schedd.core.schedule.cron import CronError, ScheduleError, describe
from schedd.core.schedule.cron import parse as parse_expression
from schedd.core.schedule.timetable.lint import LintFinding, LintLevel
from schedd.core.schedule.timetable.lint import lint as linted
from schedd.core.schedule.timetable.load import TimetableEntry, differ, rows_of
from schedd.core.schedule.timetable.minutes import grid_over
from schedkit.clock import utcnow
from schedkit.records import dataclass
from schedkit.text import duration


@dataclass(frozen=True, slots=True)
class ReportedFinding:
    """A finding and its source."""

    where: str
    finding: LintFinding
    name: str = ""
    expression: str = ""
    zone: str = ""


@click.command(cls=Command)
@source_options
@flag("--strict", "Exit with 1 also if the only findings are warnings.")
@option(
    f"--after {TIME}",
    "Time after which clock changes are checked; +3s is 3 s from now.  [default: now]",
    type=TIME_TYPE,
)
@pass_session
def lint(
    session: Session,
    expressions: tuple[str, ...],
    files: tuple[str, ...],
    tz: str,
    user_column: bool | None,
    strict: bool,
    after: datetime | None,
) -> None:
    """Check expressions, crontabs, manifests or the cluster's jobs for errors and pitfalls.

    The command exits with 1 if a check finds an error.
    """
    table = given(session, expressions, files, tz, user_column)
    found = list(_findings(table, after or utcnow()))
    if session.tabular:
        for one in found:
            _print(one)
    else:
        show_objects(session, [_plain(one) for one in found])
    errors = sum(one.finding.level is LintLevel.ERROR for one in found)
    warnings = len(found) - errors
    schedules = [entry.schedule for entry in table.entries]
    looked = sum(len(one.expressions) if isinstance(one, CronSchedule) else 1 for one in schedules)
    message(
        f"{_many(looked, 'expression')}: {_many(errors, 'error')}, {_many(warnings, 'warning')}"
    )
    if errors or (strict and found):
        click.get_current_context().exit(1)


def _findings(table: ScheduleTable, after: datetime) -> Iterator[ReportedFinding]:
    for fault in table.faults:
        unread = LintFinding(LintLevel.ERROR, "unread", fault.problem, fault.hint)
        yield ReportedFinding(fault.where, unread)
    for where, trap in table.traps:
        finding = LintFinding(LintLevel.WARNING, trap.rule, trap.problem, trap.hint)
        yield ReportedFinding(where, finding)
    for where, name, finding in table.warnings:
        yield ReportedFinding(where, finding, name)
    for entry in table.entries:
        crontab = entry.where.rpartition(":")[0] in table.crontabs
        yield from _of_entry(entry, after, crontab=crontab)


def _of_entry(
    entry: TimetableEntry, after: datetime, *, crontab: bool
) -> Iterator[ReportedFinding]:
    schedule = entry.schedule
    if not isinstance(schedule, CronSchedule):  # the problem of an interval or a single time
        _, wrong = rows_of([entry], grid_over(after, timedelta(minutes=1)))
        for one in wrong:
            finding = LintFinding(LintLevel.ERROR, one.error.field, str(one.error), one.error.hint)
            yield ReportedFinding(entry.where, finding, entry.name)
        return
    for number, text in enumerate(schedule.expressions):
        found = linted(
            text, schedule.zone, after=after, seed=entry.seed, dst=schedule.dst, crontab=crontab
        )
        where = entry.where
        if len(entry.lines) > number:
            where = f"{where.rpartition(':')[0]}:{entry.lines[number]}"
        for finding in found:
            yield ReportedFinding(where, finding, entry.name, text, schedule.zone)


def _print(one: ReportedFinding) -> None:
    finding = one.finding
    written = f"{on_one_line(one.expression)}: " if one.expression else ""
    level = finding.level.value.lower()
    click.echo(f"{one.where}: {level}: {written}{finding.problem} [{finding.rule}]")
    if finding.hint:
        click.echo(f"  try: {finding.hint}")


def _plain(one: ReportedFinding) -> dict[str, Any]:
    return {
        "where": one.where,
        "name": one.name,
        "expression": one.expression,
        "timeZone": one.zone,
        "level": one.finding.level.value,
        "rule": one.finding.rule,
        "problem": one.finding.problem,
        "hint": one.finding.hint,
        "rewrites": [
            {
                "expression": rewrite.text,
                "description": rewrite.description,
                "start": rewrite.start or None,
                "end": rewrite.end or None,
                "difference": rewrite.difference or None,
            }
            for rewrite in one.finding.rewrites
        ],
    }


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


@click.command(cls=Command)
@click.argument("first")
@click.argument("second")
@option(
    "--tz ZONE",
    "IANA time zone in which the expressions are read.",
    default="UTC",
    show_default=True,
)
@option("--second-tz ZONE", "IANA time zone in which SECOND is read.  [default: the --tz zone]")
@option(
    "--job NAME",
    "Name of the job. The value of `H` is a hash of this name.  [default: no name]",
    default="",
)
@dst_options
@window_options("366d")
@option(
    "--limit N",
    "Show at most N scheduled times for each expression.",
    default=10,
    show_default=True,
    type=click.IntRange(0, 1000),
)
@pass_session
def diff(
    session: Session,
    first: str,
    second: str,
    tz: str,
    second_tz: str | None,
    job: str,
    dst_gap: str,
    dst_overlap: str,
    start: datetime | None,
    span: timedelta,
    limit: int,
) -> None:
    """List the times at which only one of two expressions fires.

    The command exits with 1 if there are such times.
    """
    dst = dst_of(dst_gap, dst_overlap)
    begin = (start or utcnow()).replace(microsecond=0)
    one, other = (
        TimetableEntry(job, "", CronSchedule((text,), zone, dst), session.namespace)
        for text, zone in ((first, tz), (second, second_tz or tz))
    )
    try:
        words = [describe(first, one.seed), describe(second, other.seed)]
        found = differ(one, other, begin, span, limit)
        info = ZoneInfo(parse_expression(first, zone=tz, seed="").zone)
    except ScheduleError as error:
        raise CommandFailure(
            f"{error.field}: {error.problem}",
            reason="WRONG_EXPRESSION" if isinstance(error, CronError) else "WRONG_SCHEDULE",
            remedy=error.hint or "schedctl cron explain '*/5 * * * *'",
        ) from None
    listed = [[at.astimezone(info) for at in side] for side in (found.in_first, found.in_second)]
    sides = (
        _Side("first", "<", first, words[0], listed[0], found.only_first),
        _Side("second", ">", second, words[1], listed[1], found.only_second),
    )
    if session.tabular:
        since = begin.astimezone(info).isoformat(sep=" ")
        _show_difference(sides, f"{duration.render(span)} from {since}", found.both)
    else:
        data: dict[str, Any] = {"from": begin.isoformat(), "to": (begin + span).isoformat()}
        for side in sides:
            data[side.name] = {
                "expression": side.expression,
                "description": side.description,
                "only": side.count,
                "instants": [at.isoformat() for at in side.instants],
            }
        show_data(session, data | {"both": found.both})
    if found.differ:
        click.get_current_context().exit(1)


@dataclass(frozen=True, slots=True)
class _Side:
    """An expression of the comparison, with the first of the `count` times that only it has."""

    name: str
    mark: str
    expression: str
    description: str
    instants: list[datetime]
    count: int


def _show_difference(sides: Sequence[_Side], window: str, both: int) -> None:
    for side in sides:
        click.echo(f"{side.mark} {side.expression}: {side.description}")
    alone = ", ".join(f"{side.count:,} only in the {side.name}" for side in sides)
    click.echo(f"{window}: {alone}, {both:,} in both")
    for side in sides:
        for at in side.instants:
            click.echo(f"  {side.mark} {at.isoformat(sep=' ')}  {at:%a}")
        if side.count > len(side.instants):
            click.echo(f"  {side.mark} … {side.count - len(side.instants):,} more")
