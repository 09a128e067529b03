"""Warn of jobs whose runs no running worker can take, or whose late runs would be skipped.

Invariant: a warning never fails the call, because the job is stored already.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from schedd.api import views
from schedd.api.cluster.cluster import running_incarnations
from schedd.api.services import Services
from schedd.core.dispatch.placement import able, asked_of_worker
from schedd.core.jobs.definition import CatchUpPolicy, Definition, Overlap, matches_text
from schedd.core.runs.model import Incarnation
from schedd.core.runs.records import JobRecord
from schedd.runtime.job_codec import JobDefinition
from schedkit.errors import Unavailable
from schedproto.v1 import job_pb2

WITHIN: Final = 1.0
"""Seconds that reading the workers may take; after that there is no warning."""


SKIPS_LATE: Final = (
    "catch_up all with overlap skip: late runs become ready together, and all but one at a time are"
    " skipped; set overlap buffer_all or allow"
)


async def answer(services: Services, record: JobRecord, definition: JobDefinition) -> job_pb2.Job:
    """Return the job's API message with its warnings."""
    warnings_of = await read_workers(services)
    job = views.job_message(record, definition)
    job.warnings.extend(warnings_of(definition))
    return job


async def read_workers(services: Services) -> Callable[[JobDefinition], list[str]]:
    """Return the function that lists the warnings of a job for the workers that run now."""
    workers: Sequence[Incarnation] | None = None
    with suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(WITHIN):
            workers = await running_incarnations(services)

    def warnings_of(definition: JobDefinition) -> list[str]:
        job = definition.parsed
        # Each late time would get a run, and nearly all of these be skipped.
        skips = job.catch_up.policy is CatchUpPolicy.ALL and job.overlap is Overlap.SKIP
        unable = "" if workers is None else warning(job, workers)
        return [text for text in (SKIPS_LATE if skips else "", unable) if text]

    return warnings_of


def warning(definition: Definition, workers: Sequence[Incarnation]) -> str:
    """Return why none of these workers can run the job; empty if one can."""
    need = asked_of_worker(definition)
    if any(able(worker, need) for worker in workers):
        return ""
    waits = "its runs stay PENDING until one connects"
    if not workers:
        return f"no worker is running; {waits}"
    here = [worker for worker in workers if worker.may_work_for(need.namespace)]
    if not here:
        return f"no running worker serves namespace {need.namespace!r}; {waits}"
    runs = [worker for worker in here if need.action in worker.actions]
    if not runs:
        return f"no running worker runs {need.action} jobs; {waits}"
    handles = [one for one in runs if not need.handler or need.handler in one.handlers]
    if not handles:
        return f"no running worker has handler {need.handler!r}; {waits}"
    if not any(able(worker, replace(need, slots=1)) for worker in handles):
        what = f"handler {need.handler!r}" if need.handler else f"the {need.action} executor"
        return f"no running worker with {what} has {matches_text(need.require)}; {waits}"
    return f"no running worker that fits has {need.slots} slots; {waits}"
