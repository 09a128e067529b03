"""The jobs: when each runs, how its last runs ended; paused, resumed and triggered in place.

/jobs?filter=label.team:data&page=…    the address holds all of the question
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedd.api.errors import NotFound
from schedd.web.pages import job_actions, new_job
from schedd.web.pages.lines import JobLine, job_line, look_of
from schedd.web.pages.page import Asked, Page, Shown
from schedd.web.words import Look
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2, run_service_pb2

ROWS: Final = 30
RESULTS: Final = 14
"""The newest runs of a job that its row shows."""
AT_A_TIME: Final = 4
"""Jobs whose runs are read at the same time."""
EVERY: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with how its newest runs ended, oldest first."""

    line: JobLine
    results: tuple[Look, ...]
    labels: tuple[str, ...]
    pause_note: str

    @property
    def told(self) -> str:
        """The results in words."""
        kinds = sorted({look.word for look in self.results})
        counts = (f"{sum(look.word == kind for look in self.results)} {kind}" for kind in kinds)
        return f"last runs of {self.line.name}: " + (", ".join(counts) or "none")


@dataclass(frozen=True, slots=True)
class Jobs:
    """A page of jobs. `next`: the token of the one after it, if there is one."""

    rows: tuple[JobRow, ...]
    filter: str
    next: str
    later: bool


async def _read(asked: Asked) -> Shown:
    words = asked.query.get("filter", "").strip()
    listed = await _listed(asked, words)
    limit = asyncio.Semaphore(AT_A_TIME)

    async def newest(job: job_pb2.Job) -> Sequence[run_pb2.Run]:
        async with limit:
            return await newest_runs(asked, job.job_id, RESULTS)

    async with asyncio.TaskGroup() as group:
        reading = [
            group.create_task(newest(job), name=f"runs of {job.name}") for job in listed.jobs
        ]
    rows = tuple(row_of(job, task.result()) for job, task in zip(listed.jobs, reading, strict=True))
    seen = Jobs(rows, words, listed.next_page_token, bool(asked.query.get("page")))
    return Shown("Jobs", seen)


async def _listed(asked: Asked, words: str) -> job_service_pb2.ListJobsResponse:
    """The jobs of this page; one word without a colon is the name, or the id, of one."""
    if words and not {":", " "} & set(words):
        request = job_service_pb2.GetJobRequest(namespace=asked.namespace, job=words)
        try:
            job = await asked.call("JobService.GetJob", request, job_pb2.Job)
        except NotFound:
            return job_service_pb2.ListJobsResponse()
        return job_service_pb2.ListJobsResponse(jobs=[job])
    return await asked.call(
        "JobService.ListJobs",
        job_service_pb2.ListJobsRequest(
            namespace=asked.namespace,
            filter=words,
            page_size=ROWS,
            page_token=asked.query.get("page", ""),
        ),
        job_service_pb2.ListJobsResponse,
    )


async def newest_runs(asked: Asked, job: str, count: int) -> Sequence[run_pb2.Run]:
    """The newest runs of a job, newest first."""
    listed = await asked.call(
        "RunService.ListRuns",
        run_service_pb2.ListRunsRequest(namespace=asked.namespace, job=job, page_size=count),
        run_service_pb2.ListRunsResponse,
    )
    return listed.runs


def row_of(job: job_pb2.Job, runs: Sequence[run_pb2.Run]) -> JobRow:
    """A job as a row, with its newest runs. Pure."""
    return JobRow(
        line=job_line(job),
        results=tuple(look_of(run.state) for run in reversed(runs)),
        labels=tuple(f"{key}:{value}" for key, value in sorted(job.labels.items())),
        pause_note=job.pause_note,
    )


PAGE: Final = Page(
    "/jobs",
    "Jobs",
    "jobs",
    _read,
    frame="jobs.html",
    every=EVERY,
    actions=(*job_actions.ACTIONS, new_job.CREATE),
)
