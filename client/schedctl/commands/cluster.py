"""`schedctl cluster` and `schedctl audit`."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import click

from schedclient import ApiError, Client, Cluster, Finding, LeaderTransfer
from schedclient.values.reading import value_of
from schedctl.columns import AUDIT, FINDINGS, MEMBERS, SHARD_MOVES, SHARDS
from schedctl.options.global_options import (
    Command,
    CommandGroup,
    flag,
    limit_option,
    option,
    pass_session,
)
from schedctl.options.types import PAST
from schedctl.output import (
    MARKS,
    ValueTable,
    instant,
    length,
    message,
    show_facts,
    show_list,
    show_listing,
    show_one,
)
from schedctl.session import EXTRA_TIMEOUT, Session, known
from schedproto.v1 import cluster_service_pb2 as wire

# `schedctl cluster doctor`: the checks of the cluster, and of this machine's clock.
#
# Exit codes: 0 no bad finding (warnings are fine), 1 a bad finding.

OFF: Final = timedelta(seconds=1)
BAD: Final = 1


@click.command(cls=Command)
@pass_session
def doctor(session: Session) -> None:
    """Check etcd, PostgreSQL, clocks, members and workers, and print a remedy for each problem.

    The command exits with 1 if a check is bad, and with 0 if there are only warnings.
    """
    found = session.run(lambda client: client.cluster.doctor())
    findings = [*found.findings, this_machine(found.now, datetime.now(UTC))]
    if session.output == "table":
        _show(session, findings)
    else:
        show_list(session, findings, FINDINGS)
    if any(one.severity == "BAD" for one in findings):
        click.get_current_context().exit(BAD)


def this_machine(cluster_time: datetime, here: datetime) -> Finding:
    """Compare this machine's clock with cluster time, to the accuracy of one call."""
    off = here - cluster_time
    finding = wire.Finding(
        area="clocks",
        severity=wire.Finding.SEVERITY_OK,
        check="wall clock",
        subject="this machine",
        what=f"{off.total_seconds() * 1000:+.0f} ms",
    )
    if abs(off) > OFF:
        finding.severity = wire.Finding.SEVERITY_WARN
        finding.why = "relative times in commands and tables are off by the same amount"
        finding.remedy = "start a time service (chrony, systemd-timesyncd)"
    return value_of(Finding, finding)


def _show(session: Session, findings: list[Finding]) -> None:
    """Print the findings by area, with reason and remedy below those that aren't ok."""
    order = [*dict.fromkeys(one.area for one in findings)]
    area = ""
    for one in sorted(findings, key=lambda each: order.index(each.area)):
        if one.area != area:
            area = one.area
            click.echo(click.style(area, bold=True) if session.colour else area, color=True)
        mark, colour = MARKS[one.severity]
        word = f"{mark} {one.severity.lower():<4}"
        word = click.style(word, fg=colour) if session.colour else word
        about = f"{one.check} ({one.subject})" if one.subject else one.check
        click.echo(f"  {word}  {about}: {one.what}", color=True)
        if one.why:
            click.echo(f"          why: {one.why}")
        if one.remedy:
            click.echo(f"          do:  {one.remedy}")
    counts = {word: sum(one.severity == word for one in findings) for word in ("OK", "WARN", "BAD")}
    click.echo(f"{counts['OK']} ok, {counts['WARN']} warn, {counts['BAD']} bad")


