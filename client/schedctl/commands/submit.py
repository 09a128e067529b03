"""`schedctl submit`: a single run without a stored job."""

from __future__ import annotations

from typing import Any

import click

from schedclient import Client, Run
from schedctl import run_follower
from schedctl.columns import RUNS
from schedctl.options.global_options import Command, pass_session
from schedctl.options.job_options import job_of, need_action, work_options
from schedctl.output import message, show_one
from schedctl.session import Guard, Session


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.option("--wait", is_flag=True, help="Wait until the run has ended, then print its output.")
@click.option(
    "--follow", is_flag=True, help="Wait as with --wait, and print the output as it arrives."
)
@click.option(
    "--exit-status",
    is_flag=True,
    help="Wait as with --wait, and exit with the exit code of the command.",
)
@click.option("--name", default="", help="Name to show as the job of the run.  [default: none]")
@click.option("--delay", metavar="5s", help="Time to wait before the run starts.  [default: 0s]")
@click.option(
    "--idempotency-key",
    type=Guard(),
    metavar="KEY",
    help="Idempotency key: for 24 h the same key returns the same run.  [default: none]",
)
@work_options
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
    if not stay:
        show_one(session, run, RUNS, lambda one: one.run_id)
        return
    if session.tabular:
        message(run_follower.outcome(run))
    else:
        show_one(session, run, RUNS, lambda one: one.run_id)
    click.get_current_context().exit(run_follower.exit_code(run, passed_on=exit_status))
