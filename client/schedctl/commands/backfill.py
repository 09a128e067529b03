"""`schedctl job backfill`: run a job for scheduled times of the past, and show progress."""

from collections import Counter
from datetime import datetime
from typing import Any, Final

import click

from schedclient import Backfill, BackfillPlan, Client
from schedctl.columns import BACKFILLS
from schedctl.commands.changes import change
from schedctl.options.global_options import (
    Command,
    flag,
    key_option,
    limit_option,
    option,
    pass_session,
)
from schedctl.options.types import PAST
from schedctl.output import instant, message, show_data, show_listing, show_one, show_rows
from schedctl.run_follower import RUN_FAILED, all_succeeded, follow_to_end
from schedctl.session import Session

ENDS: Final = ("succeeded", "failed", "skipped", "cancelled")
WAIT: Final = (
    "Show progress, and wait until all runs have ended. Exit with 0 only if all runs succeeded; a"
    " skipped run counts as a failure."
)


@click.command(cls=Command)
@click.argument("name")
@option(
    "--from TIME|7d",
    "Start of the range, inclusive: RFC 3339, or an age; 7d is 7 days ago.",
    "first",
    required=True,
    type=PAST,
)
@option(
    "--to TIME|1h",
    "End of the range, inclusive: RFC 3339, or an age; 1h is one hour ago.",
    "last",
    required=True,
    type=PAST,
)
@option(
    "--overlap skip|allow|…",
    "Overlap policy of the backfill's runs; also buffer_one, buffer_all, cancel_other,"
    " terminate_other.  [default: the job's policy]",
)
@option(
    "--max-parallel N",
    "Highest number of the backfill's runs in progress at once.",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
)
@option("--priority high|medium|low", "Priority of the backfill's runs.  [default: low]")
@option(
    "--rerun failed|all",
    "Scheduled times that ran already, but run again: those whose run didn't succeed, or all. "
    " [default: omit times that ran]",
)
@flag("--dry-run", "Preview: show the scheduled times, store nothing.")
@flag("--wait", WAIT)
@key_option("backfill")
@pass_session
def backfill(
    session: Session, /, name: str, first: datetime, last: datetime, wait: bool, **asked: Any
) -> None:
    """Run a job for the scheduled times of a past range, such as `--from 7d --to 1h`.

    Scheduled times that already ran are omitted. The backfill continues in the cluster after the
    command has ended: `job backfills` shows its progress.
    """
    session.asked_job = name

    async def work(client: Client) -> tuple[BackfillPlan, Backfill | None]:
        plan = await client.jobs.backfill(name, first, last, **asked)
        if not wait or plan.backfill is None:
            return plan, plan.backfill
        _show_omitted(session, plan)
        made = plan.backfill
        return plan, await follow_to_end(
            session,
            made,
            client.jobs.watch_backfill(made),
            _progress,
            lambda one: one.ended,
            name=f"backfill {made.backfill_id}",
            remedy=f"schedctl job backfills {made.job}",
        )

    plan, made = session.run(work)
    if not session.tabular and session.output != "name":
        shown = plan if made is None or not wait else made
        show_data(session, shown.to_json(snake=session.output == "yaml"))
    elif made is None:
        _show_dry(session, plan)
    else:
        show_one(session, made, BACKFILLS)
    if made is not None and not wait:
        _show_omitted(session, plan)
        message(f"the backfill continues: schedctl job backfills {made.job}")
    if (
        made is not None
        and wait
        and not _is_done(made, by_key=asked["idempotency_key"] is not None)
    ):
        click.get_current_context().exit(RUN_FAILED)


@click.command(cls=Command)
@click.argument("name", default="")
@limit_option
@pass_session
def backfills(session: Session, name: str, limit: int | None) -> None:
    """List backfills with their progress, newest first. NAME limits the list to one job."""
    session.asked_job = name
    show_listing(
        session, limit, lambda client, most: client.jobs.backfills(name, limit=most), BACKFILLS
    )


@click.command("cancel-backfill", cls=Command)
@click.argument("backfill_id")
@pass_session
def cancel_backfill(session: Session, backfill_id: str) -> None:
    """Cancel a backfill: create no more runs, and cancel its waiting and running runs."""
    ended = change(session, lambda client: client.jobs.cancel_backfill(backfill_id), BACKFILLS)
    running = ended.running
    message(f"cancelled {backfill_id}" + (f": {running} runs are being ended" if running else ""))


def _is_done(made: Backfill, *, by_key: bool) -> bool:
    """Return whether every scheduled time has a run that succeeded; else print why not. The printed
    command has the exact range, since `7d` means another one now, and a new key.
    """
    ends = {word.upper(): getattr(made, word) for word in ENDS}
    all_succeeded(ends, made.total, f"schedctl run list --backfill {made.backfill_id}")
    if made.succeeded == made.total:
        return True
    if unmade := made.total - sum(ends.values()):
        why = ": the backfill was cancelled" if made.state == "CANCELLED" else ""
        message(f"{unmade:,} of {made.total:,} scheduled times have no run{why}")
    again = f"--from {_exactly(made.first)} --to {_exactly(made.last)}"
    again += " and another idempotency key" if by_key else ""
    message(
        f"run the command again with {again} for the missing runs, and with --rerun failed for"
        " the failed ones, too"
    )
    return False


def _exactly(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _progress(made: Backfill) -> str:
    """Return the progress: `12 of 30 ended (11 succeeded, 1 failed), 2 running, 16 remaining`."""
    ends = {word: getattr(made, word) for word in ENDS}
    counts = ", ".join(f"{count} {word}" for word, count in ends.items() if count)
    line = f"{sum(ends.values())} of {made.total} ended" + (f" ({counts})" if counts else "")
    for word in ("running", "retrying", "waiting"):
        if count := getattr(made, word):
            line += f", {count} {word}"
    return line + (f", {made.not_created} remaining" if made.not_created else "")


def _show_dry(session: Session, plan: BackfillPlan) -> None:
    if session.output == "name":
        for at in plan.instants:
            click.echo(at.isoformat())
        return
    show_rows(session, ["SCHEDULED"], [[at] for at in plan.instants])
    _show_omitted(session, plan)
    message(f"{len(plan.instants)} scheduled times would run; nothing was stored")


def _show_omitted(session: Session, plan: BackfillPlan) -> None:
    if not plan.omitted:
        return
    counted = Counter(one.why for one in plan.omitted)
    for why, count in counted.most_common():
        first = next(one for one in plan.omitted if one.why == why)
        others = f" and {count - 1} more" if count > 1 else ""
        message(f"omitted: {instant(session, first.scheduled_at)}{others}: {why}")
