"""The jobs among manifests: validated with everything else, stored last."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final, cast

from google.protobuf.message import Message

from schedclient import ApiError, Client, Job, NotFound
from schedclient.calls.jobs import Jobs
from schedclient.values.reading import value_of
from schedctl.failure import CommandFailure, of_manifest
from schedctl.manifests.manifests import Manifest, placed
from schedctl.output import message
from schedkit.protojson.problems import IN_THE_PAST
from schedkit.records import dataclass, replace
from schedproto.v1 import job_pb2

# The order of jobs in a chain: parents are stored first, whatever their order in the file.
#
# manifests ─→ in_order: parents before children, else the order of the file; a cycle is rejected
# plan: a child is validated without parents that don't exist yet (`without_new_parents`)

JobKey = tuple[str, str]
"""Namespace and name."""


def key_of(job: job_pb2.Job, namespace: str) -> JobKey:
    """Return the key of a job; `namespace` is the default."""
    return (job.namespace or namespace, job.name)


def parents_first(found: Sequence[Manifest], namespace: str) -> list[Manifest]:
    """Return the manifests with parents before their children.

    Raises:
        CommandFailure: the jobs form a cycle; the message has its path.
    """
    by_key = {key_of(one.job, namespace): one for one in found}
    done: dict[JobKey, Manifest] = {}
    for key in by_key:
        _visit(key, by_key, done)
    return list(done.values())


def _visit(first: JobKey, by_key: dict[JobKey, Manifest], done: dict[JobKey, Manifest]) -> None:
    """Visit depth first, without recursion: a chain may be longer than the stack."""
    path = [first]
    while path:
        here = path[-1]
        place, _ = here
        if here in done:
            path.pop()
            continue
        parents = [(place, name) for name in by_key[here].job.after.jobs]
        left = [one for one in parents if one in by_key and one not in done]
        if not left:
            done[here] = by_key[here]
            path.pop()
        elif left[0] in path:
            names = [name for _, name in path[path.index(left[0]) :]]
            cycle = " → ".join([left[0][1], *reversed(names)])
            raise CommandFailure(
                f"{by_key[here].where}: job {here[1]} would run after itself: after.jobs closes the"
                f" cycle {cycle}",
                reason="CHAIN_CYCLE",
                remedy="in the manifest of one job of this cycle, remove the parent that is also in"
                " the cycle from after.jobs; nothing was stored",
            )
        else:
            path.append(left[0])


def without_new_parents(job: job_pb2.Job, made: Collection[JobKey], namespace: str) -> job_pb2.Job:
    """Return the job without parents that don't exist yet, for validation."""
    place, _ = key_of(job, namespace)
    there = [name for name in job.after.jobs if (place, name) not in made]
    if len(there) == len(job.after.jobs):
        return job
    found = job_pb2.Job()
    found.CopyFrom(job)
    if there:
        found.after.jobs[:] = there
    else:
        found.ClearField("after")
        found.on_demand = True
    return found


ALL: Final = ("*",)
PAUSE: Final = ("paused", "pause_note", "paused_until")


@dataclass(frozen=True, slots=True)
class JobStep:
    """The change for one manifest: created, updated or unchanged."""

    manifest: Manifest
    before: Job | None
    after: Job
    partly: bool = False
    """Validated without the objects that don't exist yet; it can't be unchanged."""

    @property
    def edited(self) -> bool:
        was = self.before
        return was is not None and (self.partly or was.generation != self.after.generation)

    @property
    def pause(self) -> tuple[str, datetime | None] | None:
        """Return note and end of the pause to set; None if no pause is needed.

        Note and end that the manifest doesn't name are kept. A manifest without `paused` doesn't
        resume the job.
        """
        was, spec = self.before, self.manifest.job
        if was is None or not spec.paused:
            return None
        current = (was.pause_note or "", was.paused_until) if was.paused else None
        note, until = current or ("", None)
        wanted = (spec.pause_note or note, _until(spec) or until)
        return None if wanted == current else wanted

    @property
    def verb(self) -> str:
        if self.before is None:
            return "created"
        return "updated" if self.edited or self.pause else "unchanged"


async def plan(
    client: Client, found: Sequence[Manifest], checked: Callable[[job_pb2.Job], job_pb2.Job]
) -> list[JobStep]:
    """Return the change for each manifest, parents first; raise the cluster's first rejection.

    `checked` removes the objects from a job that don't exist yet.
    """
    steps = []
    made: set[JobKey] = set()
    for manifest in parents_first(found, client.namespace):
        job = without_new_parents(checked(manifest.job), made, client.namespace)
        try:
            step = await _planned(placed(client.jobs, manifest.job.namespace), manifest, job)
        except ApiError as error:
            raise _refused(error, manifest) from error
        if job is not manifest.job:
            step = replace(step, after=_whole(step.after, manifest.job), partly=True)
        if step.before is None:
            made.add(key_of(manifest.job, client.namespace))
        steps.append(step)
    return steps


