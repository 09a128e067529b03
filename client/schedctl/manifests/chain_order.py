"""The order of jobs in a chain: parents are stored first, whatever their order in the file.

manifests ─→ in_order: parents before children, else the order of the file; a cycle is rejected
plan: a child is validated without parents that don't exist yet (`without`)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from schedctl.failure import CommandFailure
from schedctl.manifests.manifests import Manifest
from schedproto.v1 import job_pb2

Key = tuple[str, str]
"""Namespace and name."""


def key_of(job: job_pb2.Job, namespace: str) -> Key:
    """Return the key of a job; `namespace` is the default."""
    return (job.namespace or namespace, job.name)


def in_order(found: Sequence[Manifest], namespace: str) -> list[Manifest]:
    """Return the manifests with parents before their children.

    Raises:
        CommandFailure: the jobs form a cycle; the message has its path.
    """
    by_key = {key_of(one.job, namespace): one for one in found}
    done: dict[Key, Manifest] = {}
    for key in by_key:
        _visit(key, by_key, done)
    return list(done.values())


def _visit(first: Key, by_key: dict[Key, Manifest], done: dict[Key, Manifest]) -> None:
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
                f"{by_key[here].where}: {here[1]}: after.jobs closes a cycle: {cycle}",
                reason="CHAIN_CYCLE",
                remedy="remove one of these from the `after` of the next; nothing was stored",
            )
        else:
            path.append(left[0])


def without(job: job_pb2.Job, made: Collection[Key], namespace: str) -> job_pb2.Job:
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
