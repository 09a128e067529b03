"""`schedctl dlq`: runs that failed for good and wait for a person."""

from __future__ import annotations

import click

from schedctl.columns import DEAD
from schedctl.flags import Group, pass_session
from schedctl.output import show_listing
from schedctl.session import Session


@click.group(cls=Group)
def dlq() -> None:
    """Dead letters: runs that failed for good."""


@dlq.command("list")
@click.option("--job", default="", help="Of this job (id or name).")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def list_dead(session: Session, job: str, limit: int | None) -> None:
    """Dead letters, newest first."""
    show_listing(
        session,
        limit,
        lambda client, most: client.dead_letters.list(job=job, limit=most),
        DEAD,
        lambda one: one.run.run_id,
    )
