"""The rules by which a worker is chosen for a run; `SlotIndex.choose` applies them.

    able      may work for the namespace; has the executor, the handler, the labels and (with all of
              them free) enough slots
    prefer    of the able workers, those with the most of the job's preferred labels
    placement of these  SPREAD  the one with the most granted slots left
                        PACK    the one with the fewest, so that others stay free
                        STICKY  the same one for the same job, while it is attached and has a slot
              none of them   BROADCAST  each gets a run of its own (`broadcast`)

A run never waits for a preferred worker: an able worker with a free slot now has priority over one
that would fit better later. A worker that has rejected this job (an older version, for example) is
chosen again only if there is no other. The search among many workers: `slot_index`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import field
from math import inf
from typing import Final, TypeAlias

from schedd.core.ids import IncarnationId, JobId
from schedd.core.jobs.definition import Definition, Match, Placement
from schedd.core.runs.model import Incarnation, LiveRun
from schedd.core.runs.pools import NO_POOL, PoolKey
from schedkit.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class Need:
    """Requirements of a run. Runs of equal need wait in one bucket."""

    action: str
    handler: str = ""
    slots: int = 1
    require: tuple[Match, ...] = ()
    pool: PoolKey = NO_POOL
    """Pool of the run. No worker needs it, but the bucket waits until the pool has room."""
    each: bool = False
    """Of a broadcast's parent: no worker gets it, but each able worker gets a child."""
    worker: str | None = None
    """Name of the only worker that may run it; None: any able worker."""
    namespace: str = ""


def job_need(definition: Definition) -> Need:
    """Return the need of a run of the job that has neither target nor parent."""
    return Need(
        definition.action,
        definition.handler,
        definition.slots,
        definition.require,
        definition.pool,
        definition.placement is Placement.BROADCAST,
        None,
        definition.namespace,
    )


def need_of(definition: Definition, run: LiveRun) -> Need:
    need = job_need(definition)
    if run.parent is None and run.target is None:
        return need
    return replace(need, each=need.each and run.parent is None, worker=run.target)


def asked_of_worker(definition: Definition) -> Need:
    """Return the requirements that any run of the job, or its children, has of a worker."""
    return Need(
        definition.action,
        definition.handler,
        definition.slots,
        definition.require,
        namespace=definition.namespace,
    )


@dataclass(frozen=True, slots=True)
class Unable:
    """A worker's reason for refusing a job that it can't run."""

    generation: int
    """Generation of the refused definition. The reason holds for no other."""
    why: str = ""


@dataclass(slots=True, eq=False)
class SlotOffer:
    """Slots that a worker has granted to this member and that are still unused."""

    incarnation: Incarnation
    slots: int
    last: float = inf
    """Greatest rank (`core/dispatch/priority_order.py`) of a run that may use the slots. Runs of
    a greater rank leave them to another member.
    """
    unable: Mapping[JobId, Unable] = field(default_factory=dict)
    """Jobs that the worker refused because it lacks something."""

    @property
    def id(self) -> IncarnationId:
        return self.incarnation.id


Skill: TypeAlias = tuple[
    str, int, tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...], frozenset[str] | None
]


@dataclass(frozen=True, slots=True)
class PlacementCriteria:
    """Properties of workers that placement compares, beyond skills and number of slots."""

    labels: frozenset[str] = frozenset()
    """Keys of labels that some runs require or prefer."""
    names: frozenset[str] = frozenset()
    """Names of workers that some runs are bound to."""


NOTHING: Final = PlacementCriteria()


def asked_by(needs: Iterable[Need]) -> PlacementCriteria:
    labels: set[str] = set()
    names: set[str] = set()
    for need in needs:
        labels.update(match.key for match in need.require)
        if need.worker is not None:
            names.add(need.worker)
    return PlacementCriteria(frozenset(labels), frozenset(names))


def skill_of(worker: Incarnation, asked: PlacementCriteria) -> Skill:
    """Return all that `able` compares. Workers with equal skill can run the same runs, among
    those that ask for no more than `asked`.
    """
    labels = tuple(sorted((key, worker.labels[key]) for key in asked.labels & worker.labels.keys()))
    name = worker.worker if worker.worker in asked.names else ""
    has = tuple(worker.actions), tuple(worker.handlers), labels
    return name, worker.slots, *has, worker.namespaces


def able(worker: Incarnation, need: Need) -> bool:
    """Return whether the worker may work for the namespace, and has the executor, the handler, the
    labels and (with all of them free) enough slots. No worker is able to run a broadcast's parent.
    """
    if need.each or (need.worker is not None and need.worker != worker.worker):
        return False
    if not worker.may_work_for(need.namespace):
        return False
    if need.action not in worker.actions or need.slots > worker.slots:
        return False
    if need.handler and need.handler not in worker.handlers:
        return False
    return all(match.fits(worker.labels) for match in need.require)


def refused(unable: Mapping[JobId, Unable], job: JobId, generation: int) -> bool:
    """Return whether the worker refused this generation of the job."""
    found = unable.get(job)
    return found is not None and found.generation == generation


def weight(worker: str, job: JobId) -> bytes:
    """Return the job's weight for a worker, by rendezvous hashing.

    When a worker joins or leaves, only jobs that move to or from it move. The name is hashed,
    because it outlives incarnations.
    """
    return hashlib.sha256(job + worker.encode()).digest()
