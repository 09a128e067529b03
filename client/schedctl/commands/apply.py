"""`schedctl apply`: make the jobs as manifests say. All are checked before the first is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import click

from schedclient import ApiError, Client, Job, NotFound
from schedclient.jobs import Jobs
from schedctl import changes, manifests
from schedctl.columns import JOBS
from schedctl.failure import Failure, untold
from schedctl.flags import Command, pass_session
from schedctl.manifests import Fault, Manifest
from schedctl.output import message, show_list
from schedctl.session import Session
from schedproto.v1 import job_pb2

ALL: Final = ("*",)


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done for one manifest: created, updated or unchanged."""

    manifest: Manifest
    before: Job | None
    after: Job

    @property
    def verb(self) -> str:
        """What happens to the job."""
        if self.before is None:
            return "created"
        same = self.before.generation == self.after.generation
        return "unchanged" if same else "updated"


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
    """Create or update jobs from manifests; nothing is stored if one of them is wrong.

    A manifest with an etag goes over no other's change: it must be the job's own. Its namespace is
    the one it names, else that of --namespace or the context.
    """
    found = _read(files)
    if "namespace" in session.typed:
        _refuse_others(found, session.namespace)
    steps = session.run(lambda client: _plan(client, found))
    for step in steps:
        if step.before is not None and step.verb == "updated":
            message(f"{step.after.name}:")
            for line in changes.between(session, step.before, step.after):
                message(line)
    if not dry_run:
        steps = session.run(lambda client: _store(client, steps))
    if session.tabular:
        would = "would be " if dry_run else ""
        for step in steps:
            click.echo(f"job {step.after.name} {would}{step.verb}")
        told = Counter(step.verb for step in steps)
        message(", ".join(f"{count} {would}{verb}" for verb, count in told.items()) or "no jobs")
    else:
        show_list(session, [step.after for step in steps], JOBS, lambda one: one.name)
    if dry_run and any(step.verb != "unchanged" for step in steps):
        click.get_current_context().exit(1)


def _read(files: Sequence[str]) -> Sequence[Manifest]:
    try:
        reading = manifests.read(files)
    except OSError as error:
        raise Failure(
            f"{error.filename}: {error.strerror}", reason="NO_FILE", remedy="check the file's name"
        ) from error
    if reading.faults:
        raise _wrong(reading.faults)
    return reading.manifests


def _wrong(faults: Sequence[Fault]) -> Failure:
    first, *others = faults
    unbuilt = all(fault.unbuilt for fault in faults)
    return Failure(
        f"{first.where}: {first.problem}",
        status="UNIMPLEMENTED" if unbuilt else "INVALID_ARGUMENT",
        reason="NOT_BUILT" if unbuilt else "WRONG_MANIFEST",
        details=[
            f"{fault.where}: {fault.problem}" + (f" ({fault.hint})" if fault.hint else "")
            for fault in others
        ],
        remedy=first.hint or "mend it and apply again; nothing was stored",
    )


def _refuse_others(found: Sequence[Manifest], namespace: str) -> None:
    """Refuse manifests that name another namespace than the one that was typed."""
    for manifest in found:
        if manifest.job.namespace not in ("", namespace):
            raise Failure(
                f"{manifest.where}: {manifest.job.name} is for namespace {manifest.job.namespace},"
                f" not {namespace}",
                reason="WRONG_NAMESPACE",
                remedy="leave --namespace out, or the manifest's namespace",
            )


def _jobs(client: Client, job: job_pb2.Job) -> Jobs:
    """The calls for jobs of the namespace that the manifest names, if it does."""
    return client.jobs.in_namespace(job.namespace) if job.namespace else client.jobs


async def _plan(client: Client, found: Sequence[Manifest]) -> list[Step]:
    """What the cluster would do with each, or the first refusal, before anything is stored."""
    steps = []
    for manifest in found:
        job = manifest.job
        jobs = _jobs(client, job)
        try:
            try:
                before = await jobs.get(job.name)
            except NotFound:
                if job.etag:
                    raise _gone(manifest) from None
                after = await jobs.create(job.name, job, validate_only=True)
                steps.append(Step(manifest, None, after))
                continue
            after = await jobs.update(job.name, job, mask=ALL, etag=before.etag, validate_only=True)
            steps.append(Step(manifest, before, after))
        except ApiError as error:
            raise _refused(error, manifest) from error
    return steps


async def _store(client: Client, steps: Sequence[Step]) -> list[Step]:
    done = []
    for step in steps:
        job = step.manifest.job
        jobs = _jobs(client, job)
        if step.before is None:
            after = await jobs.create(job.name, job)
        elif step.verb == "updated":
            after = await jobs.update(job.name, job, mask=ALL, etag=step.before.etag)
        else:
            after = step.before
        done.append(Step(step.manifest, step.before, after))
    return done


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
