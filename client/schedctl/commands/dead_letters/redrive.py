"""`schedctl dlq redrive`: dead letters done again, each by name or many at a rate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import click

from schedclient import ApiError, Client, Redrive, RedrivePlan, Run
from schedctl.columns import REDRIVES, RUNS
from schedctl.failure import CommandFailure
from schedctl.options.dead_letters import Chosen, choosing
from schedctl.options.global_options import Command, pass_session
from schedctl.options.payloads import read_payload
from schedctl.output import message, show_data, show_facts, show_list, show_listing, show_one
from schedctl.run_follower import RUN_FAILED, all_succeeded, to_its_end
from schedctl.session import Guard, Session
from schedkit.text import rate as rates

WAIT: Final = (
    "Stay until its runs have ended; tell how far it is. Exit 1 if one didn't succeed, or it was"
    " stopped."
)


class RedriveRateType(click.ParamType[float]):
    """Runs in a time, as `100/s`, `6/m` or `90/h`; a bare number is a second's."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Runs a second, more than none."""
        try:
            count, per = rates.parse(str(value), bare="s")
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return float(count) / per.total_seconds()


@click.command(cls=Command)
@choosing
@click.option(
    "--rate", type=RedriveRateType(), metavar="100/s|6/m", help="So many at most.  [default: 10/s]"
)
@click.option("--payload", metavar="JSON|@FILE|-", help="Instead of each run's own.")
@click.option("--dry-run", is_flag=True, help="Say how many; nothing is stored.")
@click.option("--wait", is_flag=True, help=WAIT)
@click.option("--note", default="", help="Why; it stands in the audit.")
@click.option(
    "--idempotency-key", type=Guard(), metavar="KEY", help="The same key starts nothing twice."
)
@pass_session
def redrive(session: Session, /, chosen: Chosen, payload: str | None, **flags: Any) -> None:
    """Do dead letters again, each by a new run of its job as it is now.

    RUN… at once; a kind of error, a job or all at a rate, as one redrive. That goes on by
    itself: `dlq redrives` shows how far it is. `--group FINGERPRINT --job JOB --of job` is one row
    of `dlq groups`, `--of submitted` another (without --job: what has no name).
    """
    given = read_payload(payload) if payload is not None else None
    if chosen.run_ids:
        _check_alone(flags)
        _each(session, chosen.run_ids, given)
    else:
        if chosen.all and not flags["dry_run"]:
            session.confirm("redrive the dead letters of", *chosen.names, always=True)
        _many(session, chosen, given, **flags)


@click.command(cls=Command)
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def redrives(session: Session, limit: int | None) -> None:
    """Redrives, newest first, with how far they are, and how their runs stand."""
    show_listing(session, limit, _each_counted, REDRIVES, _id)


async def _each_counted(client: Client, most: int | None) -> AsyncIterator[Redrive]:
    """A list is told without how their runs stand: that is counted one by one."""
    async for one in client.redrives.list(limit=most):
        yield await client.redrives.get(one.redrive_id)


@click.command(cls=Command)
@click.argument("redrive_id", metavar="REDRIVE")
@pass_session
def stop(session: Session, redrive_id: str) -> None:
    """Make no more runs of a redrive until it is resumed; those that there are go on."""
    stopped = session.run(lambda client: client.redrives.stop(redrive_id))
    if not session.tabular:
        show_one(session, stopped, REDRIVES, _id)
    message(f"stopped {redrive_id}: {_told_left(stopped)}; schedctl dlq resume {redrive_id}")


@click.command(cls=Command)
@click.argument("redrive_id", metavar="REDRIVE")
@click.option("--wait", is_flag=True, help=WAIT)
@pass_session
def resume(session: Session, redrive_id: str, wait: bool) -> None:
    """Go on with what is left of a redrive that was stopped."""

    async def work(client: Client) -> Redrive:
        goes_on = await client.redrives.resume(redrive_id)
        return await _to_its_end(session, client, goes_on) if wait else goes_on

    _show(session, session.run(work), waited=wait)


