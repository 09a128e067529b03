"""The pools and calendars among manifests: validated with the jobs, stored before them."""

from collections.abc import Iterable, Sequence

from schedclient import ApiError, Calendar, Client, Conflict, Pool
from schedclient.calls.pools import Pools
from schedctl.failure import of_manifest
from schedctl.manifests import job_diff
from schedctl.manifests.manifests import CalendarManifest, PoolManifest, placed
from schedctl.session import existing
from schedkit.protojson import rate_text
from schedkit.records import dataclass
from schedproto.v1 import job_pb2


@dataclass(frozen=True, slots=True)
class PoolStep:
    manifest: PoolManifest
    before: Pool | None
    after: Pool

    @property
    def edited(self) -> bool:
        return bool(job_diff.of_pool(self.before, self.after))

    @property
    def pauses(self) -> bool:
        """Return whether to pause the pool. A manifest without `paused` doesn't resume it."""
        paused = self.before is not None and self.before.paused
        return self.manifest.pool.paused and not paused

    @property
    def verb(self) -> str:
        if self.before is None:
            return "created"
        return "updated" if self.edited or self.pauses else "unchanged"

    @property
    def lines(self) -> list[str]:
        if self.before is None:
            return []
        paused = f"  paused: {self.manifest.pool.pause_note or 'true'}"
        return job_diff.of_pool(self.before, self.after) + [paused] * self.pauses


@dataclass(frozen=True, slots=True)
class CalendarStep:
    manifest: CalendarManifest
    before: Calendar | None
    after: Calendar

    @property
    def verb(self) -> str:
        if self.before is None:
            return "created"
        return "unchanged" if self.before.version == self.after.version else "updated"


async def plan_pools(client: Client, found: Sequence[PoolManifest]) -> list[PoolStep]:
    """Return the change for each manifest; raise the cluster's first rejection."""
    steps = []
    for manifest in found:
        spec = manifest.pool
        pools = placed(client.pools, spec.namespace)
        try:
            before = await existing(pools.get(spec.name))
            after = await _set(pools, manifest, spec.version, validate_only=True)
        except ApiError as error:
            remedy = ""
            if isinstance(error, Conflict) and spec.version:
                again = f"schedctl pool describe {spec.name} -o yaml"
                remedy = f"read the pool again ({again}), or remove version"
            raise of_manifest(error, manifest.where, spec.name, remedy) from error
        steps.append(PoolStep(manifest, before, after))
    return steps


async def plan_calendars(client: Client, found: Sequence[CalendarManifest]) -> list[CalendarStep]:
    """Return the change for each manifest; raise the cluster's first rejection."""
    steps = []
    for manifest in found:
        spec = manifest.calendar
        calendars, name = placed(client.calendars, spec.namespace), spec.name
        try:
            before = await existing(calendars.get(name))
            after = await calendars.apply(name, spec, validate_only=True)
        except ApiError as error:
            raise of_manifest(error, manifest.where, name) from error
        steps.append(CalendarStep(manifest, before, after))
    return steps


async def store_pools(client: Client, steps: Sequence[PoolStep]) -> list[PoolStep]:
    """Store the changed pools, each only over the version that was planned from."""
    return [await _stored(client, step) for step in steps]


async def _stored(client: Client, step: PoolStep) -> PoolStep:
    """Pause an existing pool first, so that no run starts under the new limit."""
    spec, after = step.manifest.pool, step.before
    pools = placed(client.pools, spec.namespace)
    if after is not None and step.pauses:
        after = await pools.pause(spec.name, spec.pause_note)
    if after is None or step.edited:
        version = after.version if after else spec.version
        after = await _set(pools, step.manifest, version, validate_only=False)
    if step.before is None and step.pauses:
        after = await pools.pause(spec.name, spec.pause_note)
    return PoolStep(step.manifest, step.before, after)


async def store_calendars(client: Client, steps: Sequence[CalendarStep]) -> list[CalendarStep]:
    """Store the calendars, also unchanged ones: some of their jobs may use an older version."""
    done = []
    for step in steps:
        calendar = step.manifest.calendar
        after = await placed(client.calendars, calendar.namespace).apply(calendar.name, calendar)
        done.append(CalendarStep(step.manifest, step.before, after))
    return done


def without_new(
    job: job_pb2.Job,
    pools: Iterable[PoolStep],
    calendars: Iterable[CalendarStep],
    namespace: str,
) -> job_pb2.Job:
    """Return the job without the pool and the calendars that don't exist yet."""
    here = job.namespace or namespace
    new_pools = {
        step.after.name
        for step in pools
        if step.before is None and (step.manifest.pool.namespace or namespace) == here
    }
    new_calendars = {
        step.after.name
        for step in calendars
        if step.before is None and (step.manifest.calendar.namespace or namespace) == here
    }
    kept = [name for name in job.exclude.calendars if name not in new_calendars]
    if job.pool not in new_pools and len(kept) == len(job.exclude.calendars):
        return job
    checked = job_pb2.Job()
    checked.CopyFrom(job)
    if job.pool in new_pools:
        checked.ClearField("pool")
    if len(kept) < len(job.exclude.calendars):
        checked.exclude.calendars[:] = kept
    return checked


async def _set(pools: Pools, manifest: PoolManifest, version: int, *, validate_only: bool) -> Pool:
    spec = manifest.pool
    return await pools.set(
        spec.name,
        limit=spec.limit,
        rate=rate_text(spec.rate) if spec.HasField("rate") else None,
        version=version,
        validate_only=validate_only,
    )
