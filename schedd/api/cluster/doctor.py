"""The doctor: checks of the cluster, and facts of its area "work": losses, waiting runs, queues."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from schedd.api import views
from schedd.api.cluster.cluster import lost_now
from schedd.api.runs.waiting_runs import can_run, full_workers, workers_by_drain
from schedd.api.services import Caller, Services
from schedd.core.checkup import examine
from schedd.core.checkup.facts import FailedRead, StuckJob, WorkFacts
from schedd.core.cluster.cluster_events import Losses
from schedd.core.dispatch.placement import able, asked_of_worker
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Definition, matches_text
from schedd.core.runs.model import Incarnation
from schedd.core.runs.overlap import BUFFERS
from schedd.core.runs.records import StoredDefinition, WaitingRuns
from schedd.runtime.dependency_health import failed_read
from schedd.runtime.job_codec import JobDefinition
from schedkit.errors import Unavailable
from schedkit.records import replace
from schedproto.v1 import cluster_service_pb2 as wire

WITHIN: Final = 4.0
"""Seconds that reading all facts may take."""


async def work_facts(services: Services) -> WorkFacts | FailedRead:
    """Return the facts, or why they can't be read."""
    try:
        async with asyncio.timeout(WITHIN):
            return await _read(services)
    except Unavailable as error:
        return failed_read(error)
    except TimeoutError:
        return FailedRead(f"the reads of schedd's tables didn't complete within {WITHIN:g} s")


async def stuck_now(services: Services) -> Sequence[StuckJob]:
    """Return the jobs whose runs wait although no worker can run them. Raises Unavailable."""
    waits = await services.store.waits()
    stored = await services.store.definitions({wait.job_id for wait in waits})
    takers, draining = await workers_by_drain(services)
    able_now = [one.incarnation for one in takers]
    return stuck(waits, stored, able_now, await lost_now(services), draining)


async def _read(services: Services) -> WorkFacts:
    waits = await services.store.waits()
    failing = await services.store.failing()
    growing = await services.store.growing()
    jobs = {wait.job_id for wait in waits}
    jobs |= {one.job_id for one in failing} | {one.job_id for one in growing}
    stored = await services.store.definitions(jobs)
    (taking, draining), losses = await workers_by_drain(services), await lost_now(services)
    takers = [one.incarnation for one in taking]
    returned = await services.membership.returns(services.lost_for)
    ready = [
        wait.since
        for wait in waits
        if (one := stored.get(wait.job_id)) is not None
        and (definition := JobDefinition.read(one).parsed).overlap not in BUFFERS
        and can_run(wait, definition, takers)
    ]
    names = {job: _name(one) for job, one in stored.items() if not one.deleted}
    return WorkFacts(
        losses=losses,
        kept=services.lost_for,
        returned_members=returned[0],
        returned_workers=returned[1],
        stuck=tuple(stuck(waits, stored, takers, losses, draining)),
        oldest=min(ready, default=None),
        full=await full_workers(
            services, waits, stored, [v for v in taking if not v.refusal_reason]
        ),
        failing=tuple(
            replace(one, name=names[one.job_id]) for one in failing if one.job_id in names
        ),
        growing=tuple(
            replace(one, name=names[one.job_id]) for one in growing if one.job_id in names
        ),
    )


def stuck(
    waits: Sequence[WaitingRuns],
    stored: Mapping[JobId, StoredDefinition],
    takers: Collection[Incarnation],
    losses: Losses,
    draining: Collection[Incarnation] = (),
) -> list[StuckJob]:
    """Return the jobs of these that no taker can run, one entry each. Pure."""
    found: dict[JobId, StuckJob] = {}
    for wait in waits:
        if (one := stored.get(wait.job_id)) is None or one.deleted:
            continue
        definition = JobDefinition.read(one).parsed
        if can_run(wait, definition, [*takers]):
            continue
        need = replace(asked_of_worker(definition), worker=wait.target)
        action, workers = definition.action, (*takers, *draining)
        lacks = action.startswith("plugin/") and not any(action in one.actions for one in workers)
        before = found.get(wait.job_id)
        found[wait.job_id] = StuckJob(
            _name(one),
            wait.runs + (before.runs if before else 0),
            min(wait.since, before.since) if before else wait.since,
            _need(definition, wait),
            tuple(lost.worker for lost in losses.workers if able(lost, need)),
            tuple(one.worker for one in draining if able(one, need)),
            action.removeprefix("plugin/") if lacks else "",
        )
    return [*found.values()]


def _need(definition: Definition, wait: WaitingRuns) -> str:
    if wait.target is not None:
        return f"runs for worker {wait.target}"
    what = f"handler {definition.handler!r}" if definition.handler else f"{definition.action} jobs"
    what += f" of {definition.slots} slots" if definition.slots > 1 else ""
    what += f" with {matches_text(definition.require)}" if definition.require else ""
    return f"{what} of namespace {definition.namespace!r}"


def _name(job: StoredDefinition) -> str:
    """Return `namespace/name`, without the default namespace."""
    if job.ephemeral:
        return f"{job.namespace}/submitted work"
    return job.name if job.namespace == "default" else f"{job.namespace}/{job.name}"


async def check_cluster(
    services: Services, _caller: Caller, _request: wire.CheckClusterRequest
) -> wire.CheckClusterResponse:
    """Return all findings, good ones too. Changes nothing."""
    async with asyncio.TaskGroup() as group:
        work = group.create_task(work_facts(services), name="checkup: work")
        facts = await services.checkup.facts()
    facts = replace(facts, work=work.result())
    own = facts.view.member(services.cluster.tenure)
    return wire.CheckClusterResponse(
        findings=[
            views.filled(
                wire.Finding,
                finding,
                severity=wire.Finding.Severity.Value(f"SEVERITY_{finding.severity.value}"),
            )
            for finding in examine(facts)
        ],
        member=own.name if own else "",
        now=views.stamp(services.clock.now()),
    )
