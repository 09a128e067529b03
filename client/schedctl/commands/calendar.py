"""`schedctl calendar`: named days and times that jobs exclude."""

from __future__ import annotations

from typing import Any

import click

from schedclient import Calendar, CalendarSpec, Client
from schedctl.columns import CALENDARS
from schedctl.failure import CommandFailure
from schedctl.manifests import manifests
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.output import message, show_data, show_list, show_listing
from schedctl.session import Guard, Session


@click.group(cls=CommandGroup)
def calendar() -> None:
    """Calendars: days and times that jobs exclude."""


def _name(one: Calendar) -> str:
    return one.name


@calendar.command("list")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def list_calendars(session: Session, limit: int | None) -> None:
    """Calendars, by name, with how many jobs use each."""
    show_listing(
        session, limit, lambda client, most: client.calendars.list(limit=most), CALENDARS, _name
    )


@calendar.command()
@click.argument("name", required=False)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE|DIR|-", help="Manifests.")
@click.option("--date", "dates", multiple=True, metavar="2026-12-25", help="12-25: each year.")
@click.option("--weekday", "weekdays", multiple=True, metavar="sat")
@click.option(
    "--range", "ranges", multiple=True, metavar="2026-12-24..2027-01-02", help="Both inclusive."
)
@click.option("--cron", multiple=True, metavar="EXPR", help="Five fields: minutes. Six: seconds.")
@click.option("--tz", type=Guard(), metavar="ZONE", help="[default: that of each job]")
@click.option("--roll", metavar="next|previous|none", help="[default: none]")
@click.option("--dry-run", is_flag=True, help="Check only; nothing is stored.")
@pass_session
def apply(
    session: Session, /, name: str | None, files: tuple[str, ...], dry_run: bool, **flags: Any
) -> None:
    """Make a calendar, or write its next version: by flags, or from manifests (kind: calendar).

    What isn't named is no part of the new version. Ends when every job goes by it.
    """
    given = any(flags.values())
    if bool(files) == (name is not None) or (files and given):
        raise CommandFailure(
            "give either NAME with flags, or -f FILE",
            reason="USAGE",
            remedy="schedctl calendar apply weekends --weekday sat --weekday sun",
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
    show_list(session, applied, CALENDARS, _name)
    if dry_run:
        message("checked; nothing was stored")


@calendar.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@pass_session
def delete(session: Session, names: tuple[str, ...]) -> None:
    """Delete calendars that no job uses."""
    for name in names:
        session.confirm("delete", name)

    async def work(client: Client) -> None:
        for name in names:
            await client.calendars.delete(name)
            message(f"deleted {name}")

    session.run(work)
    if not session.tabular:
        show_data(session, {"deleted": True})


def _spec(flags: dict[str, Any]) -> CalendarSpec:
    spec: CalendarSpec = {
        "dates": list(flags["dates"]),
        "weekdays": list(flags["weekdays"]),
        "ranges": [_range(text) for text in flags["ranges"]],
        "cron": list(flags["cron"]),
    }
    if flags["tz"] is not None:
        spec["time_zone"] = flags["tz"]
    if flags["roll"] is not None:
        spec["roll"] = flags["roll"]
    return spec


def _range(text: str) -> dict[str, str]:
    first, dots, last = text.partition("..")
    return {"from": first.strip(), "to": (last if dots else first).strip()}


def _of_files(files: tuple[str, ...]) -> list[tuple[str, Any]]:
    reading = manifests.read_or_fail(files)
    others = [("job", one.where) for one in reading.manifests]
    others += [("pool", one.where) for one in reading.pools]
    for kind, where in others:
        raise CommandFailure(
            f"{where}: is a {kind}, no calendar",
            reason="WRONG_MANIFEST",
            remedy="schedctl apply -f takes all kinds",
        )
    return [(one.calendar.name, one.calendar) for one in reading.calendars]
