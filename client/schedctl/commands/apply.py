"""`schedctl apply`: make the jobs as manifests say. All are checked before the first is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import click
from google.protobuf.message import Message

from schedclient import ApiError, Client, Job, NotFound
from schedclient.jobs import Jobs
from schedctl import calendar_steps, changes, manifests
from schedctl.columns import JOBS
from schedctl.failure import Failure, untold
from schedctl.flags import Command, pass_session
from schedctl.manifests import CalendarManifest, Manifest
from schedctl.output import message, show_list
from schedctl.session import Session
from schedproto.v1 import job_pb2

ALL: Final = ("*",)
PAUSE: Final = ("paused", "pause_note", "paused_until")


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done for one manifest: created, updated or unchanged."""

    manifest: Manifest
    before: Job | None
    after: Job

    @property
    def edited(self) -> bool:
        """Whether its definition changes."""
        return self.before is not None and self.before.generation != self.after.generation

    @property
    def pause(self) -> tuple[str, datetime | None] | None:
        """Note and end of the pause that is to be made; None: of none. What the manifest doesn't
        say of a pause stays as it is, and one that says nothing of it resumes nobody.
        """
        was, said = self.before, self.manifest.job
        if was is None or not said.paused:
            return None
        there = (was.pause_note or "", was.paused_until) if was.paused else None
        note, until = there or ("", None)
        wanted = (said.pause_note or note, _until(said) or until)
        return None if wanted == there else wanted

    @property
    def verb(self) -> str:
        """What happens to the job."""
        if self.before is None:
            return "created"
        return "updated" if self.edited or self.pause else "unchanged"


@click.command(cls=Command)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="Manifests; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change. Exit 1 if anything would.")
@pass_session
def apply(session: Session, files: tuple[str, ...], dry_run: bool) -> None:
    """Create or update jobs and calendars from manifests; nothing is stored if one is wrong.

    A manifest with an etag goes over no other's change: it must be the job's own. Its namespace is
    the one it names, else that of --namespace or the context.
    """
    reading = manifests.read_or_fail(files)
    found = reading.manifests
    if "namespace" in session.typed:
        _refuse_others(found, session.namespace)
        _refuse_others(reading.calendars, session.namespace)
    calendars = session.run(lambda client: calendar_steps.plan(client, reading.calendars))
    made = calendar_steps.made(calendars, session.namespace)
    steps = session.run(lambda client: _plan(client, found, made))
    for step in steps:
        if step.before is not None and step.verb == "updated":
            message(f"{step.after.name}:")
            for line in changes.between(session, step.before, step.after):
                message(line)
            if step.pause is not None:
                message(f"  paused: {step.pause[0] or 'true'}")
    if not dry_run:
        calendars = session.run(lambda client: calendar_steps.store(client, calendars))
        steps = session.run(lambda client: _store(client, steps))
    if session.tabular:
        would = "would be " if dry_run else ""
        for one in calendars:
            click.echo(f"calendar {one.after.name} v{one.after.version} {would}{one.verb}")
        for step in steps:
            click.echo(f"job {step.after.name} {would}{step.verb}")
        told = Counter([*(one.verb for one in calendars), *(step.verb for step in steps)])
        message(", ".join(f"{count} {would}{verb}" for verb, count in told.items()) or "nothing")
    else:
        show_list(session, [step.after for step in steps], JOBS, lambda one: one.name)
    verbs = {*(one.verb for one in calendars), *(step.verb for step in steps)}
    if dry_run and verbs - {"unchanged"}:
        click.get_current_context().exit(1)


def _over(error: ApiError, field: str) -> bool:
    """Whether a pause was refused for its end has come, by the cluster's time."""
    return any(one.field == field and one.problem == "is past" for one in error.violations)


def _without_pause(manifest: Manifest) -> Manifest:
    """The manifest without its pause, which is over: the job went on then, by what it says."""
    message(f"{manifest.where}: the pause of {manifest.job.name} is over: it pauses nothing")
    return replace(manifest, job=_plain(manifest.job, *PAUSE))


def _plain(job: job_pb2.Job, *fields: str) -> job_pb2.Job:
    """The job without these fields."""
    found = job_pb2.Job()
    found.CopyFrom(job)
    plain: Message = found
    for field in fields:
        plain.ClearField(field)
    return found


