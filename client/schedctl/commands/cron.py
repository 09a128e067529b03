"""`schedctl cron`: what expressions mean, and what they add up to. Works without a cluster."""

from __future__ import annotations

from datetime import datetime

import click

from schedctl.failure import Failure
from schedctl.flags import Group, pass_session
from schedctl.output import show_data
from schedctl.session import INSTANT, Session, When
from schedkit.clock import utcnow


@click.group(
    cls=Group,
    lazy={
        "collide": "schedctl.commands.cron_load:collide",
        "diff": "schedctl.commands.cron_lint:diff",
        "forecast": "schedctl.commands.cron_load:forecast",
        "lint": "schedctl.commands.cron_lint:lint",
    },
)
def cron() -> None:
    """Cron expressions."""


@cron.command()
@click.argument("expression")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="IANA name.")
@click.option("--after", type=When(), metavar=INSTANT, help="Exclusive.  [default: now]")
@click.option("--next", "count", default=10, show_default=True, type=click.IntRange(0, 1000))
@click.option("--job", default="", metavar="NAME", help="Whose `H` it is.")
@click.option(
    "--dst-gap",
    type=click.Choice(("run_after", "skip")),
    default="run_after",
    help="A fixed time that the clocks jump over.",
)
@click.option(
    "--dst-overlap",
    type=click.Choice(("first", "second", "both")),
    default="first",
    help="A fixed time that comes twice.",
)
@click.option("--exclude-cron", multiple=True, metavar="EXPR", help="Not at these times.")
@click.option(
    "--calendar",
    "calendars",
    multiple=True,
    metavar="FILE",
    help="Not what these manifests (kind: calendar) name.",
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
) -> None:
    """What an expression means, when it is next, and what changes of the clock do to it."""
    from schedctl import excluding
    from schedd.core.cron import CronError, Dst, Gap, Pass
    from schedd.core.cron import explain as explained

    exclude = excluding.exclude_of(exclude_cron, calendars, tz)
    since, seed = after or utcnow(), f"{session.namespace}/{job}" if job else ""
    dst = Dst(Gap[dst_gap.upper()], Pass[dst_overlap.upper()])
    try:
        told = explained(expression, tz, after=since, count=count, seed=seed, dst=dst)
        if exclude:
            told = excluding.without(told, exclude, since, count, seed, dst)
    except CronError as error:
        raise Failure(
            f"{error.field}: {error.problem}",
            reason="WRONG_EXPRESSION",
            remedy=error.hint or "schedctl cron explain '*/5 * * * *'",
        ) from None
    if not session.tabular:
        show_data(
            session,
            {
                "expression": told.expression,
                "timeZone": told.time_zone,
                "description": told.description,
                "next": [at.isoformat() for at in told.instants],
                "notes": list(told.notes),
            },
        )
        return
    click.echo(told.description)
    for at in told.instants:
        click.echo(f"  {at.isoformat(sep=' ')}  {at:%a}")
    for note in told.notes:
        click.echo(f"note: {note}")
