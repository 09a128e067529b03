"""`schedctl job`: definitions, and what to do with them. NAME is an id or a name everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import click

from schedclient import Client, Instant, Job, Run
from schedctl import run_follower
from schedctl.columns import INSTANTS, JOBS, RUNS, WITH_EXCLUDED, facts
from schedctl.commands.backfill import backfill, backfills, cancel_backfill
from schedctl.failure import CommandFailure
from schedctl.manifests import job_diff
from schedctl.options.global_options import CommandGroup, pass_session
from schedctl.options.job_options import (
    job_of,
    need_action,
    paused_option,
    schedule_options,
    work_options,
)
from schedctl.options.notifications import notice_options
from schedctl.options.payloads import read_payload
from schedctl.output import (
    message,
    show_data,
    show_facts,
    show_list,
    show_listing,
    show_one,
    show_warnings,
)
from schedctl.session import INSTANT, TELL_WITHIN, Guard, Session, TimeType, known
from schedproto.v1 import job_pb2


@click.group(cls=CommandGroup)
def job() -> None:
    """Jobs: what to run, when, and how."""


for command in (backfill, backfills, cancel_backfill):
    job.add_command(command)


def _name(one: Job) -> str:
    return one.name


@job.command()
@click.argument("name")
@click.option(
    "--idempotency-key", type=Guard(), metavar="KEY", help="The same key makes nothing twice."
)
@click.option("--dry-run", is_flag=True, help="Check only; nothing is stored.")
@schedule_options
@paused_option
@work_options
@notice_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@pass_session
def create(
    session: Session,
    /,
    name: str,
    idempotency_key: str | None,
    dry_run: bool,
    argv: tuple[str, ...],
    **flags: Any,
) -> None:
    """Store a job: `job create NAME --cron '0 2 * * *' -- /opt/etl --full`."""
    spec, _ = job_of(flags, argv)
    need_action(spec)
    made = session.run(
        lambda client: client.jobs.create(
            name, spec, idempotency_key=idempotency_key, validate_only=dry_run
        )
    )
    show_one(session, made, JOBS, _name)
    _warn_of(spec)
    show_warnings(made)
    if dry_run:
        message("checked; nothing was stored")


def _warn_of(spec: job_pb2.Job) -> None:
    """Warn of a job whose runs end each other. Only such a job loads the schedules' code."""
    if spec.overlap in (job_pb2.OVERLAP_CANCEL_OTHER, job_pb2.OVERLAP_TERMINATE_OTHER):
        from schedctl.timetables import timetables

        if found := timetables.surprise_of(spec):
            message(f"warning: {found.problem} ({found.hint})")


@job.command("list")
@click.option("--limit", type=click.IntRange(min=1), help="[default: 50 for tables, else all]")
@click.option("--filter", "where", default="", metavar="'FIELD:VALUE …'")
@pass_session
def list_jobs(session: Session, limit: int | None, where: str) -> None:
    """Jobs, newest first."""
    show_listing(
        session, limit, lambda client, most: client.jobs.list(where=where, limit=most), JOBS, _name
    )


@job.command()
@click.argument("name")
@pass_session
def get(session: Session, name: str) -> None:
    """One job."""
    session.asked_job = name
    show_one(session, session.run(lambda client: client.jobs.get(name)), JOBS, _name)


@job.command()
@click.argument("name")
@pass_session
def describe(session: Session, name: str) -> None:
    """One job in full, with its next instants and its latest runs."""
    session.asked_job = name

    async def work(client: Client) -> tuple[Job, tuple[Instant, ...], list[Run]]:
        found = await client.jobs.get(name)
        coming = () if found.paused else await client.jobs.next(name, count=5)
        runs = [one async for one in client.runs.list(job=name, limit=5)]
        return found, coming, runs

    found, coming, runs = session.run(work)
    if not session.tabular:
        show_one(session, found, JOBS, _name)
        return
    show_facts(session, facts(JOBS, found))
    told = found.to_json(snake=True)
    show_facts(session, job_diff.remaining(told, found.action))
    if coming:
        message("next:")
        show_list(session, coming, INSTANTS, lambda one: one.scheduled_at.isoformat())
    if runs:
        message("latest runs:")
        show_list(session, runs, RUNS, lambda one: one.run_id)


@job.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show the change; store nothing. Exit 1 if one.")
@click.option("--etag", type=Guard(), help="Only if the job is still the one with this etag.")
@schedule_options
@work_options
@notice_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@pass_session
def patch(
    session: Session,
    /,
    name: str,
    dry_run: bool,
    etag: str | None,
    argv: tuple[str, ...],
    **flags: Any,
) -> None:
    """Change what is named and nothing else; the change is shown first."""
    session.asked_job = name
    spec, named = job_of(flags, argv)
    if not named:
        raise CommandFailure(
            "nothing to change", reason="NO_CHANGE", remedy="name a field: --timeout 5m, --cron …"
        )

    async def work(client: Client) -> tuple[Job, bool]:
        before = await client.jobs.get(name)
        merged = job_diff.merged(before, spec, named)
        after = await client.jobs.update(
            before.name, merged, mask=named, etag=etag or "", validate_only=True
        )
        told = job_diff.between(session, before, after)
        for line in told:
            message(line)
        if dry_run or not told:
            return after, bool(told)
        return await client.jobs.update(
            before.name, merged, mask=named, etag=etag or before.etag
        ), False

    after, differs = session.run(work)
    show_one(session, after, JOBS, _name)
    show_warnings(after)
    if differs:
        message("nothing was stored")
        click.get_current_context().exit(1)


