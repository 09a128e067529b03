"""`schedctl pool`: jobs that share a concurrency limit, a rate limit, or both."""

from typing import Any

import click

from schedclient import Client, Pool
from schedctl.columns import POOLS
from schedctl.commands.changes import change, delete_each, resume_one
from schedctl.failure import CommandFailure
from schedctl.manifests import job_diff
from schedctl.options.global_options import CommandGroup, flag, limit_option, option, pass_session
from schedctl.options.types import POOL_RATE
from schedctl.output import message, show_fields, show_listing, show_one
from schedctl.session import Session, existing
from schedkit.records import dataclass


@click.group(cls=CommandGroup)
def pool() -> None:
    """Manage pools: jobs that share a concurrency limit or a rate limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEdit:
    """The given fields of a pool; the others are kept."""

    limit: int | None
    no_limit: bool
    rate: str | None
    no_rate: bool

    def check(self) -> None:
        limits, rates = (self.limit, self.no_limit), (self.rate, self.no_rate)
        for name, (given, none) in (("limit", limits), ("rate", rates)):
            if given is not None and none:
                raise CommandFailure(
                    f"--{name} can't be combined with --no-{name}", remedy="give one of them"
                )
        if not any((*limits, *rates)):
            raise CommandFailure(
                "no change is given",
                reason="NO_CHANGE",
                remedy="give --limit N, --no-limit, --rate 100/m or --no-rate",
            )

    async def put(
        self, client: Client, name: str, before: Pool | None, *, validate_only: bool
    ) -> Pool:
        """Change the pool, only if it still has the version of `before`."""
        limit, rate = (before.limit, before.rate) if before else (0, None)
        return await client.pools.set(
            name,
            limit=0 if self.no_limit else self.limit or limit,
            rate=None if self.no_rate else self.rate or rate,
            version=before.version if before else 0,
            validate_only=validate_only,
        )


@pool.command("list")
@limit_option
@pass_session
def list_pools(session: Session, limit: int | None) -> None:
    """List pools by name, with the numbers of their running and waiting runs."""
    show_listing(session, limit, lambda client, most: client.pools.list(limit=most), POOLS)


@pool.command()
@click.argument("name")
@pass_session
def describe(session: Session, name: str) -> None:
    """Show all fields of a pool."""
    found = session.run(lambda client: client.pools.get(name))
    show_fields(session, found, POOLS)


@pool.command("set")
@click.argument("name")
@option(
    "--limit N",
    "Concurrency limit: the highest number of runs in progress at once.  [default: unchanged]",
    type=click.IntRange(min=1),
)
@flag("--no-limit", "Remove the concurrency limit.")
@option(
    "--rate 100/m|3/30s",
    "Rate limit: the highest number of starts in a period; 3/30s is 3 starts"
    " in 30 s.  [default: unchanged]",
    type=POOL_RATE,
)
@flag("--no-rate", "Remove the rate limit.")
@flag("--dry-run", "Preview: show the change, store nothing, exit 1 if there is a change.")
@pass_session
def set_pool(session: Session, /, name: str, dry_run: bool, **flags: Any) -> None:
    """Create a pool, or change the given limits. The change is shown first.

    Running runs continue. A lower limit applies from the next start.
    """
    edit = PoolEdit(**flags)
    edit.check()

    async def work(client: Client) -> tuple[Pool, bool]:
        before = await existing(client.pools.get(name))
        if before is None and edit.limit is None and edit.rate is None:
            raise CommandFailure(
                f"pool {name!r} not found",
                status="NOT_FOUND",
                reason="NO_SUCH_POOL",
                remedy=f"create the pool: schedctl pool set {name} --limit 3",
            )
        after = await edit.put(client, name, before, validate_only=True)
        changes = job_diff.of_pool(before, after)
        for line in changes:
            message(line)
        if dry_run or not changes:
            return after, bool(changes)
        return await edit.put(client, name, before, validate_only=False), False

    after, differs = session.run(work)
    show_one(session, after, POOLS)
    if differs:
        message("nothing was stored")
        click.get_current_context().exit(1)


@pool.command()
@click.argument("name")
@option("--note", "Note to show with the pause.  [default: no note]", default="")
@pass_session
def pause(session: Session, name: str, note: str) -> None:
    """Pause a pool: start none of its runs, scheduled or triggered, until `pool resume`.

    Jobs of the pool continue to fire, and their new runs wait. Running runs continue.
    """
    change(session, lambda client: client.pools.pause(name, note), POOLS)
    message(f"paused {name}")


@pool.command()
@click.argument("name")
@pass_session
def resume(session: Session, name: str) -> None:
    """Resume a paused pool. Its waiting runs start."""
    resume_one(session, name, lambda client: client.pools, POOLS)


@pool.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@pass_session
def delete(session: Session, names: tuple[str, ...]) -> None:
    """Delete the named pools. A pool that a job uses isn't deleted."""
    delete_each(session, names, lambda client, name: client.pools.delete(name))
