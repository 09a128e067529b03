"""`schedctl job`: manage jobs. NAME is an id or a name everywhere."""

from datetime import datetime
from typing import Any

import click

from schedclient import Client, Instant, Job, Run
from schedctl import run_follower
from schedctl.columns import INSTANTS, JOBS, RUNS, WITH_EXCLUDED
from schedctl.commands.backfill import backfill, backfills, cancel_backfill
from schedctl.commands.changes import change, delete_each, resume_one
from schedctl.commands.run import show_started
from schedctl.failure import CommandFailure
from schedctl.manifests import job_diff
from schedctl.options.global_options import (
    CommandGroup,
    flag,
    key_option,
    limit_option,
    option,
    pass_session,
)
from schedctl.options.job_options import (
    edit_options,
    job_of,
    need_action,
    notice_options,
    read_payload,
    schedule_options,
    work_options,
)
from schedctl.options.types import GUARD, TIME, TIME_TYPE
from schedctl.output import (
    message,
    show_data,
    show_facts,
    show_fields,
    show_list,
    show_listing,
    show_one,
    show_warnings,
)
from schedctl.session import Session
from schedproto.v1 import job_pb2


@click.group(cls=CommandGroup)
def job() -> None:
    """Manage jobs: what runs, when, and how."""


for command in (backfill, backfills, cancel_backfill):
    job.add_command(command)


@job.command()
@click.argument("name")
@key_option("job")
@flag("--dry-run", "Validate the job and store nothing.")
@schedule_options
@flag("--paused", "Create the job paused: it doesn't run on schedule until `job resume`.")
@work_options
@notice_options("  [default: no notification]")
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
    """Create a job: `job create NAME --cron '0 2 * * *' -- /opt/etl --full`."""
    spec, _ = job_of(flags, argv)
    need_action(spec)
    made = session.run(
        lambda client: client.jobs.create(
            name, spec, idempotency_key=idempotency_key, validate_only=dry_run
        )
    )
    show_one(session, made, JOBS)
    _warn_of(spec)
    show_warnings(made)
    if dry_run:
        message("valid; nothing was stored")


def _warn_of(spec: job_pb2.Job) -> None:
    """Warn if runs would end each other. Only such a job imports the code of schedules."""
    if spec.overlap in (job_pb2.OVERLAP_CANCEL_OTHER, job_pb2.OVERLAP_TERMINATE_OTHER):
        from schedctl.timetables import timetables

        if found := timetables.surprise_of(spec):
            message(f"warning: {found.problem} ({found.hint})")


@job.command("list")
@limit_option
@option(
    "--filter 'FIELD:VALUE …'",
    "Filter of the jobs to list, such as 'paused:true label.team:etl'; other"
    " fields: name, pool, action.  [default: all jobs]",
    "where",
    default="",
)
@pass_session
def list_jobs(session: Session, limit: int | None, where: str) -> None:
    """List jobs, newest first."""
    show_listing(
        session, limit, lambda client, most: client.jobs.list(where=where, limit=most), JOBS
    )


@job.command()
@click.argument("name")
@pass_session
def get(session: Session, name: str) -> None:
    """Show a job in one row."""
    session.asked_job = name
    show_one(session, session.run(lambda client: client.jobs.get(name)), JOBS)


@job.command()
@click.argument("name")
@pass_session
def describe(session: Session, name: str) -> None:
    """Show all fields of a job, its next scheduled times and its latest runs."""
    session.asked_job = name

    async def work(client: Client) -> tuple[Job, tuple[Instant, ...], list[Run]]:
        found = await client.jobs.get(name)
        coming = () if found.paused else await client.jobs.next(name, count=5)
        runs = [one async for one in client.runs.list(job=name, limit=5)]
        return found, coming, runs

    found, coming, runs = session.run(work)
    show_fields(session, found, JOBS)
    if not session.tabular:
        return
    show_facts(session, job_diff.remaining(found.to_json(snake=True), found.action))
    if coming:
        message("next:")
        show_list(session, coming, INSTANTS)
    if runs:
        message("latest runs:")
        show_list(session, runs, RUNS)


@job.command()
@click.argument("name")
@flag("--dry-run", "Preview: show the change, store nothing, exit 1 if there is a change.")
@option(
    "--etag",
    "Version of the job, the field etag of `job get -o json`. If the job has another etag,"
    " nothing is changed.  [default: any etag]",
    type=GUARD,
)
@edit_options
@notice_options(" '' removes the notification.  [default: unchanged]")
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
    """Change the given fields of a job. The change is shown first.

    A field without an option keeps its value.
    """
    session.asked_job = name
    spec, named = job_of(flags, argv)
    if not named:
        raise CommandFailure(
            "no change is given", reason="NO_CHANGE", remedy="name a field: --timeout 5m, --cron …"
        )

    async def work(client: Client) -> tuple[Job, bool]:
        before = await client.jobs.get(name)
        merged = job_diff.merged(before, spec, named)
        after = await client.jobs.update(
            before.name, merged, mask=named, etag=etag or "", validate_only=True
        )
        changes = job_diff.between(session, before, after)
        for line in changes:
            message(line)
        if dry_run or not changes:
            return after, bool(changes)
        return await client.jobs.update(
            before.name, merged, mask=named, etag=etag or before.etag
        ), False

    after, differs = session.run(work)
    show_one(session, after, JOBS)
    show_warnings(after)
    if differs:
        message("nothing was stored")
        click.get_current_context().exit(1)


