"""`schedctl run`, `schedctl events`, and `schedctl submit`: a single run without a stored job."""

from collections.abc import Sequence
from typing import Any

import click

from schedclient import Client, DeadlineExceeded, LogPiece, Result, Run, RunEvent
from schedctl import run_follower
from schedctl.columns import ATTEMPTS, CHILDREN, RUNS, progress
from schedctl.commands.changes import change
from schedctl.failure import CommandFailure
from schedctl.options.global_options import (
    Command,
    CommandGroup,
    flag,
    key_option,
    limit_option,
    option,
    pass_session,
)
from schedctl.options.job_options import job_of, need_action, read_payload, submit_options
from schedctl.options.types import GUARD
from schedctl.output import (
    ValueTable,
    event,
    message,
    show_data,
    show_facts,
    show_list,
    show_listing,
    show_one,
    stamp,
)
from schedctl.session import Session


@click.group(cls=CommandGroup)
def run() -> None:
    """Manage runs: occurrences of jobs, and submitted runs."""


@run.command("list")
@option("--job", "Job whose runs to list: id or name.  [default: all jobs]", default="")
@option(
    "--state STATE",
    "State of the runs to list, such as RUNNING or FAILED; repeatable.  [default: all states]",
    multiple=True,
)
@option(
    "--worker",
    "Worker to which the runs to list were dispatched.  [default: all workers]",
    default="",
)
@option(
    "--trigger schedule|manual|redrive|…",
    "Origin of the runs to list; also submit, backfill and chain.  [default: all origins]",
)
@option("--backfill ID", "Id of the backfill whose runs to list.  [default: all runs]", default="")
@option(
    "--parent RUN",
    "Id of the broadcast run whose child runs to list.  [default: no children]",
    default="",
)
@option(
    "--after TIME", "List only runs with a scheduled time after this time.  [default: no limit]"
)
@option(
    "--before TIME", "List only runs with a scheduled time before this time.  [default: no limit]"
)
@limit_option
@pass_session
def list_runs(
    session: Session, /, limit: int | None, state: tuple[str, ...], **chosen: Any
) -> None:
    """List runs, newest first. Children of broadcasts are listed only with --parent or --worker."""
    states = [word for one in state for word in one.split(",")]
    show_listing(
        session,
        limit,
        lambda client, most: client.runs.list(states=states, limit=most, **chosen),
        RUNS,
    )


@run.command()
@click.argument("run_id")
@pass_session
def get(session: Session, run_id: str) -> None:
    """Show a run."""
    found = session.run(lambda client: client.runs.get(run_id))
    if not session.tabular:
        show_one(session, found, RUNS)
        return
    show_facts(
        session,
        [
            *RUNS.facts(found),
            ("Due", found.due_at),
            ("Retry", found.retry_at),
            ("Backfill", found.backfill_id),
            ("Redrive of", found.redrive_of),
            ("Child of", found.parent_run_id),
            ("For worker", found.target),
            ("Children", found.children or None),
            ("Until", found.scheduled_until),
            ("Progress", progress(found)),
            ("Worker lost", f"{found.losses} of {found.max_losses} times" * bool(found.losses)),
            ("Error", found.error),
        ],
    )
    if found.children:
        show_listing(
            session,
            found.children,
            lambda client, most: client.runs.list(parent=run_id, limit=most),
            CHILDREN,
        )


@run.command()
@click.argument("run_ids", nargs=-1, metavar="[RUN…]")
@option("--job", "Job whose runs to watch until Ctrl-C: id or name.  [default: no job]", default="")
@pass_session
def watch(session: Session, run_ids: tuple[str, ...], job: str) -> None:
    """Print each change of the given runs until all have ended; -o json prints an object a line."""
    if bool(run_ids) == bool(job):
        raise CommandFailure(
            "run watch needs either RUN… or --job, and not both",
            remedy="name runs or a job; for all runs of the namespace: schedctl events",
        )

    async def work(client: Client) -> None:
        async for one in client.runs.watch(*run_ids, job=job):
            event(session, one, run_follower.outcome)

    session.run(work)


