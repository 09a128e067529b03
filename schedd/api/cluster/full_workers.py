"""Find workers without a free slot that runs have waited for too long, and the runs on them.

    waiting runs ──┬─ all workers that can run them are full ──▶ FullWorkers ◀── running runs there
    workers ───────┘

A full worker alone isn't a problem: a busy cluster uses all slots. A run that has waited for long
for one of them is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from schedd.api.services import Services
from schedd.core.checkup.facts import FullWorkers
from schedd.core.dispatch.placement import able, asked_of_worker
from schedd.core.ids import JobId
from schedd.core.runs.overlap import BUFFERS
from schedd.core.runs.pools import PoolKey
from schedd.core.runs.records import SlotHolder, StoredDefinition, WaitingRuns, WorkerView
from schedd.runtime.job_codec import JobDefinition

LONG: Final = timedelta(seconds=60)
"""Wait from which a run is reported."""


@dataclass(frozen=True, slots=True)
class FullWait:
    """A run that waits for a slot of these workers."""

    wait: WaitingRuns
    job: tuple[str, str]
    """Namespace and name; the name of submitted work is empty."""
    pool: PoolKey
    workers: tuple[WorkerView, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the workers, in order."""
        return tuple(sorted({one.incarnation.worker for one in self.workers}))


async def full_workers(
    services: Services,
    waits: Sequence[WaitingRuns],
    stored: Mapping[JobId, StoredDefinition],
    takers: Sequence[WorkerView],
) -> tuple[FullWorkers, ...]:
    """Return the full ones of `takers`, the workers that take new runs. Raises Unavailable."""
    now = services.clock.now()
    found = [*waiting_for_slots([w for w in waits if now - w.since > LONG], stored, takers)]
    if pools := {one.pool for one in found if one.pool}:
        usage = await services.pools.usage(sorted(pools))
        found = [
            one for one in found if not one.pool or ((at := usage.get(one.pool)) and at.room > 0)
        ]
    if not found:
        return ()
    names = sorted({name for one in found for name in one.names})
    return grouped(found, await services.store.slot_holders(names))


def waiting_for_slots(
    waits: Sequence[WaitingRuns],
    stored: Mapping[JobId, StoredDefinition],
    takers: Sequence[WorkerView],
) -> Iterator[FullWait]:
    """Yield the runs of which every worker that can run them lacks the slots. Pure."""
    for wait in waits:
        if (one := stored.get(wait.job_id)) is None or one.deleted:
            continue
        definition = JobDefinition.read(one).parsed
        need = replace(asked_of_worker(definition), worker=wait.target)
        workers = tuple(view for view in takers if able(view.incarnation, need))
        full = all(view.speaks and view.free < definition.slots for view in workers)
        if workers and full and definition.overlap not in BUFFERS:
            name = "" if one.ephemeral else one.name
            yield FullWait(wait, (one.namespace, name), definition.pool, workers)


def grouped(found: Sequence[FullWait], holders: Sequence[SlotHolder]) -> tuple[FullWorkers, ...]:
    """Return one value for each set of workers, the longest wait first. Pure."""
    groups = dict[tuple[str, ...], list[FullWait]]()
    for one in sorted(found, key=lambda one: one.wait.since):
        groups.setdefault(one.names, []).append(one)
    return tuple(
        FullWorkers(
            jobs=tuple(dict.fromkeys(one.job for one in group)),
            since=group[0].wait.since,
            workers=names,
            used=sum(view.incarnation.slots - view.free for view in group[0].workers),
            slots=sum(view.incarnation.slots for view in group[0].workers),
            holders=_by_job([one for one in holders if one.worker in names]),
        )
        for names, group in groups.items()
    )


def _by_job(holders: Sequence[SlotHolder]) -> tuple[SlotHolder, ...]:
    """Return one holder for each job, at the worker where its first run started."""
    found = dict[tuple[str, str], SlotHolder]()
    for one in sorted(holders, key=lambda one: one.since):
        key = (one.namespace, one.name)
        first = found.get(key)
        found[key] = replace(first, runs=first.runs + one.runs) if first else one
    return tuple(found.values())
