"""`schedctl cluster`, `audit`: who is there, and what was done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

import click

from schedclient import ApiError, Client, Cluster
from schedctl.columns import AUDIT, MEMBERS, SHARD_MOVES, SHARDS
from schedctl.commands.doctor import doctor
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.output import instant, length, message, show_facts, show_list, show_listing, show_one
from schedctl.session import TELL_WITHIN, Past, Session, known

T = TypeVar("T")


@click.group(cls=CommandGroup)
def cluster() -> None:
    """The cluster: its leader, members and shards."""


@cluster.command()
@pass_session
def status(session: Session) -> None:
    """Who leads, and what is under way."""
    show_status(session, session.run(lambda client: client.cluster.status()))


def show_status(session: Session, found: Cluster) -> None:
    """The cluster at a glance."""
    if not session.tabular:
        show_one(session, found, (), lambda one: one.cluster_id)
        return
    show_facts(
        session,
        [
            ("Cluster", found.cluster_id),
            ("State", "RECOVERY" if found.recovering else "PAUSED" if found.paused else None),
            ("Paused", _pause(session, found) if found.paused else None),
            *(("Trouble", one) for one in found.troubles),
            ("Leader", found.leader or "none"),
            ("Term", found.term),
            ("Members", _with_lost(found.members, found.lost_members)),
            ("Workers", _with_lost(found.workers, found.lost_workers)),
            ("Shards", f"{found.owned} of {found.shards} owned"),
            ("Jobs", found.jobs),
            (
                "Runs",
                f"{found.pending} pending, {found.running} running, {found.retrying} retrying",
            ),
            ("Dead letters", found.dead_letters),
            ("Version", found.version),
        ],
    )


def _with_lost(live: int, lost: Sequence[str]) -> str:
    return f"{live}, lost: {', '.join(lost)}" if lost else str(live)


def _pause(session: Session, found: Cluster) -> str:
    since = f"by {found.paused_by}, since {instant(session, found.paused_at)}"
    return f"{since}: {found.pause_note}" if found.pause_note else since


@cluster.command("transfer-leader")
@click.argument("member", required=False)
@click.option("--reason", default="", help="Why; stands in the audit.")
@pass_session
def transfer_leader(session: Session, member: str | None, reason: str) -> None:
    """Have the leader step down for MEMBER, or for the fittest.

    Nothing stands still meanwhile: owners go on firing.
    """
    if member is not None and not member.strip():  # an unset variable, say
        raise click.UsageError("an empty name is no member; leave MEMBER out to let any other lead")
    wanted = member or ""
    moved = session.run(lambda client: client.cluster.transfer_leader(wanted, reason=reason))
    if not session.tabular:
        show_one(session, moved, (), lambda one: one.new_leader)
        return
    took = f"{length(moved.took)}, term {moved.old_term} → {moved.new_term}"
    click.echo(f"{moved.old_leader} → {moved.new_leader} in {took}")


@cluster.command()
@click.option("--dry-run", is_flag=True, help="Only say what would move; exit 1 if anything would.")
@pass_session
def rebalance(session: Session, dry_run: bool) -> None:
    """Move every shard to where it should be now, and say what moved.

    The leader does so by itself once a second: there is seldom anything to move.
    """
    moves = session.run(lambda client: client.cluster.rebalance(dry_run=dry_run))
    if session.tabular and not moves:
        message("every shard is where it should be")
    else:
        show_list(session, moves, SHARD_MOVES, lambda one: str(one.shard))
    if dry_run and moves:
        click.get_current_context().exit(1)


@cluster.command()
@click.option("--note", default="", help="Why; everybody sees it.")
@pass_session
def pause(session: Session, note: str) -> None:
    """Fire and start nothing until it is resumed.

    What runs goes on, and calls still work: what is triggered or submitted waits. Returns when
    nothing starts any more.
    """
    session.confirm("pause", "the cluster")
    show_status(session, session.run(lambda client: client.cluster.pause(note=note)))


@cluster.command()
@click.option(
    "--catch-up/--no-catch-up",
    default=None,
    help="What fell due in the pause goes by each job's catch-up policy, as after an outage.",
)
@click.option(
    "--catch-up-since",
    type=Past(),
    metavar="INSTANT|AGO",
    help="Only what fell due from then on does.",
)
@pass_session
def resume(session: Session, catch_up: bool | None, catch_up_since: datetime | None) -> None:
    """Fire and start again; what fell due in the pause is SKIPPED (PAUSED).

    In RECOVERY, after the database went back, one of the three has to be chosen.
    """
    if catch_up is not None and catch_up_since is not None:
        raise click.UsageError("--catch-up-since says from when on: leave --catch-up out")

    async def both(client: Client) -> tuple[Cluster | None, Cluster]:
        before = await known(client.cluster.status(deadline=TELL_WITHIN))
        after = await client.cluster.resume(catch_up=catch_up, catch_up_since=catch_up_since)
        return before, after

    before, after = session.run(both)
    show_status(session, after)
    if before is not None and not before.paused:
        message("the cluster wasn't paused: there was nothing to resume")


@cluster.command()
@pass_session
def members(session: Session) -> None:
    """Every schedd process."""
    found = seen(session, lambda client: client.cluster.members())
    show_list(session, found, MEMBERS, lambda one: one.name)


@cluster.command()
@pass_session
def shards(session: Session) -> None:
    """Every partition of the jobs, and who owns it."""
    found = seen(session, lambda client: client.cluster.shards())
    show_list(session, found, SHARDS, lambda one: str(one.shard))


def seen(session: Session, read: Callable[[Client], Awaitable[T]]) -> T:
    """What a member sees of the cluster; a person is told what is wrong with it, which may be that
    the member sees it as it was.
    """

    async def both(client: Client) -> tuple[T, list[str]]:
        found = await read(client)
        try:
            if not session.tabular:
                return found, []
            return found, [*(await client.cluster.status(deadline=TELL_WITHIN)).troubles]
        except ApiError as unknown:
            return found, [f"how the cluster stands isn't known: {unknown.what}"]

    found, troubles = session.run(both)
    for trouble in troubles:
        message(f"trouble: {trouble}")
    return found


cluster.add_command(doctor)


@click.group(cls=CommandGroup)
def audit() -> None:
    """The audit: what was done, what was refused."""


@audit.command("list")
@click.option("--action", default="", help="Of this kind, such as create or result.")
@click.option("--object", "of", default="", help="On this object, such as job/default/etl.")
@click.option("--run", "run_id", default="", metavar="RUN", help="About this run.")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def list_audit(session: Session, action: str, of: str, run_id: str, limit: int | None) -> None:
    """Entries, newest first."""
    show_listing(
        session,
        limit,
        lambda client, most: client.audit.list(action=action, of=of, run_id=run_id, limit=most),
        AUDIT,
        lambda one: one.object,
    )
