"""The pools among manifests: checked with the jobs, stored before them."""

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
    """What is to be done for one manifest."""

    manifest: PoolManifest
    before: Pool | None
    after: Pool

    @property
    def edited(self) -> bool:
        """Whether its limit or its rate becomes another."""
        return bool(job_diff.of_pool(self.before, self.after))

    @property
    def pauses(self) -> bool:
        """Whether it is to be paused. A manifest that says nothing of it resumes nobody."""
        paused = self.before is not None and self.before.paused
        return self.manifest.pool.paused and not paused

    @property
    def verb(self) -> str:
        """What happens to the pool."""
        if self.before is None:
            return "created"
        return "updated" if self.edited or self.pauses else "unchanged"

    @property
    def lines(self) -> list[str]:
        """What changes of one that is there, for people."""
        if self.before is None:
            return []
        paused = f"  paused: {self.manifest.pool.pause_note or 'true'}"
        return job_diff.of_pool(self.before, self.after) + [paused] * self.pauses


async def plan(client: Client, found: Sequence[PoolManifest]) -> list[PoolStep]:
    """What the cluster would do with each, or the first refusal."""
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
    """Write those that change, each over the version that its change was planned from."""
    return [await _stored(_calls(client, step.manifest), step) for step in steps]


async def _stored(pools: Pools, step: PoolStep) -> PoolStep:
    """One that is there is paused first: nothing starts by a new limit that isn't to start."""
    said, after = step.manifest.pool, step.before
    if after is not None and step.pauses:
        after = await pools.pause(said.name, said.pause_note)
    if after is None or step.edited:
        version = after.version if after else said.version
        after = await _set(pools, step.manifest, version, validate_only=False)
    if step.before is None and step.pauses:
        after = await pools.pause(said.name, said.pause_note)
    return PoolStep(step.manifest, step.before, after)


def made(steps: Sequence[PoolStep], namespace: str) -> Set[tuple[str, str]]:
    """Namespace and name of those that aren't there yet."""
    return {
        (step.manifest.pool.namespace or namespace, step.after.name)
        for step in steps
        if step.before is None
    }


def without(job: job_pb2.Job, made: Set[tuple[str, str]], namespace: str) -> job_pb2.Job:
    """The job, in no pool where its own isn't there yet."""
    if (job.namespace or namespace, job.pool) not in made:
        return job
    checked = job_pb2.Job()
    checked.CopyFrom(job)
    checked.ClearField("pool")
    return checked


def _refused(error: ApiError, manifest: PoolManifest) -> CommandFailure:
    name, remedy = manifest.pool.name, ""
    if isinstance(error, Conflict) and manifest.pool.version:
        remedy = f"get it anew (schedctl pool describe {name} -o yaml), or leave version out"
    return of_manifest(error, manifest.where, name, remedy)


async def _set(pools: Pools, manifest: PoolManifest, version: int, *, validate_only: bool) -> Pool:
    said = manifest.pool
    return await pools.set(
        said.name,
        limit=said.limit,
        rate=rate_text(said.rate) if said.HasField("rate") else None,
        version=version,
        validate_only=validate_only,
    )


def _calls(client: Client, manifest: PoolManifest) -> Pools:
    namespace = manifest.pool.namespace
    return client.pools.in_namespace(namespace) if namespace else client.pools
