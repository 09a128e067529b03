"""The calendars among manifests: validated with the jobs, stored before them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from schedclient import ApiError, Calendar, Client, NotFound
from schedclient.calls.calendars import Calendars
from schedctl.failure import of_manifest
from schedctl.manifests.manifests import CalendarManifest
from schedproto.v1 import job_pb2


@dataclass(frozen=True, slots=True)
class CalendarStep:
    """The change for one manifest."""

    manifest: CalendarManifest
    before: Calendar | None
    after: Calendar

    @property
    def verb(self) -> str:
        """Return created, updated or unchanged."""
        if self.before is None:
            return "created"
        return "unchanged" if self.before.version == self.after.version else "updated"


async def plan(client: Client, found: Sequence[CalendarManifest]) -> list[CalendarStep]:
    """Return the change for each manifest; raise the cluster's first rejection."""
    steps = []
    for manifest in found:
        calendars, name = _calls(client, manifest), manifest.calendar.name
        try:
            try:
                before = await calendars.get(name)
            except NotFound:
                before = None
            after = await calendars.apply(name, manifest.calendar, validate_only=True)
        except ApiError as error:
            raise of_manifest(error, manifest.where, name) from error
        steps.append(CalendarStep(manifest, before, after))
    return steps


async def store(client: Client, steps: Sequence[CalendarStep]) -> list[CalendarStep]:
    """Store the calendars, also unchanged ones: some of their jobs may use an older version."""
    done = []
    for step in steps:
        calendar = step.manifest.calendar
        after = await _calls(client, step.manifest).apply(calendar.name, calendar)
        done.append(CalendarStep(step.manifest, step.before, after))
    return done


def made(steps: Sequence[CalendarStep], namespace: str) -> Set[tuple[str, str]]:
    """Return namespace and name of the calendars that will be created."""
    return {
        (step.manifest.calendar.namespace or namespace, step.after.name)
        for step in steps
        if step.before is None
    }


def without(job: job_pb2.Job, made: Set[tuple[str, str]], namespace: str) -> job_pb2.Job:
    """Return the job without calendars that don't exist yet."""
    here = job.namespace or namespace
    kept = [name for name in job.exclude.calendars if (here, name) not in made]
    if len(kept) == len(job.exclude.calendars):
        return job
    checked = job_pb2.Job()
    checked.CopyFrom(job)
    checked.exclude.calendars[:] = kept
    return checked


def _calls(client: Client, manifest: CalendarManifest) -> Calendars:
    namespace = manifest.calendar.namespace
    return client.calendars.in_namespace(namespace) if namespace else client.calendars