def _refuse_others(found: Sequence[Manifest | CalendarManifest], namespace: str) -> None:
    """Refuse manifests that name another namespace than the one that was typed."""
    for manifest in found:
        one = manifest.job if isinstance(manifest, Manifest) else manifest.calendar
        if one.namespace not in ("", namespace):
            raise Failure(
                f"{manifest.where}: {one.name} is for namespace {one.namespace}, not {namespace}",
                reason="WRONG_NAMESPACE",
                remedy="leave --namespace out, or the manifest's namespace",
            )


def _jobs(client: Client, job: job_pb2.Job) -> Jobs:
    """The calls for jobs of the namespace that the manifest names, if it does."""
    return client.jobs.in_namespace(job.namespace) if job.namespace else client.jobs


async def _plan(
    client: Client, found: Sequence[Manifest], made: Set[tuple[str, str]]
) -> list[Step]:
    """What the cluster would do with each, or the first refusal, before anything is stored. The
    calendars that are `made` before the jobs aren't there yet: a job is checked without them.
    """
    steps = []
    for manifest in found:
        jobs = _jobs(client, manifest.job)
        job = calendar_steps.without(manifest.job, made, client.namespace)
        try:
            try:
                before = await jobs.get(job.name)
            except NotFound:
                if job.etag:
                    raise _gone(manifest) from None
                steps.append(await _created(jobs, manifest, job))
                continue
            after = await jobs.update(job.name, job, mask=ALL, etag=before.etag, validate_only=True)
            steps.append(Step(manifest, before, after))
        except ApiError as error:
            raise _refused(error, manifest) from error
    return steps


async def _created(jobs: Jobs, manifest: Manifest, job: job_pb2.Job) -> Step:
    try:
        after = await jobs.create(job.name, job, validate_only=True)
    except ApiError as error:
        if not _over(error, "paused_until"):
            raise
        manifest = _without_pause(manifest)
        plain = _plain(job, *PAUSE)
        after = await jobs.create(job.name, plain, validate_only=True)
    return Step(manifest, None, after)


async def _store(client: Client, steps: Sequence[Step]) -> list[Step]:
    done = []
    for step in steps:
        job = step.manifest.job
        jobs = _jobs(client, job)
        if step.before is None:
            after = await jobs.create(job.name, job)
        else:
            after = await _changed(jobs, step, step.before)
        done.append(Step(step.manifest, step.before, after))
    return done


async def _changed(jobs: Jobs, step: Step, before: Job) -> Job:
    """Paused first: nothing of a new definition starts that isn't to start."""
    job, seen = step.manifest.job, before
    if step.pause is not None:
        seen = await _paused(jobs, step, *step.pause, before)
    if not step.edited:
        return seen
    plain = _plain(job, "etag")  # the plan has compared it with the job's own
    return await jobs.update(job.name, plain, mask=ALL, etag=seen.etag)


async def _paused(jobs: Jobs, step: Step, note: str, until: datetime | None, before: Job) -> Job:
    """The job as it was planned from, paused."""
    name = step.manifest.job.name
    try:
        return await jobs.pause(name, note, until=until, etag=before.etag)
    except ApiError as error:
        if _over(error, "until"):
            _without_pause(step.manifest)
            return before
        if error.reason != "ETAG_MISMATCH":
            raise
        found = await jobs.get(name)  # a call that wasn't answered is made again
        ours = found.paused and found.generation == before.generation + 1
        if not ours or found.job_id != before.job_id or (found.pause_note or "") != note:
            raise
        return found


def _until(job: job_pb2.Job) -> datetime | None:
    if not job.HasField("paused_until"):
        return None
    return job.paused_until.ToDatetime(tzinfo=UTC)


def _gone(manifest: Manifest) -> Failure:
    """An etag is of a job that was seen; there is none of this name now."""
    return Failure(
        f"{manifest.where}: {manifest.job.name}: no such job, and the manifest has an etag",
        status="ABORTED",
        reason="ETAG_MISMATCH",
        remedy="leave etag out of the manifest to create the job",
    )


def _refused(error: ApiError, manifest: Manifest) -> Failure:
    remedy = error.remedy
    if error.reason == "ETAG_MISMATCH" and manifest.job.etag:
        name = manifest.job.name
        remedy = f"get it anew (schedctl job get {name} -o yaml), or leave etag out to overwrite it"
    return Failure(
        f"{manifest.where}: {manifest.job.name}: {error.what}",
        status=error.status,
        reason=error.reason,
        details=untold(error),
        remedy=remedy,
    )