@job.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--note", default="", help="Why; it stands in the audit.")
@pass_session
def delete(session: Session, names: tuple[str, ...], note: str) -> None:
    """Delete jobs: nothing of them starts any more; what runs, finishes."""
    for name in names:
        session.confirm("delete job", name, always=True)

    async def work(client: Client) -> None:
        for name in names:
            session.asked_job = name
            await client.jobs.delete(name, note)
            message(f"deleted {name}")

    session.run(work)
    if not session.tabular:
        show_data(session, {"deleted": True})


@job.command()
@click.argument("name")
@click.option("--note", default="", help="Why.")
@click.option("--until", type=TimeType(), metavar=INSTANT, help="Resume by itself then.")
@pass_session
def pause(session: Session, name: str, note: str, until: datetime | None) -> None:
    """Fire no instant until `resume`; none is replayed afterwards. Triggers still work."""
    _change(session, name, lambda client: client.jobs.pause(name, note, until=until))
    message(f"paused {name}")


@job.command()
@click.argument("name")
@pass_session
def resume(session: Session, name: str) -> None:
    """Let a paused job fire again."""
    idle = False

    async def both(client: Client) -> Job:
        nonlocal idle
        before = await known(client.jobs.get(name, deadline=TELL_WITHIN))
        idle = before is not None and not before.paused
        return await client.jobs.resume(name)

    _change(session, name, both)
    message(f"{name} wasn't paused: there was nothing to resume" if idle else f"resumed {name}")


def _change(session: Session, name: str, call: Callable[[Client], Awaitable[Job]]) -> None:
    session.asked_job = name
    changed = session.run(call)
    if not session.tabular:
        show_one(session, changed, JOBS, _name)


@job.command()
@click.argument("name")
@click.option("--payload", metavar="JSON|@FILE|-", help="Instead of the job's own.")
@click.option("--priority", metavar="high|medium|low", help="Instead of the job's own.")
@click.option("--overlap", metavar="skip|allow|…", help="Instead of the job's own.")
@click.option("--delay", metavar="5s", help="Not before this has passed.")
@click.option(
    "--idempotency-key", type=Guard(), metavar="KEY", help="The same key starts nothing twice."
)
@click.option("--wait", is_flag=True, help="Stay until it has ended; print what it wrote.")
@click.option("--follow", is_flag=True, help="As --wait, and print it as it comes.")
@click.option("--exit-status", is_flag=True, help="Wait; leave with the job's own exit code.")
@pass_session
def trigger(
    session: Session,
    name: str,
    payload: str | None,
    priority: str | None,
    overlap: str | None,
    delay: str | None,
    idempotency_key: str | None,
    wait: bool,
    follow: bool,
    exit_status: bool,
) -> None:
    """Start a run now, whatever the schedule says; also while the job is paused."""
    session.asked_job = name
    given = read_payload(payload) if payload is not None else None
    wait = wait or follow or exit_status

    async def work(client: Client) -> Run:
        run = await client.jobs.trigger(
            name,
            given,
            priority=priority,
            overlap=overlap,
            delay=delay,
            idempotency_key=idempotency_key,
        )
        return await run_follower.stay(session, client, run, follow=follow) if wait else run

    run = session.run(work)
    if wait and session.tabular:
        message(run_follower.outcome(run))
    else:
        show_one(session, run, RUNS, lambda one: one.run_id)
    if wait:
        click.get_current_context().exit(run_follower.exit_code(run, passed_on=exit_status))


@job.command("next")
@click.argument("name")
@click.option("--after", type=TimeType(), metavar=INSTANT, help="Exclusive.  [default: now]")
@click.option("--count", default=10, show_default=True, type=click.IntRange(1, 1000))
@click.option("--excluded", is_flag=True, help="Also those between that a calendar excludes.")
@pass_session
def next_instants(
    session: Session, name: str, after: datetime | None, count: int, excluded: bool
) -> None:
    """The coming instants of a job: those that run."""
    session.asked_job = name

    async def work(client: Client) -> tuple[Job, tuple[Instant, ...]]:
        found = await client.jobs.get(name)
        coming = await client.jobs.next(name, after=after, count=count, excluded=excluded)
        return found, coming

    found, coming = session.run(work)
    if found.paused:
        note = f": {found.pause_note}" if found.pause_note else ""
        until = f", until {found.paused_until.isoformat()}" if found.paused_until else ""
        message(f"{name} is paused{until}{note}; nothing of this runs while it is")
    if not coming:
        message(f"{name} has no instant to come" + (" after that" if after else ""))
    columns = WITH_EXCLUDED if excluded else INSTANTS
    show_list(session, coming, columns, lambda one: one.scheduled_at.isoformat())


@job.command()
@click.argument("name")
@click.option("--at", required=True, type=TimeType(), metavar=INSTANT, help="The nominal instant.")
@pass_session
def explain(session: Session, name: str, at: datetime) -> None:
    """Why did it run, or not, then? The answer names the row that it was read from."""
    session.asked_job = name
    found = session.run(lambda client: client.jobs.explain(name, at))
    if not session.tabular:
        show_data(session, found.to_json(snake=session.output == "yaml"))
        return
    click.echo(found.answer)
    runs = [*([found.run] if found.run else []), *found.backfilled]
    if runs:
        show_list(session, runs, RUNS, lambda one: one.run_id)
