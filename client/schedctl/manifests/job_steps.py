"""The jobs among manifests: validated with everything else, stored last."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final, cast

from google.protobuf.message import Message

from schedclient import ApiError, Client, Job, NotFound
from schedclient.calls.jobs import Jobs
from schedclient.values.reading import value_of
from schedctl.failure import CommandFailure, of_manifest
from schedctl.manifests.manifests import JobManifest, placed
from schedctl.manifests.object_steps import verb_of
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


def parents_first(found: Sequence[JobManifest], namespace: str) -> list[JobManifest]:
    """Return the manifests with parents before their children. Visits depth first, without
    recursion: a chain may be longer than the stack. Raises CommandFailure: the jobs form a cycle;
    the message has its path.
    """
    by_key = {key_of(one.spec, namespace): one for one in found}
    done: dict[JobKey, JobManifest] = {}
    for first in by_key:
        path = [first]
        while path:
            here = path[-1]
            parents = [(here[0], name) for name in by_key[here].spec.after.jobs]
            left = [one for one in parents if one in by_key and one not in done]
            if here in done or not left:
                done.setdefault(here, by_key[here])
                path.pop()
            elif left[0] in path:
                names = [name for _, name in path[path.index(left[0]) :]]
                cycle = " → ".join([left[0][1], *reversed(names)])
                raise CommandFailure(
                    f"{by_key[here].where}: job {here[1]} would run after itself: after.jobs"
                    f" closes the cycle {cycle}",
                    reason="CHAIN_CYCLE",
                    remedy="in the manifest of one job of this cycle, remove the parent that is"
                    " also in the cycle from after.jobs; nothing was stored",
                )
            else:
                path.append(left[0])
    return list(done.values())


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

    manifest: JobManifest
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
        """Return note and end of the pause to set; None if no pause is needed. Note and end that
        the manifest doesn't name are kept. A manifest without `paused` doesn't resume the job.
        """
        was, spec = self.before, self.manifest.spec
        if was is None or not spec.paused:
            return None
        current = (was.pause_note or "", was.paused_until) if was.paused else None
        note, until = current or ("", None)
        if spec.HasField("paused_until"):
            until = spec.paused_until.ToDatetime(tzinfo=UTC)
        wanted = (spec.pause_note or note, until)
        return None if wanted == current else wanted

    @property
    def verb(self) -> str:
        return verb_of(self.before, changed=self.edited or self.pause is not None)


async def plan(
    client: Client, found: Sequence[JobManifest], checked: Callable[[job_pb2.Job], job_pb2.Job]
) -> list[JobStep]:
    """Return the change for each manifest, parents first; raise the cluster's first rejection.
    `checked` removes the objects from a job that don't exist yet.
    """
    steps = []
    made: set[JobKey] = set()
    for manifest in parents_first(found, client.namespace):
        job = without_new_parents(checked(manifest.spec), made, client.namespace)
        try:
            step = await _planned(placed(client.jobs, manifest.spec.namespace), manifest, job)
        except ApiError as error:
            raise _refused(error, manifest) from error
        if job is not manifest.spec:
            step = replace(step, after=_whole(step.after, manifest.spec), partly=True)
        if step.before is None:
            made.add(key_of(manifest.spec, client.namespace))
        steps.append(step)
    return steps


async def _planned(jobs: Jobs, manifest: JobManifest, job: job_pb2.Job) -> JobStep:
    try:
        before = await jobs.get(job.name)
    except NotFound:
        if job.etag:
            raise CommandFailure(
                f"{manifest.where}: job {job.name} not found, but the manifest has an etag of an"
                " existing job",
                status="ABORTED",
                reason="ETAG_MISMATCH",
                remedy="remove etag from the manifest to create the job",
            ) from None
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


async def _created(jobs: Jobs, manifest: JobManifest, job: job_pb2.Job) -> JobStep:
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
        job = step.manifest.spec
        jobs = placed(client.jobs, job.namespace)
        if step.before is None:
            after = await jobs.create(job.name, job)
        else:
            after = await _changed(jobs, step, step.before)
        done.append(JobStep(step.manifest, step.before, after))
    return done


async def _changed(jobs: Jobs, step: JobStep, before: Job) -> Job:
    """Pause first, so that no run of the new definition starts."""
    job, seen = step.manifest.spec, before
    if step.pause is not None:
        seen = await _paused(jobs, step, *step.pause, before)
    if not step.edited:
        return seen
    plain = _plain(job, "etag")  # the plan compared the etags already
    return await jobs.update(job.name, plain, mask=ALL, etag=seen.etag)


async def _paused(jobs: Jobs, step: JobStep, note: str, until: datetime | None, before: Job) -> Job:
    """Pause the job, if it is still the planned one."""
    name = step.manifest.spec.name
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


def _refused(error: ApiError, manifest: JobManifest) -> CommandFailure:
    remedy, name = "", manifest.spec.name
    if error.reason == "ETAG_MISMATCH" and manifest.spec.etag:
        remedy = (
            f"read the job again (schedctl job get {name} -o yaml), or remove etag to overwrite it"
        )
    return of_manifest(error, manifest.where, name, remedy)


def _over(error: ApiError, field: str) -> bool:
    """Return whether the cluster rejected a pause because its end is past."""
    return any(one.field == field and one.problem == IN_THE_PAST for one in error.violations)


def _without_pause(manifest: JobManifest) -> JobManifest:
    name = manifest.spec.name
    message(f"{manifest.where}: paused_until of {name} is in the past: the pause is ignored")
    return replace(manifest, spec=_plain(manifest.spec, *PAUSE))


def _plain(job: job_pb2.Job, *fields: str) -> job_pb2.Job:
    found = job_pb2.Job()
    found.CopyFrom(job)
    plain: Message = found
    for field in fields:
        plain.ClearField(field)
    return found
