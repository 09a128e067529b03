"""`schedctl job backfill`: a job run for instants of the past, and how far that is."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

import click

from schedclient import Backfill, BackfillPlan, Client
from schedctl.columns import BACKFILLS
from schedctl.options.global_options import Command, pass_session
from schedctl.output import instant, message, show_data, show_listing, show_one, show_rows
from schedctl.run_follower import RUN_FAILED, all_succeeded, to_its_end
from schedctl.session import Guard, Past, Session

ENDS: Final = ("succeeded", "failed", "skipped", "cancelled")
WAIT: Final = (
    "Stay until its runs have ended; tell how far it is. Exit 1 if not all succeeded: one that was"
    " skipped didn't."
)


@click.command(cls=Command)
@click.argument("name")
@click.option(
    "--from", "first", required=True, type=Past(), metavar="INSTANT|7d", help="Inclusive."
)
@click.option("--to", "last", required=True, type=Past(), metavar="INSTANT|1h", help="Inclusive.")
@click.option("--overlap", metavar="skip|allow|…", help="Instead of the job's own.")
@click.option(
    "--max-parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="So many of its runs at once.",
)
@click.option("--priority", metavar="high|medium|low", help="[default: low]")
@click.option("--rerun", metavar="failed|all", help="Run instants again that ran already.")
@click.option("--dry-run", is_flag=True, help="Show the instants; nothing is stored.")
@click.option("--wait", is_flag=True, help=WAIT)
@click.option(
    "--idempotency-key", type=Guard(), metavar="KEY", help="The same key starts nothing twice."
)
@pass_session
def backfill(
    session: Session,
    name: str,
    first: datetime,
    last: datetime,
    overlap: str | None,
    max_parallel: int,
    priority: str | None,
    rerun: str | None,
    dry_run: bool,
    wait: bool,
    idempotency_key: str | None,
) -> None:
    """Run a job for the instants of a past range: `--from 7d --to 1h`, or RFC 3339.

    Instants that ran are left out. It goes on by itself: `job backfills` shows how far it is.
    """
    session.asked_job = name

    async def work(client: Client) -> tuple[BackfillPlan, Backfill | None]:
        plan = await client.jobs.backfill(
            name,
            first,
            last,
            overlap=overlap,
            max_parallel=max_parallel,
            priority=priority,
            rerun=rerun,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
        )
        if not wait or plan.backfill is None:
            return plan, plan.backfill
        _tell_left_out(session, plan)
        return plan, await _to_its_end(session, client, plan.backfill)

    plan, made = session.run(work)
    if not session.tabular and session.output != "name":
        told = plan if made is None or not wait else made
        show_data(session, told.to_json(snake=session.output == "yaml"))
    elif made is None:
        _show_dry(session, plan)
    else:
        show_one(session, made, BACKFILLS, _id)
    if made is not None and not wait:
        _tell_left_out(session, plan)
        message(f"it goes on: schedctl job backfills {made.job}")
    if made is not None and wait and not _is_done(made, by_key=idempotency_key is not None):
        click.get_current_context().exit(RUN_FAILED)


@click.command(cls=Command)
@click.argument("name", default="")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@pass_session
def backfills(session: Session, name: str, limit: int | None) -> None:
    """Backfills, newest first, with how far they are; of one job if it is named."""
    session.asked_job = name
    show_listing(
        session, limit, lambda client, most: client.jobs.backfills(name, limit=most), BACKFILLS, _id
    )


@click.command("cancel-backfill", cls=Command)
@click.argument("backfill_id")
@pass_session
def cancel_backfill(session: Session, backfill_id: str) -> None:
    """Make no more runs of a backfill; what waits is cancelled, what runs is ended."""
    ended = session.run(lambda client: client.jobs.cancel_backfill(backfill_id))
    if not session.tabular:
        show_one(session, ended, BACKFILLS, _id)
    running = ended.running
    message(f"cancelled {backfill_id}" + (f": {running} workers were told" if running else ""))


async def _to_its_end(session: Session, client: Client, made: Backfill) -> Backfill:
    return await to_its_end(
        session,
        made,
        client.jobs.watch_backfill(made),
        _progress,
        lambda one: one.ended,
        name=f"backfill {made.backfill_id}",
        remedy=f"schedctl job backfills {made.job}",
    )


def _is_done(made: Backfill, *, by_key: bool) -> bool:
    """Whether each of its instants has a run that succeeded; else why not is said, and what runs
    the others: for its range, which isn't that of `7d` any more, and by no key that is used up.
    """
    ends = {word.upper(): getattr(made, word) for word in ENDS}
    all_succeeded(ends, made.total, f"schedctl run list --backfill {made.backfill_id}")
    if made.succeeded == made.total:
        return True
    if unmade := made.total - sum(ends.values()):
        why = ": it was cancelled" if made.state == "CANCELLED" else ""
        message(f"{unmade:,} of {made.total:,} instants have no run{why}")
    again = f"--from {_exactly(made.first)} --to {_exactly(made.last)}"
    again += " and another idempotency key" if by_key else ""
    message(
        f"the same command with {again} runs what didn't run; with --rerun failed, what failed, too"
    )
    return False


def _exactly(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _progress(made: Backfill) -> str:
    """`12 of 30 ended (11 succeeded, 1 failed), 2 running, 16 to come`."""
    ends = {word: getattr(made, word) for word in ENDS}
    told = ", ".join(f"{count} {word}" for word, count in ends.items() if count)
    line = f"{sum(ends.values())} of {made.total} ended" + (f" ({told})" if told else "")
    for word in ("running", "retrying", "waiting"):
        if count := getattr(made, word):
            line += f", {count} {word}"
    return line + (f", {made.to_come} to come" if made.to_come else "")


def _show_dry(session: Session, plan: BackfillPlan) -> None:
    if session.output == "name":
        for at in plan.instants:
            click.echo(at.isoformat())
        return
    show_rows(session, ["INSTANT"], [[at] for at in plan.instants])
    _tell_left_out(session, plan)
    message(f"{len(plan.instants)} instants would be run; nothing was stored")


def _tell_left_out(session: Session, plan: BackfillPlan) -> None:
    if not plan.left_out:
        return
    counted = Counter(one.why for one in plan.left_out)
    for why, count in counted.most_common():
        first = next(one for one in plan.left_out if one.why == why)
        others = f" and {count - 1} more" if count > 1 else ""
        message(f"left out: {instant(session, first.scheduled_at)}{others}: {why}")


def _id(one: Backfill) -> str:
    return one.backfill_id
