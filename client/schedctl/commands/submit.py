"""`schedctl submit`: one-time work without a stored job."""

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
@click.option("--wait", is_flag=True, help="Stay until it has ended; print what it wrote.")
@click.option("--follow", is_flag=True, help="As --wait, and print it as it comes.")
@click.option("--exit-status", is_flag=True, help="Leave with the command's own exit code.")
@click.option("--name", default="", help="Shown as the run's job.")
@click.option("--delay", metavar="5s", help="Not before this has passed.")
@click.option(
    "--idempotency-key", type=Guard(), metavar="KEY", help="The same key starts nothing twice."
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
    """Run something once: `submit --wait -- sh -c 'echo hi'`.

    Ctrl-C leaves the run alone.
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