T = TypeVar("T")


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Manage the cluster: its leader, members and shards."""


@cluster.command()
@pass_session
def status(session: Session) -> None:
    """Show the state of the cluster: leader, members, workers, jobs and runs."""
    show_status(session, session.run(lambda client: client.cluster.status()))


def show_status(session: Session, found: Cluster) -> None:
    if not session.tabular:
        show_one(session, found, ValueTable(Cluster, "cluster_id"))
        return
    pause = f"by {found.paused_by}, since {instant(session, found.paused_at)}"
    pause += f": {found.pause_note}" if found.pause_note else ""
    show_facts(
        session,
        [
            ("Cluster", found.cluster_id),
            ("State", "RECOVERY" if found.recovering else "PAUSED" if found.paused else None),
            ("Paused", pause if found.paused else None),
            *(("Problem", one) for one in found.problems),
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


@cluster.command("transfer-leader")
@click.argument("member", required=False)
@option("--reason", "Reason to store in the audit log.  [default: no reason]", default="")
@pass_session
def transfer_leader(session: Session, member: str | None, reason: str) -> None:
    """Transfer leadership to MEMBER, or to any member that isn't the leader.

    Jobs continue to run during the transfer: members fire and dispatch without the leader.
    """
    if member is not None and not member.strip():  # such as an unset shell variable
        raise click.UsageError(
            "the argument MEMBER is empty: give the name of a member, or leave MEMBER out to"
            " transfer leadership to any other member"
        )
    wanted = member or ""
    moved = session.run(lambda client: client.cluster.transfer_leader(wanted, reason=reason))
    if not session.tabular:
        show_one(session, moved, ValueTable(LeaderTransfer, "new_leader"))
        return
    took = f"{length(moved.duration)}, term {moved.old_term} → {moved.new_term}"
    click.echo(f"{moved.old_leader} → {moved.new_leader} in {took}")


@cluster.command()
@flag("--dry-run", "Preview: show the moves, make none, exit 1 if there are moves.")
@pass_session
def rebalance(session: Session, dry_run: bool) -> None:
    """Move shards (groups of jobs) to the members that should own them; list the moves.

    The leader moves shards automatically, once per second. Usually no shard needs to move.
    """
    moves = session.run(lambda client: client.cluster.rebalance(dry_run=dry_run))
    if session.tabular and not moves:
        message("no shard needs to move")
    else:
        show_list(session, moves, SHARD_MOVES)
    if dry_run and moves:
        click.get_current_context().exit(1)


@cluster.command()
@option("--note", "Note to show with the pause.  [default: no note]", default="")
@pass_session
def pause(session: Session, note: str) -> None:
    """Pause the cluster: create and start no run until `cluster resume`.

    Running runs continue. Triggered and submitted runs wait until the cluster is resumed. The
    command returns when no more runs can start.
    """
    session.confirm("pause", "the cluster")
    show_status(session, session.run(lambda client: client.cluster.pause(note=note)))


@cluster.command()
@option(
    "--catch-up/--no-catch-up",
    "Apply each job's catch-up policy to its scheduled times in the pause.  [default: no catch-up]",
    default=None,
)
@option(
    "--catch-up-since TIME|AGE",
    "Apply each job's catch-up policy to its scheduled times since this time; 2h is 2 hours"
    " ago.  [default: no catch-up]",
    type=PAST,
)
@pass_session
def resume(session: Session, catch_up: bool | None, catch_up_since: datetime | None) -> None:
    """Resume the cluster. Without catch-up, the scheduled times in the pause are skipped.

    After a restore of the database, the cluster is paused in the state RECOVERY. Resume it then
    with --catch-up, --no-catch-up or --catch-up-since.
    """
    if catch_up is not None and catch_up_since is not None:
        raise click.UsageError(
            "--catch-up-since can't be combined with --catch-up or --no-catch-up: give one of"
            " these options"
        )

    async def both(client: Client) -> tuple[Cluster | None, Cluster]:
        before = await known(client.cluster.status(deadline=EXTRA_TIMEOUT))
        after = await client.cluster.resume(catch_up=catch_up, catch_up_since=catch_up_since)
        return before, after

    before, after = session.run(both)
    show_status(session, after)
    if before is not None and not before.paused:
        message("the cluster wasn't paused; nothing changed")


@cluster.command()
@pass_session
def members(session: Session) -> None:
    """List members, the schedd processes."""
    found = read_with_troubles(session, lambda client: client.cluster.members())
    show_list(session, found, MEMBERS)


@cluster.command()
@pass_session
def shards(session: Session) -> None:
    """List shards (groups of jobs), with the member that owns each shard."""
    found = read_with_troubles(session, lambda client: client.cluster.shards())
    show_list(session, found, SHARDS)


def read_with_troubles(session: Session, read: Callable[[Client], Awaitable[T]]) -> T:
    """Read from a member, and print the problems of the cluster with a table. One problem may be
    that the member's view of the cluster is outdated.
    """

    async def both(client: Client) -> tuple[T, list[str]]:
        found = await read(client)
        try:
            if not session.tabular:
                return found, []
            return found, [*(await client.cluster.status(deadline=EXTRA_TIMEOUT)).problems]
        except ApiError as unknown:
            return found, [f"the state of the cluster is unknown: {unknown.what}"]

    found, problems = session.run(both)
    for problem in problems:
        message(f"problem: {problem}")
    return found


cluster.add_command(doctor)


@click.group(cls=CommandGroup)
def audit() -> None:
    """Read the audit log: who changed what, and which results of workers were rejected."""


@audit.command("list")
@option(
    "--action",
    "Action of the entries to list, such as create or result.  [default: all actions]",
    default="",
)
@option(
    "--object",
    "Object of the entries to list, such as job/default/etl.  [default: all objects]",
    "of",
    default="",
)
@option(
    "--run RUN", "Id of the run whose entries to list.  [default: all runs]", "run_id", default=""
)
@limit_option
@pass_session
def list_audit(session: Session, action: str, of: str, run_id: str, limit: int | None) -> None:
    """List entries of the audit log, newest first."""
    show_listing(
        session,
        limit,
        lambda client, most: client.audit.list(action=action, of=of, run_id=run_id, limit=most),
        AUDIT,
    )
