"""`schedctl dlq`: list, show, discard and redrive dead letters: single ones at once, or many at a
rate.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import click

from schedclient import ApiError, Attempt, Client, DeadLetter, Redrive, RedrivePlan, Run
from schedctl.columns import ATTEMPTS, DEAD, DEAD_GROUPS, ONE_DEAD, REDRIVES, RESOLVED, RUNS
from schedctl.commands.changes import change
from schedctl.failure import CommandFailure
from schedctl.options.dead_letters import Chosen, choosing
from schedctl.options.global_options import (
    CommandGroup,
    flag,
    flag_of,
    key_option,
    limit_option,
    option,
    pass_session,
)
from schedctl.options.job_options import read_payload
from schedctl.options.types import RUN_RATE
from schedctl.output import message, show_data, show_facts, show_list, show_listing, show_one
from schedctl.run_follower import RUN_FAILED, all_succeeded, follow_to_end
from schedctl.session import Session

WAIT: Final = (
    "Show progress, and wait until all runs have ended. Exit with 1 if a run didn't succeed or the"
    " redrive was stopped."
)


@click.group(cls=CommandGroup)
def dlq() -> None:
    """Manage dead letters: runs that failed for good."""


@dlq.command("list")
@option("--job", "Job whose dead letters to show: id or name.  [default: all jobs]", default="")
@option(
    "--fingerprint",
    "List only dead letters whose errors have this fingerprint.  [default: all fingerprints]",
    default="",
)
@option(
    "--redrive ID",
    "Id of a redrive: list only the dead letters that this redrive selected.  [default: all]",
    "redrive_id",
    default="",
)
@flag("--resolved", "Also list redriven and discarded dead letters.")
@limit_option
@pass_session
def list_dead(
    session: Session, job: str, fingerprint: str, redrive_id: str, resolved: bool, limit: int | None
) -> None:
    """List unresolved dead letters, newest first."""
    show_listing(
        session,
        limit,
        lambda client, most: client.dead_letters.list(
            job=job, fingerprint=fingerprint, redrive=redrive_id, resolved=resolved, limit=most
        ),
        RESOLVED if resolved or redrive_id else DEAD,
    )


@dlq.command()
@option("--job", "Job whose dead letters to show: id or name.  [default: all jobs]", default="")
@pass_session
def groups(session: Session, job: str) -> None:
    """List the groups of dead letters, by job and fingerprint, the largest first."""
    found = session.run(lambda client: client.dead_letters.groups(job=job))
    show_list(session, found, DEAD_GROUPS)


@dlq.command()
@click.argument("run_id", metavar="RUN")
@pass_session
def show(session: Session, run_id: str) -> None:
    """Show a dead letter: its error, its resolution and its attempts."""

    async def work(client: Client) -> tuple[DeadLetter, tuple[Attempt, ...]]:
        found = await client.dead_letters.get(run_id)
        return found, await client.runs.attempts(run_id) if session.tabular else ()

    found, attempts = session.run(work)
    if not session.tabular:
        show_one(session, found, DEAD)
        return
    show_facts(session, ONE_DEAD.facts(found))
    if attempts:
        click.echo()
        show_list(session, attempts, ATTEMPTS)
    message(f"output: schedctl run logs {run_id}")
    if found.redriven_as:
        message(f"redriven as: schedctl run get {found.redriven_as}")
    elif found.resolution is None:
        message(f"run it again: schedctl dlq redrive {run_id}")


@dlq.command()
@choosing
@option("--note", "Note to store with the dead letters.  [default: no note]", default="")
@pass_session
def discard(session: Session, chosen: Chosen, note: str) -> None:
    """Discard dead letters: nothing runs again, and the runs are kept.

    Dead letters that wait in an open redrive aren't discarded. `--group FINGERPRINT --job JOB --of
    job` selects one row of `dlq groups`. With `--of submitted` the row is of submitted runs: those
    with the name JOB, or without --job those that have no name.
    """
    for name in chosen.names:
        many = f"discard the dead letters of{chosen.whose}"
        what = "discard dead letter" if chosen.run_ids else many
        session.confirm(what, name, always=True)
    count = session.run(
        lambda client: client.dead_letters.discard(
            run_ids=chosen.run_ids, note=note, **chosen.asked
        )
    )
    if not session.tabular:
        show_data(session, {"discarded": count})
    message(f"discarded {count:,}")
    if others := len(set(chosen.run_ids)) - count if chosen.run_ids else 0:
        message(f"unchanged: {others:,}, already resolved or queued for a redrive")


@dlq.command()
@choosing
@option(
    "--rate 100/s|6/m",
    "Highest rate at which new runs are created.  [default: 10/s]",
    type=RUN_RATE,
)
@option(
    "--payload JSON|@FILE|-", "Payload of the new runs.  [default: the payload of each old run]"
)
@flag("--dry-run", "Preview: show the number of dead letters, store nothing.")
@flag("--wait", WAIT)
@option("--note", "Note to store in the audit log.  [default: no note]", default="")
@key_option("redrive")
@pass_session
def redrive(session: Session, /, chosen: Chosen, payload: str | None, **flags: Any) -> None:
    """Run dead letters again, each as a new run of its job's current definition.

    Dead letters that are named by RUN… run again at once. A selection by --group, --job or --all
    becomes one redrive with a rate limit. The redrive continues in the cluster after the command
    has ended: `dlq redrives` shows its progress.

    The columns of a row of `dlq groups` select the dead letters of that row: --group FINGERPRINT,
    --job JOB and --of job. With `--of submitted`, JOB is the name of submitted runs; leave --job
    out to select submitted runs without a name.
    """
    given = read_payload(payload) if payload is not None else None
    if chosen.run_ids:
        for name in (name for name, value in flags.items() if value):
            raise CommandFailure(
                f"{flag_of(name)} can't be combined with RUN",
                remedy="remove the option, or select by --group, --job or --all instead of RUN",
            )
        _each(session, chosen.run_ids, given)
    else:
        if chosen.all and not flags["dry_run"]:
            session.confirm("redrive the dead letters of", *chosen.names, always=True)
        _many(session, chosen, given, **flags)


@dlq.command()
@limit_option
@pass_session
def redrives(session: Session, limit: int | None) -> None:
    """List redrives with their progress and the states of their runs, newest first."""

    async def each(client: Client, most: int | None) -> AsyncIterator[Redrive]:
        async for one in client.redrives.list(limit=most):  # without the states of the runs
            yield await client.redrives.get(one.redrive_id)

    show_listing(session, limit, each, REDRIVES)


@dlq.command()
@click.argument("redrive_id", metavar="REDRIVE")
@pass_session
def stop(session: Session, redrive_id: str) -> None:
    """Stop a redrive: create no more runs until `dlq resume`. Existing runs continue."""
    stopped = change(session, lambda client: client.redrives.stop(redrive_id), REDRIVES)
    message(f"stopped {redrive_id}: {_remaining(stopped)}; schedctl dlq resume {redrive_id}")


@dlq.command()
@click.argument("redrive_id", metavar="REDRIVE")
@flag("--wait", WAIT)
@pass_session
def resume(session: Session, redrive_id: str, wait: bool) -> None:
    """Resume a stopped redrive."""

    async def work(client: Client) -> Redrive:
        resumed = await client.redrives.resume(redrive_id)
        return await _follow(session, client, resumed) if wait else resumed

    _show(session, session.run(work), waited=wait)


def _each(session: Session, run_ids: tuple[str, ...], payload: object) -> None:
    """Run these again; report the ones that are rejected, and continue with the others."""
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
        show_list(session, made, RUNS)
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
    wait: bool,
    **asked: Any,
) -> None:
    async def work(client: Client) -> RedrivePlan | Redrive:
        plan = await client.dead_letters.redrive(
            **chosen.asked, rate=rate or 0.0, payload=payload, **asked
        )
        if plan.redrive is None or not wait:
            return plan.redrive or plan
        return await _follow(session, client, plan.redrive)

    done = session.run(work)
    if not isinstance(done, RedrivePlan):
        _show(session, done, waited=wait)
        return
    if session.tabular:
        show_facts(session, [("Dead letters", done.total)])
    elif session.output != "name":
        show_data(session, done.to_json(snake=session.output == "yaml"))
    message("nothing was stored")


def _show(session: Session, made: Redrive, *, waited: bool) -> None:
    show_one(session, made, REDRIVES)
    if made.state == "STOPPED":
        message(f"stopped: {_remaining(made)}; schedctl dlq resume {made.redrive_id}")
    elif made.state == "OPEN":
        message(
            f"the redrive continues: schedctl dlq redrives; schedctl dlq stop {made.redrive_id}"
        )
    if not waited:
        return
    of = f" --job {made.job}" if made.job else ""
    succeeded = all_succeeded(made.runs, made.created, f"schedctl run list --trigger redrive{of}")
    if made.state == "STOPPED" or not succeeded:
        click.get_current_context().exit(RUN_FAILED)


async def _follow(session: Session, client: Client, made: Redrive) -> Redrive:
    if made.state == "DONE":  # found by its idempotency key, without the states of its runs
        made = await client.redrives.get(made)
    return await follow_to_end(
        session,
        made,
        client.redrives.watch(made),
        _progress,
        lambda one: one.ended,
        name=f"redrive {made.redrive_id}",
        remedy=f"schedctl dlq stop {made.redrive_id} stops it",
    )


def _progress(made: Redrive) -> str:
    """Return the progress: `120 of 500 created (100 succeeded, 20 running), 3 omitted`."""
    counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(made.runs.items()))
    line = f"{made.created} of {made.total} created" + (f" ({counts})" if counts else "")
    return line + (f", {made.omitted} omitted" if made.omitted else "")


def _remaining(made: Redrive) -> str:
    return f"{made.left:,} of {made.total:,} remain"
