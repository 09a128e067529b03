"""Summarize the runs that are ready and wait: those that no worker can run, and the oldest other.

    waits by job ──┬─ no running worker can run them ──▶ unrunnable
    definitions  ──┤─ all workers that can run them take no new runs ──▶ held up
    workers      ──┤─ others, except those blocked by a run of their job ──▶ oldest
                   └─ those of the others that have waited long for a slot ──▶ full (full_workers)

The rules are those of the owners (`core/dispatch/placement`). The rows of all shards are read, so
every member returns the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from schedd.api.cluster.cluster import running_workers
from schedd.api.services import Services
from schedd.core.checkup.facts import FullWorkers
from schedd.core.dispatch.placement import able, asked_of_worker
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Definition
from schedd.core.runs.model import Incarnation
from schedd.core.runs.overlap import BUFFERS
from schedd.core.runs.pools import PoolKey
from schedd.core.runs.records import SlotHolder, StoredDefinition, WaitingRuns, WorkerView
from schedd.runtime.job_codec import JobDefinition
from schedkit.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class WaitSummary:
    """`unrunnable`: at least this many runs that no worker can run, of these `jobs`, and of other
    namespaces if `elsewhere`. `since`: how long the oldest other run has waited. `held_up`: the
    runs whose workers all take no new runs.
    """

    unrunnable: int = 0
    jobs: tuple[tuple[str, str], ...] = ()
    """Namespace and name of each."""
    elsewhere: bool = False
    since: datetime | None = None
    held_up: WaitSummary | None = None
    full: tuple[FullWorkers, ...] = ()
    """Workers without a free slot that some of the other runs have waited for."""

    def visible_in(self, namespace: str) -> WaitSummary:
        """Return the summary without the names of jobs of other namespaces."""
        here = tuple(job for job in self.jobs if job[0] == namespace)
        held_up = self.held_up and self.held_up.visible_in(namespace)
        full = tuple(one.visible_in(namespace) for one in self.full)
        elsewhere = len(here) < len(self.jobs)
        return replace(self, jobs=here, elsewhere=elsewhere, held_up=held_up, full=full)


NO_WAITS: Final = WaitSummary()


async def read_wait_summary(services: Services) -> WaitSummary:
    """Return the current summary. Raises Unavailable."""
    found = await services.store.waits()
    if not found:
        return NO_WAITS
    stored = await services.store.definitions({wait.job_id for wait in found})
    taking, draining = await workers_by_drain(services)
    takers = [view for view in taking if not view.refusal_reason]
    others = [*draining, *(view.incarnation for view in taking if view.refusal_reason)]
    summary = judged(found, stored.values(), [one.incarnation for one in takers], others)
    return replace(summary, full=await full_workers(services, found, stored, takers))


async def workers_by_drain(services: Services) -> tuple[list[WorkerView], list[Incarnation]]:
    """Return the workers that take work, full ones included, and those that drain."""
    drained = {drain.worker for drain in await services.worker_store.drains()}
    takers, draining = list[WorkerView](), list[Incarnation]()
    for view in await running_workers(services):
        if view.draining or view.incarnation.worker in drained:
            draining.append(view.incarnation)
        else:
            takers.append(view)
    return takers, draining


def judged(
    found: Sequence[WaitingRuns],
    stored: Iterable[StoredDefinition],
    takers: Sequence[Incarnation],
    others: Sequence[Incarnation] = (),
) -> WaitSummary:
    """Return the summary, given the workers that take new runs, and the other workers. Pure."""
    known = {one.job_id: one for one in stored}
    read = {job: JobDefinition.read(one).parsed for job, one in known.items()}
    unrunnable, held_up, since = list[WaitingRuns](), list[WaitingRuns](), list[datetime]()
    for wait in found:
        if (definition := read.get(wait.job_id)) is None:
            continue  # deleted meanwhile
        if not can_run(wait, definition, takers):
            (held_up if can_run(wait, definition, others) else unrunnable).append(wait)
        elif definition.overlap not in BUFFERS:
            since.append(wait.since)

    def jobs_of(waits: Iterable[WaitingRuns]) -> tuple[tuple[str, str], ...]:
        jobs = (known[wait.job_id] for wait in waits)
        names = [(job.namespace, "submitted work" if job.ephemeral else job.name) for job in jobs]
        return tuple(dict.fromkeys(names))

    held = WaitSummary(sum(wait.runs for wait in held_up), jobs_of(held_up)) if held_up else None
    runs = sum(wait.runs for wait in unrunnable)
    return WaitSummary(runs, jobs_of(unrunnable), since=min(since, default=None), held_up=held)


def can_run(wait: WaitingRuns, definition: Definition, takers: Sequence[Incarnation]) -> bool:
    """Return whether one of the workers can run it. Pure."""
    need = replace(asked_of_worker(definition), worker=wait.target)
    return any(able(worker, need) for worker in takers)


# Find workers without a free slot that runs have waited for too long, and the runs on them.
#
#     waiting runs ──┬─ all workers that can run them are full ──▶ FullWorkers ◀── running runs
#     there workers ───────┘
#
# A full worker alone isn't a problem: a busy cluster uses all slots. A run that has waited for long
# for one of them is.

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
    found = dict[tuple[str, str], SlotHolder]()
    for one in sorted(holders, key=lambda one: one.since):
        key = (one.namespace, one.name)
        first = found.get(key)
        found[key] = replace(first, runs=first.runs + one.runs) if first else one
    return tuple(found.values())
