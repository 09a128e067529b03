"""The pools among manifests: validated with the jobs, stored before them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from schedclient import ApiError, Client, Conflict, NotFound, Pool
from schedclient.calls.pools import Pools
from schedctl.failure import CommandFailure, of_manifest
from schedctl.manifests import job_diff
from schedctl.manifests.manifests import PoolManifest
from schedkit.protojson import rate_text
from schedproto.v1 import job_pb2


@dataclass(frozen=True, slots=True)
class PoolStep:
    """The change for one manifest."""

    manifest: PoolManifest
    before: Pool | None
    after: Pool

    @property
    def edited(self) -> bool:
        """Return whether the limit or the rate changes."""
        return bool(job_diff.of_pool(self.before, self.after))

    @property
    def pauses(self) -> bool:
        """Return whether to pause the pool. A manifest without `paused` doesn't resume it."""
        paused = self.before is not None and self.before.paused
        return self.manifest.pool.paused and not paused

    @property
    def verb(self) -> str:
        """Return created, updated or unchanged."""
        if self.before is None:
            return "created"
        return "updated" if self.edited or self.pauses else "unchanged"

    @property
    def lines(self) -> list[str]:
        """Return the changes of an existing pool, as lines of text."""
        if self.before is None:
            return []
        paused = f"  paused: {self.manifest.pool.pause_note or 'true'}"
        return job_diff.of_pool(self.before, self.after) + [paused] * self.pauses


async def plan(client: Client, found: Sequence[PoolManifest]) -> list[PoolStep]:
    """Return the change for each manifest; raise the cluster's first rejection."""
    steps = []
    for manifest in found:
        pools = _calls(client, manifest)
        try:
            try:
                before = await pools.get(manifest.pool.name)
            except NotFound:
                before = None
            after = await _set(pools, manifest, manifest.pool.version, validate_only=True)
        except ApiError as error:
            raise _refused(error, manifest) from error
        steps.append(PoolStep(manifest, before, after))
    return steps


async def store(client: Client, steps: Sequence[PoolStep]) -> list[PoolStep]:
    """Store the changed pools, each only over the version that was planned from."""
    return [await _stored(_calls(client, step.manifest), step) for step in steps]


async def _stored(pools: Pools, step: PoolStep) -> PoolStep:
    """Pause an existing pool first, so that no run starts under the new limit."""
    spec, after = step.manifest.pool, step.before
    if after is not None and step.pauses:
        after = await pools.pause(spec.name, spec.pause_note)
    if after is None or step.edited:
        version = after.version if after else spec.version
        after = await _set(pools, step.manifest, version, validate_only=False)
    if step.before is None and step.pauses:
        after = await pools.pause(spec.name, spec.pause_note)
    return PoolStep(step.manifest, step.before, after)


def made(steps: Sequence[PoolStep], namespace: str) -> Set[tuple[str, str]]:
    """Return namespace and name of the pools that will be created."""
    return {
        (step.manifest.pool.namespace or namespace, step.after.name)
        for step in steps
        if step.before is None
    }


def without(job: job_pb2.Job, made: Set[tuple[str, str]], namespace: str) -> job_pb2.Job:
    """Return the job without a pool that doesn't exist yet."""
    if (job.namespace or namespace, job.pool) not in made:
        return job
    checked = job_pb2.Job()
    checked.CopyFrom(job)
    checked.ClearField("pool")
    return checked


def _refused(error: ApiError, manifest: PoolManifest) -> CommandFailure:
    name, remedy = manifest.pool.name, ""
    if isinstance(error, Conflict) and manifest.pool.version:
        remedy = f"read the pool again (schedctl pool describe {name} -o yaml), or remove version"
    return of_manifest(error, manifest.where, name, remedy)


async def _set(pools: Pools, manifest: PoolManifest, version: int, *, validate_only: bool) -> Pool:
    spec = manifest.pool
    return await pools.set(
        spec.name,
        limit=spec.limit,
        rate=rate_text(spec.rate) if spec.HasField("rate") else None,
        version=version,
        validate_only=validate_only,
    )


def _calls(client: Client, manifest: PoolManifest) -> Pools:
    namespace = manifest.pool.namespace
    return client.pools.in_namespace(namespace) if namespace else client.pools
