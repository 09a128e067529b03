"""`schedctl worker`: who runs the work, and who is to take no more of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import click

from schedclient import Client, Worker
from schedctl.columns import WORKERS, facts
from schedctl.commands.cluster import seen
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.output import message, show_facts, show_list, show_one
from schedctl.run_follower import to_its_end
from schedctl.session import Session

UNDRAINED: Final = "it was undrained"
AWAY: Final = "it isn't there"
ANEW: Final = "it was started anew"
_AGAIN: Final = "what still ran on it was given back, or is done again"
INSTEAD: Final[Mapping[str, str]] = {
    UNDRAINED: "was undrained, not drained: it is given work again",
    AWAY: f"is lost, not drained: {_AGAIN} elsewhere; schedctl worker undrain {{name}}",
    ANEW: f"was started anew, not drained: {_AGAIN}; schedctl worker undrain {{name}}",
}
"""How a drain that is waited for ends otherwise: as it stands, and what that means."""


@click.group(cls=CommandGroup)
def worker() -> None:
    """Workers: the workerd processes that run the work."""


@worker.command("list")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def list_workers(session: Session, limit: int | None) -> None:
    """Every worker."""
    most = session.limit(limit)

    async def listed(client: Client) -> list[Worker]:
        return [one async for one in client.workers.list()]

    found = seen(session, listed)
    show_list(session, found[:most], WORKERS, lambda one: one.name)
    if limit is None and most is not None and len(found) > most:
        message(f"these are the first {most}: --limit N shows more, -o json all")


@worker.command()
@click.argument("name")
@pass_session
def describe(session: Session, name: str) -> None:
    """One worker."""
    found = session.run(lambda client: client.workers.get(name))
    if session.tabular:
        show_facts(session, facts(WORKERS, found))
    else:
        show_one(session, found, WORKERS, lambda one: one.name)


@worker.command()
@click.argument("name")
@click.option("--reason", default="", help="Why; everybody sees it.")
@click.option(
    "--wait",
    is_flag=True,
    help="Stay until nothing runs on it and its results are stored; tell how far it is.",
)
@pass_session
def drain(session: Session, name: str, reason: str, wait: bool) -> None:
    """Give it no new work, also after its next start, until it is undrained.

    What it runs it finishes. --wait ends with 1 where the worker is lost or started anew meanwhile
    (what ran on it may be done again) or undrained. Of one that was drained before and is LOST
    there is nothing to wait for: 0.
    """
    otherwise = ""

    async def work(client: Client) -> Worker:
        nonlocal otherwise
        drained = await client.workers.drain(name, reason=reason)
        if not wait or drained.state == "LOST":
            return drained
        found = await to_its_end(
            session,
            drained,
            client.workers.watch(name),
            lambda found: _otherwise(drained, found) or _left(found),
            lambda found: bool(_otherwise(drained, found)) or _done(found),
            name="drain",
            remedy=f"see `schedctl worker describe {name}`, or `schedctl worker undrain {name}`",
        )
        otherwise = _otherwise(drained, found)
        return found

    found = session.run(work)
    if not session.tabular:
        show_one(session, found, WORKERS, lambda one: one.name)
    if otherwise:
        message(f"{name} {INSTEAD[otherwise].format(name=name)}")
        click.get_current_context().exit(1)
    done = "drained" if wait else "draining"
    message(f"{done} {name}: {_left(found)}; schedctl worker undrain {name}")


@worker.command()
@click.argument("name")
@click.option("--reason", default="", help="Why; it stands in the audit.")
@pass_session
def undrain(session: Session, name: str, reason: str) -> None:
    """Give it work again."""

    async def both(client: Client) -> tuple[Worker, Worker]:
        before = await client.workers.get(name)
        return before, await client.workers.undrain(name, reason=reason)

    before, after = session.run(both)
    if not session.tabular:
        show_one(session, after, WORKERS, lambda one: one.name)
    message(f"undrained {name}" if before.drained_at else f"{name} wasn't drained")


def _otherwise(drained: Worker, found: Worker) -> str:
    """What became of it other than that it is drained, one of INSTEAD; empty where that goes on."""
    if found.drained_at is None:
        return UNDRAINED
    if found.state == "LOST":
        return AWAY
    other = found.incarnation != drained.incarnation
    return ANEW if other and _started(found) > _started(drained) else ""


def _started(one: Worker) -> datetime:
    return one.started_at or datetime.min.replace(tzinfo=UTC)


def _done(found: Worker) -> bool:
    """Whether nothing is done again, whatever becomes of it."""
    under_way = found.unheard or found.running or found.unstored
    return found.state == "DRAINING" and not under_way


def _left(found: Worker) -> str:
    """What a drain still waits for."""
    if found.state == "LOST":
        return AWAY
    if found.unheard:
        return "it isn't known what runs on it: no member hears it"
    told = [f"{found.running} still running"] if found.running else []
    if found.unstored:
        what = "result isn't" if found.unstored == 1 else "results aren't"
        why = f": {found.refuses}" if found.refuses else ""
        told += [f"{found.unstored} {what} stored yet{why}"]
    if not told and found.state != "DRAINING":  # its figures are of before it heard of the drain
        return "the worker hasn't reported its runs yet"
    return "; ".join(told) or "nothing runs on it"
