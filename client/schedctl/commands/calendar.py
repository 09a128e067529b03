"""`schedctl calendar`: named days and times that jobs exclude."""

from typing import Any

import click

from schedclient import Calendar, CalendarSpec, Client
from schedctl.columns import CALENDARS
from schedctl.commands.changes import delete_each
from schedctl.failure import CommandFailure
from schedctl.manifests import manifests
from schedctl.options.global_options import CommandGroup, flag, limit_option, option, pass_session
from schedctl.options.types import GUARD
from schedctl.output import message, show_list, show_listing
from schedctl.session import Session


@click.group(cls=CommandGroup)
def calendar() -> None:
    """Manage calendars: days and times that jobs exclude."""


@calendar.command("list")
@limit_option
@pass_session
def list_calendars(session: Session, limit: int | None) -> None:
    """List calendars by name, with the number of jobs that use each."""
    show_listing(session, limit, lambda client, most: client.calendars.list(limit=most), CALENDARS)


@calendar.command()
@click.argument("name", required=False)
@option(
    "-f --file FILE|DIR|-",
    "Manifests of calendars: a file, a folder, or - for standard input;"
    " repeatable.  [default: none]",
    "files",
    multiple=True,
)
@option(
    "--date 2026-12-25",
    "Date to exclude; without a year, such as 12-25, in every year; repeatable.  [default: none]",
    "dates",
    multiple=True,
)
@option(
    "--weekday sat",
    "Day of the week to exclude; repeatable.  [default: no day]",
    "weekdays",
    multiple=True,
)
@option(
    "--range 2026-12-24..2027-01-02",
    "Range of dates to exclude, from the first to the last day; repeatable.  [default: none]",
    "ranges",
    multiple=True,
)
@option(
    "--cron EXPR",
    "Cron expression of times to exclude; repeatable. An expression with five fields excludes"
    " whole minutes, with six fields whole seconds.  [default: none]",
    multiple=True,
)
@option(
    "--tz ZONE",
    "IANA time zone in which the calendar is read.  [default: the time zone of each job]",
    type=GUARD,
)
@option(
    "--roll next|previous|none",
    "Day to which an excluded run moves: the next or the previous day that"
    " isn't excluded.  [default: none: the run is omitted]",
)
@flag("--dry-run", "Validate the calendar and store nothing.")
@pass_session
def apply(
    session: Session, /, name: str | None, files: tuple[str, ...], dry_run: bool, **flags: Any
) -> None:
    """Create a calendar or its next version, from options or manifests (kind: calendar).

    The new version has only the rules that this command or manifest gives. The command returns when
    every job that uses the calendar uses the new version.
    """
    given = any(flags.values())
    if bool(files) == (name is not None) or (files and given):
        raise CommandFailure(
            "give either NAME with options, or -f FILE",
            reason="USAGE",
            remedy="for example: schedctl calendar apply weekends --weekday sat --weekday sun",
        )
    todo = _of_files(files) if files else [(name or "", _spec(flags))]

    async def work(client: Client) -> list[Calendar]:
        checked = [
            await client.calendars.apply(one, spec, validate_only=True) for one, spec in todo
        ]
        if dry_run:
            return checked
        return [await client.calendars.apply(one, spec) for one, spec in todo]

    applied = session.run(work)
    show_list(session, applied, CALENDARS)
    if dry_run:
        message("valid; nothing was stored")


@calendar.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@pass_session
def delete(session: Session, names: tuple[str, ...]) -> None:
    """Delete the named calendars. A calendar that a job uses isn't deleted."""
    delete_each(session, names, lambda client, name: client.calendars.delete(name))


def _spec(flags: dict[str, Any]) -> CalendarSpec:
    spans = [text.partition("..") for text in flags["ranges"]]
    spec: CalendarSpec = {
        "dates": list(flags["dates"]),
        "weekdays": list(flags["weekdays"]),
        "ranges": [
            {"from": first.strip(), "to": (last if dots else first).strip()}
            for first, dots, last in spans
        ],
        "cron": list(flags["cron"]),
    }
    if flags["tz"] is not None:
        spec["time_zone"] = flags["tz"]
    if flags["roll"] is not None:
        spec["roll"] = flags["roll"]
    return spec


def _of_files(files: tuple[str, ...]) -> list[tuple[str, Any]]:
    reading = manifests.read_or_fail(files)
    others = [("job", one.where) for one in reading.jobs]
    others += [("pool", one.where) for one in reading.pools]
    for kind, where in others:
        raise CommandFailure(
            f"{where}: expected a calendar, found a {kind}",
            reason="WRONG_MANIFEST",
            remedy="to apply manifests of other kinds: schedctl apply -f FILE",
        )
    return [(one.spec.name, one.spec) for one in reading.calendars]
