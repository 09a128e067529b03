"""`schedctl dlq`: list, show and discard dead letters; `redrive` runs them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from schedclient import Attempt, Client, DeadLetter
from schedctl.columns import ATTEMPTS, DEAD, DEAD_GROUPS, RESOLVED
from schedctl.commands.dead_letters import redrive
from schedctl.options.dead_letters import Chosen, choosing
from schedctl.options.global_options import CommandGroup, limit_option, pass_session
from schedctl.output import message, show_data, show_facts, show_list, show_listing, show_one
from schedctl.session import Session


@click.group(cls=CommandGroup)
def dlq() -> None:
    """Manage dead letters: runs that failed for good."""


for command in (redrive.redrive, redrive.redrives, redrive.stop, redrive.resume):
    dlq.add_command(command)


def _id(one: DeadLetter) -> str:
    return one.run.run_id


@dlq.command("list")
@click.option(
    "--job", default="", help="Job whose dead letters to show: id or name.  [default: any]"
)
@click.option(
    "--fingerprint",
    default="",
    help="Fingerprint of the errors whose dead letters to list.  [default: any]",
)
@click.option(
    "--redrive",
    "redrive_id",
    default="",
    metavar="ID",
    help="Id of the redrive whose dead letters to list.  [default: any]",
)
@click.option("--resolved", is_flag=True, help="Also list redriven and discarded dead letters.")
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
        _id,
    )


@dlq.command()
@click.option(
    "--job", default="", help="Job whose dead letters to show: id or name.  [default: any]"
)
@pass_session
def groups(session: Session, job: str) -> None:
    """List the groups of dead letters, by job and fingerprint, the largest first."""
    found = session.run(lambda client: client.dead_letters.groups(job=job))
    show_list(session, found, DEAD_GROUPS, lambda one: one.fingerprint)


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
        show_one(session, found, DEAD, _id)
        return
    show_facts(session, _facts(found))
    if attempts:
        click.echo()
        show_list(session, attempts, ATTEMPTS, lambda one: str(one.fencing_token))
    message(f"output: schedctl run logs {run_id}")
    if found.redriven_as:
        message(f"redriven as: schedctl run get {found.redriven_as}")
    elif found.resolution is None:
        message(f"run it again: schedctl dlq redrive {run_id}")


@dlq.command()
@choosing
@click.option("--note", default="", help="Note to store with the dead letters.  [default: none]")
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


def _facts(found: DeadLetter) -> Iterator[tuple[str, Any]]:
    run = found.run
    yield "Run", run.run_id
    yield "Job", run.job
    yield "Reason", run.reason
    yield "Exit", run.exit_code
    yield "Scheduled", run.scheduled_at
    yield "Died", found.died_at
    yield "Redrive of", run.redrive_of
    yield "Fingerprint", found.fingerprint
    yield "Resolved", found.resolution or "no"
    yield "At", found.resolved_at
    yield "By", found.resolved_by
    yield "Redriven as", found.redriven_as
    yield "Redrive", found.redrive_id
    yield "Note", found.note
    yield "Error", run.error
