"""`schedctl cron`: explain, check, compare and count schedules. Works without a cluster."""

from collections.abc import Sequence
from datetime import datetime

import click

from schedctl.failure import CommandFailure
from schedctl.options.global_options import CommandGroup, dst_options, flag, option, pass_session
from schedctl.options.types import TIME, TIME_TYPE
from schedctl.output import show_data
from schedctl.session import Session
from schedkit.clock import utcnow


@click.group(
    cls=CommandGroup,
    lazy={
        "collide": "schedctl.commands.cron_load:collide",
        "diff": "schedctl.commands.cron_lint:diff",
        "forecast": "schedctl.commands.cron_load:forecast",
        "lint": "schedctl.commands.cron_lint:lint",
    },
)
def cron() -> None:
    """Explain, check, compare and count cron expressions."""


@cron.command()
@click.argument("expression")
@option(
    "--tz ZONE", "IANA time zone in which the expression is read.", default="UTC", show_default=True
)
@option(
    f"--after {TIME}",
    "Time after which scheduled times are shown; +3s is 3 s from now.  [default: now]",
    type=TIME_TYPE,
)
@option(
    "--next N",
    "Number of scheduled times to show.",
    "count",
    default=10,
    show_default=True,
    type=click.IntRange(0, 1000),
)
@option(
    "--job NAME",
    "Name of the job. The value of `H` is a hash of this name.  [default: no name]",
    default="",
)
@dst_options
@option(
    "--exclude-cron EXPR",
    "Cron expression that excludes the times it matches; repeatable.  [default: none]",
    multiple=True,
)
@option(
    "--calendar FILE",
    "File with manifests of calendars that exclude times; repeatable.  [default: no file]",
    "calendars",
    multiple=True,
)
@option(
    "-f --file FILE|DIR|-",
    "Crontab or manifest: count how many of its jobs start in the same minutes as the"
    " expression; repeatable.  [default: no file]",
    "files",
    multiple=True,
)
@flag(
    "--jobs",
    "Count how many jobs of the cluster start in the same minutes as the expression.",
    "with_jobs",
)
@pass_session
def explain(
    session: Session,
    expression: str,
    tz: str,
    after: datetime | None,
    count: int,
    job: str,
    dst_gap: str,
    dst_overlap: str,
    exclude_cron: tuple[str, ...],
    calendars: tuple[str, ...],
    files: tuple[str, ...],
    with_jobs: bool,
) -> None:
    """Explain an expression: its meaning, its next times, and the effect of clock changes."""
    from schedctl.timetables import timetables
    from schedd.core.schedule.cron import CronError
    from schedd.core.schedule.cron import explain as explained

    exclude = timetables.exclude_of(exclude_cron, calendars, tz)
    since, seed = after or utcnow(), f"{session.namespace}/{job}" if job else ""
    dst = timetables.dst_of(dst_gap, dst_overlap)
    try:
        found = explained(expression, tz, after=since, count=count, seed=seed, dst=dst)
        if exclude:
            found = timetables.without(found, exclude, since, count, seed, dst)
    except CronError as error:
        raise CommandFailure(
            f"{error.field}: {error.problem}",
            reason="WRONG_EXPRESSION",
            remedy=error.hint or "schedctl cron explain '*/5 * * * *'",
        ) from None
    beside = None
    if files or with_jobs:
        beside = _beside(session, files, tz, job, found.instants, with_jobs=with_jobs)
    if not session.tabular:
        data = {
            "expression": found.expression,
            "timeZone": found.time_zone,
            "description": found.description,
            "next": [at.isoformat() for at in found.instants],
            "notes": list(found.notes),
        }
        show_data(session, data if beside is None else data | {"beside": beside})
        return
    click.echo(found.description)
    for number, at in enumerate(found.instants):
        others = "" if beside is None else f"  {beside[number]:,} more in this minute"
        click.echo(f"  {at.isoformat(sep=' ')}  {at:%a}{others}")
    for note in found.notes:
        click.echo(f"note: {note}")


def _beside(
    session: Session,
    files: Sequence[str],
    tz: str,
    job: str,
    instants: Sequence[datetime],
    *,
    with_jobs: bool,
) -> list[int]:
    """Count the other schedules that start in the minute of each time; `job` isn't counted."""
    from schedctl.timetables import timetables
    from schedd.core.schedule.timetable.load import beside

    tables = [timetables.given(session, (), files, tz, None)] if files else []
    tables += [timetables.of_cluster(session)] if with_jobs else []
    entries = [one for table in tables for one in table.entries if not job or one.name != job]
    found, wrong = beside(entries, instants)
    for number, table in enumerate(tables):
        timetables.report_left_out(table, [] if number else wrong)
    return found
