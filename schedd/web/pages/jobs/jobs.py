"""The page of all jobs: schedule, last results, buttons for pause, resume and trigger.

/jobs?filter=label.team:data&page=…    the address is the whole query
"""

from collections.abc import Sequence
from typing import Final

from schedd.api import paging
from schedd.api.errors import NotFoundError
from schedd.api.runs.runs import newest_states
from schedd.core.runs.lifecycle import State
from schedd.web.formatting import LOOKS, StateStyle
from schedd.web.pages.jobs import new_job
from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown, taking, wrong
from schedkit.records import dataclass
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2, run_service_pb2

# The actions of a job on pages: trigger, pause, resume, delete.


@taking()
async def _trigger(asked: PageRequest) -> Done:
    job = asked.variables["job"]
    request = job_service_pb2.TriggerJobRequest(
        namespace=asked.namespace, job=job, idempotency_key=asked.once
    )
    run = await asked.call(request, run_pb2.Run)
    return Done(f"{job} was triggered: run {run.run_id}.", asked.link("runs", run.run_id))


@taking("reason")
async def _pause(asked: PageRequest) -> Done:
    job, note = asked.variables["job"], asked.fields.get("reason", "")
    request = job_service_pb2.PauseJobRequest(namespace=asked.namespace, job=job, note=note)
    await asked.call(request, job_pb2.Job)
    return Done(f"{job} is paused: no new runs start.", asked.link("jobs", job))


@taking()
async def _resume(asked: PageRequest) -> Done:
    job = asked.variables["job"]
    request = job_service_pb2.ResumeJobRequest(namespace=asked.namespace, job=job)
    await asked.call(request, job_pb2.Job)
    return Done(f"{job} was resumed.", asked.link("jobs", job))


@taking("name", "reason")
async def _delete(asked: PageRequest) -> Done:
    job = asked.variables["job"]
    if asked.fields.get("name") != job:
        raise wrong(
            "name",
            f"the text doesn't match the job's name, so {job} was not deleted",
            f"type {job} to delete this job",
        )
    note = asked.fields.get("reason", "")
    request = job_service_pb2.DeleteJobRequest(namespace=asked.namespace, job=job, note=note)
    try:
        await asked.call(request, job_service_pb2.DeleteJobResponse)
    except NotFoundError:  # deleted by another user, or by the first click of two
        return Done(f"{job} was already deleted.", asked.link("jobs"))
    return Done(f"{job} was deleted.", asked.link("jobs"))


JOB_ACTIONS: Final = (
    Action("/jobs/{job}/trigger", _trigger),
    Action("/jobs/{job}/pause", _pause),
    Action("/jobs/{job}/resume", _resume),
    Action("/jobs/{job}/delete", _delete),
)

ROWS: Final = 30
RESULTS: Final = 14
"""Newest runs in the row of a job."""
EVERY: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with the states of its newest runs, oldest first."""

    job: job_pb2.Job
    results: tuple[StateStyle, ...]
    labels: tuple[str, ...]

    @property
    def summary(self) -> str:
        kinds = sorted({look.word for look in self.results})
        counts = (f"{sum(look.word == kind for look in self.results)} {kind}" for kind in kinds)
        return f"last runs of {self.job.name}: " + (", ".join(counts) or "none")


async def _read(asked: PageRequest) -> Shown:
    words = asked.query.get("filter", "").strip()
    listed = await asked.call(
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
    seen = {
        "rows": rows,
        "filter": words,
        "page": asked.query.get("page", ""),
        "next": listed.next_page_token,
        "looked_to": paging.reached(listed.next_page_token) if len(rows) < ROWS else None,
    }
    return Shown("Jobs", seen)


async def newest_runs(asked: PageRequest, job: str, count: int) -> Sequence[run_pb2.Run]:
    listed = await asked.call(
        run_service_pb2.ListRunsRequest(namespace=asked.namespace, job=job, page_size=count),
        run_service_pb2.ListRunsResponse,
    )
    return listed.runs


def row_of(job: job_pb2.Job, states: Sequence[State]) -> JobRow:
    """Return a job as a row; `states`: of its newest runs, newest first. Pure."""
    return JobRow(
        job=job,
        results=tuple(LOOKS[state.value] for state in reversed(states)),
        labels=tuple(f"{key}:{value}" for key, value in sorted(job.labels.items())),
    )


PAGE: Final = Page(
    "/jobs",
    "Jobs",
    "jobs",
    _read,
    asks=("filter", "page"),
    frame="jobs.html",
    every=EVERY,
    actions=(*JOB_ACTIONS, new_job.CREATE),
)