@job.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@option("--note", "Note to store in the audit log.  [default: no note]", default="")
@pass_session
def delete(session: Session, names: tuple[str, ...], note: str) -> None:
    """Delete jobs. No new run of a deleted job starts; running runs finish."""

    async def one(client: Client, name: str) -> None:
        session.asked_job = name
        await client.jobs.delete(name, note)

    delete_each(session, names, one, "delete job", always=True)


@job.command()
@click.argument("name")
@option("--note", "Note to show with the pause.  [default: no note]", default="")
@option(
    f"--until {TIME}",
    "Time at which the job is resumed automatically; +3s is 3 s from now.  [default: the pause"
    " has no end]",
    type=TIME_TYPE,
)
@pass_session
def pause(session: Session, name: str, note: str, until: datetime | None) -> None:
    """Pause a job's schedule until `job resume`. `job trigger` still starts runs.

    Scheduled times in the pause don't run, and aren't caught up after the resume.
    """
    session.asked_job = name
    change(session, lambda client: client.jobs.pause(name, note, until=until), JOBS)
    message(f"paused {name}")


@job.command()
@click.argument("name")
@pass_session
def resume(session: Session, name: str) -> None:
    """Resume a paused job."""
    session.asked_job = name
    resume_one(session, name, lambda client: client.jobs, JOBS)


@job.command()
@click.argument("name")
@option("--payload JSON|@FILE|-", "Payload of the run.  [default: the job's payload]")
@option("--priority high|medium|low", "Priority of the run.  [default: the job's priority]")
@option(
    "--overlap skip|allow|…",
    "Overlap policy of the run; also buffer_one, buffer_all, cancel_other, terminate_other. "
    " [default: the job's policy]",
)
@option("--delay DURATION", "Time to wait before the run starts.  [default: 0s]")
@key_option("run")
@flag("--wait", "Wait until the run has ended, then print its output.")
@flag("--follow", "Wait as with --wait, and print the output as it arrives.")
@flag("--exit-status", "Wait as with --wait, and exit with the exit code of the job.")
@pass_session
def trigger(
    session: Session,
    /,
    name: str,
    payload: str | None,
    wait: bool,
    follow: bool,
    exit_status: bool,
    **asked: Any,
) -> None:
    """Start a run of a job now, also while the job is paused."""
    session.asked_job = name
    given = read_payload(payload) if payload is not None else None
    wait = wait or follow or exit_status

    async def work(client: Client) -> Run:
        run = await client.jobs.trigger(name, given, **asked)
        return await run_follower.stay(session, client, run, follow=follow) if wait else run

    run = session.run(work)
    show_started(session, run, waited=wait, passed_on=exit_status)


@job.command("next")
@click.argument("name")
@option(
    f"--after {TIME}",
    "Time after which scheduled times are listed; +3s is 3 s from now.  [default: now]",
    type=TIME_TYPE,
)
@option(
    "--count N",
    "Number of scheduled times to list.",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
)
@flag("--excluded", "Also list the excluded times.")
@pass_session
def next_instants(
    session: Session, name: str, after: datetime | None, count: int, excluded: bool
) -> None:
    """List the next scheduled times of a job."""
    session.asked_job = name

    async def work(client: Client) -> tuple[Job, tuple[Instant, ...]]:
        found = await client.jobs.get(name)
        coming = await client.jobs.next(name, after=after, count=count, excluded=excluded)
        return found, coming

    found, coming = session.run(work)
    if found.paused:
        note = f": {found.pause_note}" if found.pause_note else ""
        until = f", until {found.paused_until.isoformat()}" if found.paused_until else ""
        message(f"{name} is paused{until}{note}; none of these times runs while it is paused")
    if not coming:
        message(f"{name} has no scheduled time" + (" after that" if after else " in the future"))
    show_list(session, coming, WITH_EXCLUDED if excluded else INSTANTS)


@job.command()
@click.argument("name")
@option(
    f"--at {TIME}", "Scheduled time to explain; +3s is 3 s from now.", required=True, type=TIME_TYPE
)
@pass_session
def explain(session: Session, name: str, at: datetime) -> None:
    """Explain why a job ran, or didn't run, at a scheduled time."""
    session.asked_job = name
    found = session.run(lambda client: client.jobs.explain(name, at))
    if not session.tabular:
        show_data(session, found.to_json(snake=session.output == "yaml"))
        return
    click.echo(found.answer)
    runs = [*([found.run] if found.run else []), *found.backfilled]
    if runs:
        show_list(session, runs, RUNS)
