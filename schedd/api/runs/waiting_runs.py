"""What waits though it could start: whether anybody could do it, and since when the first of it.

    waits by job ──┬─ able by no worker that takes work ──▶ in vain
    definitions  ──┤
    workers      ──┘─ the others, but those that wait for a run of their own job ──▶ oldest

Judged as the owners judge (`core/dispatch/placement`), by what the database says of all shards, so
that any member tells the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from schedd.api.cluster.cluster import living
from schedd.api.services import Services
from schedd.core.dispatch.placement import able, asked_of_worker
from schedd.core.jobs.definition import Definition
from schedd.core.runs.model import Incarnation
from schedd.core.runs.overlap import BUFFERS
from schedd.core.runs.records import StoredDefinition, WaitingRuns
from schedd.runtime import job_codec


@dataclass(frozen=True, slots=True)
class WaitSummary:
    """`in_vain`: at least so many runs that no worker that takes work can do, of these `jobs`, and
    of others `elsewhere`. `since`: from when the first of all others has waited.
    """

    in_vain: int = 0
    jobs: tuple[tuple[str, str], ...] = ()
    """Namespace and name of each."""
    elsewhere: bool = False
    since: datetime | None = None

    def told_in(self, namespace: str) -> WaitSummary:
        """As whoever may look into this namespace alone is told: without others' names."""
        here = tuple(job for job in self.jobs if job[0] == namespace)
        return replace(self, jobs=here, elsewhere=len(here) < len(self.jobs))


NO_WAITS: Final = WaitSummary()


async def waits(services: Services) -> WaitSummary:
    """What waits now. Raises Unavailable."""
    found = await services.store.waits()
    if not found:
        return NO_WAITS
    stored = await services.store.definitions({wait.job_id for wait in found})
    drained = {drain.worker for drain in await services.worker_store.drains()}
    takers = [
        view.incarnation
        for view in await living(services)
        if not view.draining and not view.refuses and view.incarnation.worker not in drained
    ]
    return judged(found, stored.values(), takers)


def judged(
    found: Sequence[WaitingRuns], stored: Iterable[StoredDefinition], takers: Sequence[Incarnation]
) -> WaitSummary:
    """Which of these nobody of the `takers` can do. Pure."""
    known = {one.job_id: one for one in stored}
    read = {job: job_codec.stored_definition(one) for job, one in known.items()}
    vain, since = list[WaitingRuns](), list[datetime]()
    for wait in found:
        if (definition := read.get(wait.job_id)) is None:
            continue  # forgotten meanwhile
        if not doable(wait, definition, takers):
            vain.append(wait)
        elif definition.overlap not in BUFFERS:
            since.append(wait.since)
    names = dict.fromkeys(_name(known[wait.job_id]) for wait in vain)
    return WaitSummary(
        sum(wait.runs for wait in vain), tuple(names), since=min(since, default=None)
    )


def doable(wait: WaitingRuns, definition: Definition, takers: Sequence[Incarnation]) -> bool:
    """Whether one of the takers can do it. Pure."""
    need = replace(asked_of_worker(definition), worker=wait.target)
    return any(able(worker, need) for worker in takers)


def _name(job: StoredDefinition) -> tuple[str, str]:
    return job.namespace, "submitted work" if job.ephemeral else job.name
