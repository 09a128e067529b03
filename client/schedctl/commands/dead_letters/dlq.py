"""`schedctl dlq`: runs that failed for good and wait for a person. Done again: `redrive`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from schedclient import Attempt, Client, DeadLetter
from schedctl.columns import ATTEMPTS, DEAD, DEAD_GROUPS, SETTLED
from schedctl.commands.dead_letters import redrive
from schedctl.options.dead_letters import Chosen, choosing
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.output import message, show_data, show_facts, show_list, show_listing, show_one
from schedctl.session import Session


@click.group(cls=CommandGroup)
def dlq() -> None:
    """Dead letters: runs that failed for good."""


for command in (redrive.redrive, redrive.redrives, redrive.stop, redrive.resume):
    dlq.add_command(command)


def _id(one: DeadLetter) -> str:
    return one.run.run_id


@dlq.command("list")
@click.option("--job", default="", help="Of this job (id or name).")
@click.option("--fingerprint", default="", help="Of this kind of error.")
@click.option("--redrive", "redrive_id", default="", metavar="ID", help="Chosen by this redrive.")
@click.option("--settled", is_flag=True, help="Also those that were redriven or discarded.")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def list_dead(
    session: Session, job: str, fingerprint: str, redrive_id: str, settled: bool, limit: int | None
) -> None:
    """Dead letters that wait, newest first."""
    show_listing(
        session,
        limit,
        lambda client, most: client.dead_letters.list(
            job=job, fingerprint=fingerprint, redrive=redrive_id, settled=settled, limit=most
        ),
        SETTLED if settled or redrive_id else DEAD,
        _id,
    )


@dlq.command()
@click.option("--job", default="", help="Of this job (id or name).")
@pass_session
def groups(session: Session, job: str) -> None:
    """Dead letters that wait, by job and kind of error; the greatest group first."""
    found = session.run(lambda client: client.dead_letters.groups(job=job))
    show_list(session, found, DEAD_GROUPS, lambda one: one.fingerprint)


@dlq.command()
@click.argument("run_id", metavar="RUN")
@pass_session
def show(session: Session, run_id: str) -> None:
    """One dead letter: what failed and how, what became of it, each of its tries."""

    async def work(client: Client) -> tuple[DeadLetter, tuple[Attempt, ...]]:
        found = await client.dead_letters.get(run_id)
        return found, await client.runs.attempts(run_id) if session.tabular else ()

    found, attempts = session.run(work)
    if not session.tabular:
        show_one(session, found, DEAD, _id)
        return
    show_facts(session, _facts(found))
    if attempts:
        click.echo()
        show_list(session, attempts, ATTEMPTS, lambda one: str(one.fencing_token))
    message(f"its output: schedctl run logs {run_id}")
    if found.redriven_as:
        message(f"the run that does it again: schedctl run get {found.redriven_as}")
    elif found.settled is None:
        message(f"do it again: schedctl dlq redrive {run_id}")


@dlq.command()
@choosing
@click.option("--note", default="", help="Why; it is kept with them.")
@pass_session
def discard(session: Session, chosen: Chosen, note: str) -> None:
    """Have dead letters wait for nobody any more; their runs stay as they are.

    What a redrive is about to do again isn't discarded. `--group FINGERPRINT --job JOB --of job` is
    one row of `dlq groups`, `--of submitted` another (without --job: what has no name).
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
        message(f"as they were: {others:,}, which wait for nobody, or for a redrive")


def _facts(found: DeadLetter) -> Iterator[tuple[str, Any]]:
    run = found.run
    yield "Run", run.run_id
    yield "Job", run.job
    yield "Reason", run.reason
    yield "Exit", run.exit_code
    yield "Scheduled", run.scheduled_at
    yield "Died", found.died_at
    yield "Does again", run.redrive_of
    yield "Fingerprint", found.fingerprint
    yield "Settled", found.settled or "no, it waits"
    yield "At", found.settled_at
    yield "By", found.settled_by
    yield "Redriven as", found.redriven_as
    yield "Redrive", found.redrive_id
    yield "Note", found.note
    yield "Error", run.error