@click.command(cls=Command)
@option("--job", "Job whose runs to print: id or name.  [default: all jobs]", type=GUARD)
@option(
    "--after CURSOR",
    "Cursor (position) of an earlier event: print only the changes after that event. "
    " [default: begin with the runs in progress]",
    type=GUARD,
)
@pass_session
def events(session: Session, job: str | None, after: str | None) -> None:
    """Print all changes of the namespace's runs until Ctrl-C.

    The first lines are the runs in progress. The lines after them are changes of runs, changes of
    the leader, and members and workers that are lost or return. With -o json each line is one
    object, with the `cursor` to continue from.
    """

    def line(one: RunEvent) -> str:
        if one.cluster:
            return f"{stamp(one.cluster.at)}  {one.cluster.text}"
        return run_follower.outcome(one.run) if one.run else f"… {one.gap.why if one.gap else ''}"

    async def work(client: Client) -> None:
        async for one in client.runs.events(job=job or "", after=after or ""):
            event(session, one, line)

    session.run(work)


@run.command()
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN…")
@flag("--exit-status", "Exit with the exit code of the run's command.")
@pass_session
def wait(session: Session, run_ids: tuple[str, ...], exit_status: bool) -> None:
    """Wait until runs have ended. Exits with 1 if a run failed, and with 7 after `--timeout`."""
    runs = session.run(lambda client: _all_ended(session, client, run_ids))
    if session.tabular:
        for one in runs:
            message(run_follower.outcome(one))
    elif len(runs) == 1:
        show_one(session, runs[0], RUNS)
    else:
        show_list(session, runs, RUNS)
    codes = [run_follower.exit_code(one, passed_on=exit_status) for one in runs]
    click.get_current_context().exit(next((code for code in codes if code), 0))


async def _all_ended(session: Session, client: Client, run_ids: Sequence[str]) -> list[Run]:
    import asyncio

    ended: dict[str, Run] = {}
    messages = run_follower.WaitMessages(client)
    try:
        async with asyncio.timeout(session.timeout):
            async for one in client.runs.watch(*run_ids):
                await messages.on_change(one)
                if one.ended:
                    ended[one.run_id] = one
    except TimeoutError:
        left = [run_id for run_id in run_ids if run_id not in ended]
        raise DeadlineExceeded(
            f"{len(left)} of {len(run_ids)} runs haven't ended after {session.timeout:g} s",
            reason="STILL_RUNNING",
            remedy=f"the runs continue; see why: schedctl run why {left[0]}" if left else "",
        ) from None
    return [ended[run_id] for run_id in run_ids]


@run.command()
@click.argument("run_id")
@flag("-f --follow", "Print new output until the run has ended.")
@option(
    "--token",
    "Fencing token of the attempt whose output to print, as `run attempts` shows it."
    "  [default: all attempts]",
    type=int,
    default=0,
)
@flag("--timestamps", "Print the worker's UTC time before each line.")
@pass_session
def logs(session: Session, run_id: str, follow: bool, token: int, timestamps: bool) -> None:
    """Print the output of a run, byte for byte: its stdout on stdout, its stderr on stderr."""

    async def work(client: Client) -> None:
        pieces = client.runs.logs(run_id, fencing_token=token, follow=follow)
        if session.tabular:
            await run_follower.print_pieces(pieces, timestamps=timestamps)
            return
        show_list(session, [piece async for piece in pieces], ValueTable(LogPiece, "stream"))

    session.run(work)


@run.command()
@click.argument("run_id")
@option("--reason", "Reason to store in the audit log.  [default: no reason]", default="")
@pass_session
def cancel(session: Session, run_id: str, reason: str) -> None:
    """Cancel a run. A waiting run ends at once; a running attempt gets SIGTERM, then SIGKILL.

    Repeating the command has no further effect.
    """
    ended = change(session, lambda client: client.runs.cancel(run_id, reason), RUNS)
    state = "its children are being ended" if ended.children else "its worker is ending it"
    message(f"cancelled {run_id}" if ended.ended else f"cancelling {run_id}: {state}")