async def _planned(jobs: Jobs, manifest: Manifest, job: job_pb2.Job) -> JobStep:
    try:
        before = await jobs.get(job.name)
    except NotFound:
        if job.etag:
            raise _job_deleted_failure(manifest) from None
        return await _created(jobs, manifest, job)
    after = await jobs.update(job.name, job, mask=ALL, etag=before.etag, validate_only=True)
    return JobStep(manifest, before, after)


def _whole(after: Job, job: job_pb2.Job) -> Job:
    """Return the validated job with the objects it was validated without."""
    whole = job_pb2.Job()
    whole.CopyFrom(cast("job_pb2.Job", after.message))
    whole.pool = job.pool
    if job.HasField("exclude"):
        whole.exclude.CopyFrom(job.exclude)
    if job.HasField("after"):
        whole.after.CopyFrom(job.after)
        whole.on_demand = False
    return value_of(Job, whole)


async def _created(jobs: Jobs, manifest: Manifest, job: job_pb2.Job) -> JobStep:
    try:
        after = await jobs.create(job.name, job, validate_only=True)
    except ApiError as error:
        if not _over(error, "paused_until"):
            raise
        manifest = _without_pause(manifest)
        plain = _plain(job, *PAUSE)
        after = await jobs.create(job.name, plain, validate_only=True)
    return JobStep(manifest, None, after)


async def store(client: Client, steps: Sequence[JobStep]) -> list[JobStep]:
    done = []
    for step in steps:
        job = step.manifest.job
        jobs = placed(client.jobs, job.namespace)
        if step.before is None:
            after = await jobs.create(job.name, job)
        else:
            after = await _changed(jobs, step, step.before)
        done.append(JobStep(step.manifest, step.before, after))
    return done


async def _changed(jobs: Jobs, step: JobStep, before: Job) -> Job:
    """Pause first, so that no run of the new definition starts."""
    job, seen = step.manifest.job, before
    if step.pause is not None:
        seen = await _paused(jobs, step, *step.pause, before)
    if not step.edited:
        return seen
    plain = _plain(job, "etag")  # the plan compared the etags already
    return await jobs.update(job.name, plain, mask=ALL, etag=seen.etag)


async def _paused(jobs: Jobs, step: JobStep, note: str, until: datetime | None, before: Job) -> Job:
    """Pause the job, if it is still the planned one."""
    name = step.manifest.job.name
    try:
        return await jobs.pause(name, note, until=until, etag=before.etag)
    except ApiError as error:
        if _over(error, "until"):
            _without_pause(step.manifest)
            return before
        if error.reason != "ETAG_MISMATCH":
            raise
        found = await jobs.get(name)  # the client may have retried a call without an answer
        ours = found.paused and found.generation == before.generation + 1
        if not ours or found.job_id != before.job_id or (found.pause_note or "") != note:
            raise
        return found


def _until(job: job_pb2.Job) -> datetime | None:
    if not job.HasField("paused_until"):
        return None
    return job.paused_until.ToDatetime(tzinfo=UTC)


def _job_deleted_failure(manifest: Manifest) -> CommandFailure:
    """Return the failure for a manifest with an etag whose job doesn't exist."""
    return CommandFailure(
        f"{manifest.where}: job {manifest.job.name} not found, but the manifest has an etag of an"
        " existing job",
        status="ABORTED",
        reason="ETAG_MISMATCH",
        remedy="remove etag from the manifest to create the job",
    )


def _refused(error: ApiError, manifest: Manifest) -> CommandFailure:
    remedy, name = "", manifest.job.name
    if error.reason == "ETAG_MISMATCH" and manifest.job.etag:
        remedy = (
            f"read the job again (schedctl job get {name} -o yaml), or remove etag to overwrite it"
        )
    return of_manifest(error, manifest.where, name, remedy)


def _over(error: ApiError, field: str) -> bool:
    """Return whether the cluster rejected a pause because its end is past."""
    return any(one.field == field and one.problem == IN_THE_PAST for one in error.violations)


def _without_pause(manifest: Manifest) -> Manifest:
    name = manifest.job.name
    message(f"{manifest.where}: paused_until of {name} is in the past: the pause is ignored")
    return replace(manifest, job=_plain(manifest.job, *PAUSE))


def _plain(job: job_pb2.Job, *fields: str) -> job_pb2.Job:
    found = job_pb2.Job()
    found.CopyFrom(job)
    plain: Message = found
    for field in fields:
        plain.ClearField(field)
    return found
