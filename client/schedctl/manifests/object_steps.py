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
        return self.manifest.spec.paused and not paused

    @property
    def verb(self) -> str:
        return verb_of(self.before, changed=self.edited or self.pauses)

    @property
    def lines(self) -> list[str]:
        if self.before is None:
            return []
        paused = f"  paused: {self.manifest.spec.pause_note or 'true'}"
        return job_diff.of_pool(self.before, self.after) + [paused] * self.pauses


@dataclass(frozen=True, slots=True)
class CalendarStep:
    manifest: CalendarManifest
    before: Calendar | None
    after: Calendar

    @property
    def verb(self) -> str:
        before = self.before
        return verb_of(before, changed=before is None or before.version != self.after.version)


def verb_of(before: object, *, changed: bool) -> str:
    return "created" if before is None else "updated" if changed else "unchanged"


async def plan_pools(client: Client, found: Sequence[PoolManifest]) -> list[PoolStep]:
    """Return the change for each manifest; raise the cluster's first rejection."""
    steps = []
    for manifest in found:
        spec = manifest.spec
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
        spec = manifest.spec
        calendars = placed(client.calendars, spec.namespace)
        try:
            before = await existing(calendars.get(spec.name))
            after = await calendars.apply(spec.name, spec, validate_only=True)
        except ApiError as error:
            raise of_manifest(error, manifest.where, spec.name) from error
        steps.append(CalendarStep(manifest, before, after))
    return steps


async def store_pool(client: Client, step: PoolStep) -> PoolStep:
    """Store a changed pool, only over the version that was planned from. Pause an existing pool
    first, so that no run starts under the new limit.
    """
    spec, after = step.manifest.spec, step.before
    pools = placed(client.pools, spec.namespace)
    if after is not None and step.pauses:
        after = await pools.pause(spec.name, spec.pause_note)
    if after is None or step.edited:
        version = after.version if after else spec.version
        after = await _set(pools, step.manifest, version, validate_only=False)
    if step.before is None and step.pauses:
        after = await pools.pause(spec.name, spec.pause_note)
    return PoolStep(step.manifest, step.before, after)


async def store_calendar(client: Client, step: CalendarStep) -> CalendarStep:
    """Store a calendar, also an unchanged one: some of its jobs may use an older version."""
    spec = step.manifest.spec
    after = await placed(client.calendars, spec.namespace).apply(spec.name, spec)
    return CalendarStep(step.manifest, step.before, after)


def without_new(
    job: job_pb2.Job, pools: Iterable[PoolStep], calendars: Iterable[CalendarStep], namespace: str
) -> job_pb2.Job:
    """Return the job without the pool and the calendars that don't exist yet."""

    def new(steps: Iterable[PoolStep | CalendarStep]) -> set[str]:
        specs = [step.manifest.spec for step in steps if step.before is None]
        here = job.namespace or namespace
        return {spec.name for spec in specs if (spec.namespace or namespace) == here}

    new_pools, new_calendars = new(pools), new(calendars)
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
    spec = manifest.spec
    return await pools.set(
        spec.name,
        limit=spec.limit,
        rate=rate_text(spec.rate) if spec.HasField("rate") else None,
        version=version,
        validate_only=validate_only,
    )
