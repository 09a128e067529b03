"""`schedctl worker`: list, describe, drain and undrain workers."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import click

from schedclient import Client, Worker
from schedctl.columns import WORKERS
from schedctl.commands.cluster import read_with_troubles
from schedctl.options.global_options import CommandGroup, flag, limit_option, option, pass_session
from schedctl.output import message, show_fields, show_list, show_one
from schedctl.run_follower import follow_to_end
from schedctl.session import Session

UNDRAINED: Final = "the worker was undrained"
LOST: Final = "the worker is lost"
STOPPED: Final = "the worker isn't running"
RESTARTED: Final = "the worker was restarted"
_UNDO: Final = "to send it runs again: schedctl worker undrain {name}"
_RUNS: Final = "its remaining runs were returned or start again"
NOT_DRAINED: Final[Mapping[str, str]] = {
    UNDRAINED: "was undrained before the drain completed: it gets runs again",
    LOST: f"was lost before the drain completed: {_RUNS} elsewhere; {_UNDO}",
    STOPPED: f"was stopped before the drain completed: {_RUNS} elsewhere; {_UNDO}",
    RESTARTED: f"was restarted before the drain completed: {_RUNS}; {_UNDO}",
}
"""Ends of a drain other than its completion, with their messages."""
_AWAY: Final[Mapping[str, str]] = {"LOST": LOST, "STOPPED": STOPPED}
"""States of a worker that isn't running."""


@click.group(cls=CommandGroup)
def worker() -> None:
    """Manage workers: the workerd processes that execute runs."""


@worker.command("list")
@limit_option
@pass_session
def list_workers(session: Session, limit: int | None) -> None:
    """List workers."""
    most = session.limit(limit)

    async def listed(client: Client) -> list[Worker]:
        return [one async for one in client.workers.list()]

    found = read_with_troubles(session, listed)
    show_list(session, found[:most], WORKERS)
    if limit is None and most is not None and len(found) > most:
        message(f"only the first {most} are shown: --limit N shows more, -o json all")


@worker.command()
@click.argument("name")
@pass_session
def describe(session: Session, name: str) -> None:
    """Show all fields of a worker."""
    show_fields(session, session.run(lambda client: client.workers.get(name)), WORKERS)


@worker.command()
@click.argument("name")
@option("--reason", "Reason to show with the drain.  [default: no reason]", default="")
@flag(
    "--wait",
    "Show progress, and wait until the worker's runs have ended and their results are stored.",
)
@pass_session
def drain(session: Session, name: str, reason: str, wait: bool) -> None:
    """Drain a worker: send it no new runs, also after a restart, until `worker undrain`.

    Runs in progress finish. With --wait, the command exits with 1 if the worker is lost, restarted
    or undrained before its runs have ended; these runs may then start again. If the worker is
    already LOST or STOPPED, the command exits with 0 at once.
    """
    instead = ""

    async def work(client: Client) -> Worker:
        nonlocal instead
        drained = await client.workers.drain(name, reason=reason)
        if not wait or drained.state in _AWAY:
            return drained
        found = await follow_to_end(
            session,
            drained,
            client.workers.watch(name),
            lambda found: _instead(drained, found) or _remaining_work(found),
            lambda found: bool(_instead(drained, found)) or _done(found),
            name=f"drain of {name}",
            remedy=f"schedctl worker describe {name}, or schedctl worker undrain {name}",
        )
        instead = _instead(drained, found)
        return found

    found = session.run(work)
    if not session.tabular:
        show_one(session, found, WORKERS)
    if instead:
        message(f"{name} {NOT_DRAINED[instead].format(name=name)}")
        click.get_current_context().exit(1)
    done = "drained" if wait else "draining"
    message(f"{done} {name}: {_remaining_work(found)}; {_UNDO.format(name=name)}")


@worker.command()
@click.argument("name")
@option("--reason", "Reason to store in the audit log.  [default: no reason]", default="")
@pass_session
def undrain(session: Session, name: str, reason: str) -> None:
    """Undrain a worker: send it new runs again."""

    async def both(client: Client) -> tuple[Worker, Worker]:
        before = await client.workers.get(name)
        return before, await client.workers.undrain(name, reason=reason)

    before, after = session.run(both)
    if not session.tabular:
        show_one(session, after, WORKERS)
    message(f"undrained {name}" if before.drained_at else f"{name} wasn't drained")


def _instead(drained: Worker, found: Worker) -> str:
    """Return the key in NOT_DRAINED if the drain can't complete any more; else empty."""
    if found.drained_at is None:
        return UNDRAINED
    if found.state in _AWAY:
        return _AWAY[found.state]
    other = found.incarnation != drained.incarnation
    return RESTARTED if other and _started(found) > _started(drained) else ""


def _started(one: Worker) -> datetime:
    return one.started_at or datetime.min.replace(tzinfo=UTC)


def _done(found: Worker) -> bool:
    """Return whether the drain is complete: no run would start again if the worker were lost."""
    in_progress = found.heartbeats_missing or found.running or found.unstored_results
    return found.state == "DRAINING" and not in_progress


def _remaining_work(found: Worker) -> str:
    """Return what the drain still waits for."""
    if found.state in _AWAY:
        return _AWAY[found.state]
    if found.heartbeats_missing:
        return "its runs are unknown: no member receives its heartbeats"
    parts = [f"{found.running} still running"] if found.running else []
    if found.unstored_results:
        what = "result isn't" if found.unstored_results == 1 else "results aren't"
        why = f": {found.refusal_reason}" if found.refusal_reason else ""
        parts += [f"{found.unstored_results} {what} stored yet{why}"]
    if not parts and found.state != "DRAINING":  # its numbers are older than the drain
        return "the worker hasn't reported its runs yet"
    return "; ".join(parts) or "no run in progress"