def _check_alone(flags: dict[str, Any]) -> None:
    """Runs that are named are done again at once, and by the ids of their own."""
    for name in (name for name, value in flags.items() if value):
        raise CommandFailure(
            f"--{name.replace('_', '-')} goes with --group, --job or --all, and with no RUN",
            remedy="leave it out: runs that are named are done again at once, each only once",
        )


def _each(session: Session, run_ids: tuple[str, ...], payload: object) -> None:
    """Do these again; what can't be is told, and doesn't keep the others from it."""
    refused: list[ApiError] = []

    async def work(client: Client) -> list[Run]:
        made = []
        for run_id in run_ids:
            try:
                made.append(await client.runs.retry(run_id, payload=payload))
            except ApiError as error:
                refused.append(error)
        return made

    made = session.run(work)
    if made or not refused:
        show_list(session, made, RUNS, lambda one: one.run_id)
    for error in refused[1:]:
        message(f"error: {error.what}")
    if refused:
        raise refused[0]


def _many(
    session: Session,
    chosen: Chosen,
    payload: object,
    *,
    rate: float | None,
    dry_run: bool,
    wait: bool,
    note: str,
    idempotency_key: str | None,
) -> None:
    async def work(client: Client) -> RedrivePlan | Redrive:
        plan = await client.dead_letters.redrive(
            **chosen.asked,
            rate=rate or 0.0,
            payload=payload,
            dry_run=dry_run,
            note=note,
            idempotency_key=idempotency_key,
        )
        if plan.redrive is None or not wait:
            return plan.redrive or plan
        return await _to_its_end(session, client, plan.redrive)

    done = session.run(work)
    if isinstance(done, RedrivePlan):
        _show_dry(session, done)
    else:
        _show(session, done, waited=wait)


def _show_dry(session: Session, plan: RedrivePlan) -> None:
    if session.tabular:
        show_facts(session, [("Dead letters", plan.total)])
    elif session.output != "name":
        show_data(session, plan.to_json(snake=session.output == "yaml"))
    message("nothing was stored")


def _show(session: Session, made: Redrive, *, waited: bool) -> None:
    show_one(session, made, REDRIVES, _id)
    if made.state == "STOPPED":
        message(f"it was stopped: {_told_left(made)}; schedctl dlq resume {made.redrive_id}")
    elif made.state == "OPEN":
        message(f"it goes on: schedctl dlq redrives; schedctl dlq stop {made.redrive_id}")
    if not waited:
        return
    of = f" --job {made.job}" if made.job else ""
    succeeded = all_succeeded(made.runs, made.made, f"schedctl run list --trigger redrive{of}")
    if made.state == "STOPPED" or not succeeded:
        click.get_current_context().exit(RUN_FAILED)


async def _to_its_end(session: Session, client: Client, made: Redrive) -> Redrive:
    if made.state == "DONE":  # by its key: it doesn't say how its runs stand
        made = await client.redrives.get(made)
    return await to_its_end(
        session,
        made,
        client.redrives.watch(made),
        _progress,
        lambda one: one.ended,
        name=f"redrive {made.redrive_id}",
        remedy=f"schedctl dlq stop {made.redrive_id} stops it",
    )


def _progress(made: Redrive) -> str:
    """`120 of 500 made (100 succeeded, 20 running), 3 left out`."""
    told = ", ".join(f"{count} {state.lower()}" for state, count in sorted(made.runs.items()))
    line = f"{made.made} of {made.total} made" + (f" ({told})" if told else "")
    return line + (f", {made.left_out} left out" if made.left_out else "")


def _told_left(made: Redrive) -> str:
    return f"{made.left:,} of {made.total:,} are left"


def _id(one: Redrive) -> str:
    return one.redrive_id
