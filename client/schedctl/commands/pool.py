"""`schedctl pool`: jobs that share how many runs are under way at once, or how many start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from schedclient import Client, NotFound, Pool
from schedctl.columns import POOLS, facts
from schedctl.failure import CommandFailure
from schedctl.manifests import job_diff
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.output import message, show_data, show_facts, show_listing, show_one
from schedctl.session import TELL_WITHIN, Session, known
from schedkit.protojson import FormErrors, from_json, rate_text
from schedproto.v1 import pool_service_pb2


@click.group(cls=CommandGroup)
def pool() -> None:
    """Pools: jobs that share a limit of runs at once, or a rate of starts."""


def _name(one: Pool) -> str:
    return one.name


class PoolRateType(click.ParamType[str]):
    """Starts in a time, as `100/m` or `3/30s`."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The shortest text of it."""
        try:
            read = from_json({"rate": str(value)}, pool_service_pb2.Pool)
        except FormErrors as error:
            self.fail(error.problems[0].message, param, ctx)
        return rate_text(read.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEdit:
    """What is named of a pool; the rest stays as it is."""

    limit: int | None
    no_limit: bool
    rate: str | None
    no_rate: bool

    def check(self) -> None:
        """Refuse a change of nothing, and one that says two things."""
        limits, rates = (self.limit, self.no_limit), (self.rate, self.no_rate)
        for flag, (given, none) in (("limit", limits), ("rate", rates)):
            if given is not None and none:
                raise CommandFailure(
                    f"--{flag} and --no-{flag} stand beside each other", remedy="give one of them"
                )
        if not any((*limits, *rates)):
            raise CommandFailure(
                "nothing to change",
                reason="NO_CHANGE",
                remedy="give --limit N, --no-limit, --rate 100/m or --no-rate",
            )

    async def put(
        self, client: Client, name: str, before: Pool | None, *, validate_only: bool
    ) -> Pool:
        """Over what was seen, and nothing newer."""
        limit, rate = (before.limit, before.rate) if before else (0, None)
        return await client.pools.set(
            name,
            limit=0 if self.no_limit else self.limit or limit,
            rate=None if self.no_rate else self.rate or rate,
            version=before.version if before else 0,
            validate_only=validate_only,
        )


@pool.command("list")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def list_pools(session: Session, limit: int | None) -> None:
    """Pools, by name, with how many of their runs are under way, and how many wait."""
    show_listing(session, limit, lambda client, most: client.pools.list(limit=most), POOLS, _name)


@pool.command()
@click.argument("name")
@pass_session
def describe(session: Session, name: str) -> None:
    """One pool in full."""
    found = session.run(lambda client: client.pools.get(name))
    if session.tabular:
        show_facts(session, facts(POOLS, found))
    else:
        show_one(session, found, POOLS, _name)


@pool.command("set")
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Runs under way at once.")
@click.option("--no-limit", is_flag=True, help="However many at once.")
@click.option("--rate", type=PoolRateType(), metavar="100/m|3/30s", help="Starts in any such time.")
@click.option("--no-rate", is_flag=True, help="However many in a time.")
@click.option("--dry-run", is_flag=True, help="Show the change; store nothing. Exit 1 if one.")
@pass_session
def set_pool(session: Session, /, name: str, dry_run: bool, **flags: Any) -> None:
    """Make a pool, or change what is named of it and nothing else; the change is shown first.

    What runs goes on; a lower limit holds from the next start on.
    """
    wish = PoolEdit(**flags)
    wish.check()

    async def work(client: Client) -> tuple[Pool, bool]:
        before = await _there(client, name)
        if before is None and wish.limit is None and wish.rate is None:
            raise CommandFailure(
                f"there is no pool {name!r}",
                status="NOT_FOUND",
                reason="NO_SUCH_POOL",
                remedy=f"make it: schedctl pool set {name} --limit 3",
            )
        after = await wish.put(client, name, before, validate_only=True)
        told = job_diff.of_pool(before, after)
        for line in told:
            message(line)
        if dry_run or not told:
            return after, bool(told)
        return await wish.put(client, name, before, validate_only=False), False

    after, differs = session.run(work)
    show_one(session, after, POOLS, _name)
    if differs:
        message("nothing was stored")
        click.get_current_context().exit(1)


@pool.command()
@click.argument("name")
@click.option("--note", default="", help="Why.")
@pass_session
def pause(session: Session, name: str, note: str) -> None:
    """Start nothing of it until `resume`, what is triggered neither.

    Schedules go on, and their runs wait; what runs goes on.
    """
    _change(session, lambda client: client.pools.pause(name, note))
    message(f"paused {name}")


@pool.command()
@click.argument("name")
@pass_session
def resume(session: Session, name: str) -> None:
    """Let the runs of a paused pool start again; those that have waited do, too."""
    idle = False

    async def both(client: Client) -> Pool:
        nonlocal idle
        before = await known(client.pools.get(name, deadline=TELL_WITHIN))
        idle = before is not None and not before.paused
        return await client.pools.resume(name)

    _change(session, both)
    message(f"{name} wasn't paused: there was nothing to resume" if idle else f"resumed {name}")


@pool.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@pass_session
def delete(session: Session, names: tuple[str, ...]) -> None:
    """Delete pools that no job uses."""
    for name in names:
        session.confirm("delete", name)

    async def work(client: Client) -> None:
        for name in names:
            await client.pools.delete(name)
            message(f"deleted {name}")

    session.run(work)
    if not session.tabular:
        show_data(session, {"deleted": True})


def _change(session: Session, call: Callable[[Client], Awaitable[Pool]]) -> None:
    changed = session.run(call)
    if not session.tabular:
        show_one(session, changed, POOLS, _name)


async def _there(client: Client, name: str) -> Pool | None:
    try:
        return await client.pools.get(name)
    except NotFound:
        return None