@run.command()
@click.argument("run_id")
@option("--payload JSON|@FILE|-", "Payload of the new run.  [default: the payload of the old run]")
@pass_session
def retry(session: Session, run_id: str, payload: str | None) -> None:
    """Retry a run that failed for good, was cancelled or missed its start deadline.

    The new run uses the current definition of the job. Repeating the command returns the same new
    run.
    """
    given = read_payload(payload) if payload is not None else None
    made = session.run(lambda client: client.runs.retry(run_id, payload=given))
    show_one(session, made, RUNS)


@run.command()
@click.argument("run_id")
@pass_session
def attempts(session: Session, run_id: str) -> None:
    """List the attempts of a run, including those that ended because their worker was lost."""
    tries = session.run(lambda client: client.runs.attempts(run_id))
    show_list(session, tries, ATTEMPTS)


@run.command()
@click.argument("run_id")
@pass_session
def result(session: Session, run_id: str) -> None:
    """Print the result of a run: JSON or raw bytes.

    The command exits with 1 if the run didn't succeed and has no result.
    """

    async def work(client: Client) -> tuple[Result, Run]:
        return await client.runs.result(run_id), await client.runs.get(run_id)

    found, of = session.run(work)
    if not session.tabular:
        show_data(session, found.to_json(snake=session.output == "yaml"))
    else:
        run_follower.print_result(found)
        if found.empty:
            message(f"no result: {run_follower.outcome(of)}")
    if found.problem or (found.empty and not of.succeeded):
        click.get_current_context().exit(run_follower.RUN_FAILED)


@run.command()
@click.argument("run_id")
@pass_session
def why(session: Session, run_id: str) -> None:
    """Explain why a run waits or how it ended, with a remedy."""
    found = session.run(lambda client: client.runs.why(run_id))
    if not session.tabular:
        show_data(session, found.to_json(snake=session.output == "yaml"))
        return
    click.echo(found.answer)
    for check in found.checks:
        remedy = f"  → {check.remedy}" if check.remedy else ""
        click.echo(f"  {check.question} {check.answer}{remedy}")


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@flag("--wait", "Wait until the run has ended, then print its output.")
@flag("--follow", "Wait as with --wait, and print the output as it arrives.")
@flag("--exit-status", "Wait as with --wait, and exit with the exit code of the command.")
@option("--name", "Name to show as the job of the run.  [default: no name]", default="")
@option("--delay DURATION", "Time to wait before the run starts.  [default: 0s]")
@key_option("run")
@submit_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@pass_session
def submit(
    session: Session,
    /,
    wait: bool,
    follow: bool,
    exit_status: bool,
    name: str,
    delay: str | None,
    idempotency_key: str | None,
    argv: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run a command or call once: `submit --wait -- sh -c 'echo hi'`.

    Ctrl-C stops the wait, not the run.
    """
    job, _ = job_of(flags, argv)
    need_action(job)
    stay = wait or follow or exit_status

    async def work(client: Client) -> Run:
        run = await client.submit(job, name=name, delay=delay, idempotency_key=idempotency_key)
        return await run_follower.stay(session, client, run, follow=follow) if stay else run

    run = session.run(work)
    show_started(session, run, waited=stay, passed_on=exit_status)


def show_started(session: Session, run: Run, *, waited: bool, passed_on: bool) -> None:
    """Print a new run, or its outcome if the command has `waited`; then exit with its code."""
    if waited and session.tabular:
        message(run_follower.outcome(run))
    else:
        show_one(session, run, RUNS)
    if waited:
        click.get_current_context().exit(run_follower.exit_code(run, passed_on=passed_on))
