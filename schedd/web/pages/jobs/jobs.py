"""The page of all jobs: schedule, last results, buttons for pause, resume and trigger.

/jobs?filter=label.team:data&page=…    the address is the whole query
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedd.api import paging
from schedd.api.runs.runs import newest_states
from schedd.core.runs.lifecycle import State
from schedd.web.formatting import LOOKS, StateStyle
from schedd.web.pages.jobs import job_actions, new_job
from schedd.web.pages.page import Page, PageRequest, Shown
from schedd.web.pages.rows import JobLine, job_line
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2, run_service_pb2

ROWS: Final = 30
RESULTS: Final = 14
"""Newest runs in the row of a job."""
EVERY: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with the states of its newest runs, oldest first."""

    line: JobLine
    results: tuple[StateStyle, ...]
    labels: tuple[str, ...]
    pause_note: str

    @property
    def summary(self) -> str:
        """The results in words."""
        kinds = sorted({look.word for look in self.results})
        counts = (f"{sum(look.word == kind for look in self.results)} {kind}" for kind in kinds)
        return f"last runs of {self.line.name}: " + (", ".join(counts) or "none")


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of jobs. `next`: the token of the next page, if any. `looked_to`: how far back the
    search went; None: to the end, or until the page was full.
    """

    rows: tuple[JobRow, ...]
    filter: str
    next: str
    page: str
    """The token of this page; empty: the first."""
    looked_to: datetime | None = None


async def _read(asked: PageRequest) -> Shown:
    words = asked.query.get("filter", "").strip()
    listed = await asked.call(
        "JobService.ListJobs",
        job_service_pb2.ListJobsRequest(
            namespace=asked.namespace,
            filter=words,
            page_size=ROWS,
            page_token=asked.query.get("page", ""),
        ),
        job_service_pb2.ListJobsResponse,
    )
    shown = [job.job_id for job in listed.jobs]
    states = await asked.read(newest_states, asked.services, shown, RESULTS)
    rows = tuple(row_of(job, states[job.job_id]) for job in listed.jobs)
    seen = JobsPage(
        rows,
        words,
        listed.next_page_token,
        page=asked.query.get("page", ""),
        looked_to=paging.reached(listed.next_page_token) if len(rows) < ROWS else None,
    )
    return Shown("Jobs", seen)


async def newest_runs(asked: PageRequest, job: str, count: int) -> Sequence[run_pb2.Run]:
    """Return the newest runs of a job, newest first."""
    listed = await asked.call(
        "RunService.ListRuns",
        run_service_pb2.ListRunsRequest(namespace=asked.namespace, job=job, page_size=count),
        run_service_pb2.ListRunsResponse,
    )
    return listed.runs


def row_of(job: job_pb2.Job, states: Sequence[State]) -> JobRow:
    """Return a job as a row; `states`: of its newest runs, newest first. Pure."""
    return JobRow(
        line=job_line(job),
        results=tuple(LOOKS[state.value] for state in reversed(states)),
        labels=tuple(f"{key}:{value}" for key, value in sorted(job.labels.items())),
        pause_note=job.pause_note,
    )


PAGE: Final = Page(
    "/jobs",
    "Jobs",
    "jobs",
    _read,
    asks=("filter", "page"),
    frame="jobs.html",
    every=EVERY,
    actions=(*job_actions.ACTIONS, new_job.CREATE),
)
