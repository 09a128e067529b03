"""The actions of a job on pages: trigger, pause, resume, delete."""

from __future__ import annotations

from typing import Final

from schedd.api.errors import NotFoundError
from schedd.web.pages.forms import taking, wrong
from schedd.web.pages.page import Action, Done, PageRequest
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2


@taking()
async def _trigger(asked: PageRequest) -> Done:
    job = asked.variables["job"]
    request = job_service_pb2.TriggerJobRequest(
        namespace=asked.namespace, job=job, idempotency_key=asked.once
    )
    run = await asked.call("JobService.TriggerJob", request, run_pb2.Run)
    return Done(f"{job} was triggered: run {run.run_id}.", asked.link("runs", run.run_id))


@taking("reason")
async def _pause(asked: PageRequest) -> Done:
    job, note = asked.variables["job"], asked.fields.get("reason", "")
    request = job_service_pb2.PauseJobRequest(namespace=asked.namespace, job=job, note=note)
    await asked.call("JobService.PauseJob", request, job_pb2.Job)
    return Done(f"{job} is paused: no new runs start.", asked.link("jobs", job))


@taking()
async def _resume(asked: PageRequest) -> Done:
    job = asked.variables["job"]
    request = job_service_pb2.ResumeJobRequest(namespace=asked.namespace, job=job)
    await asked.call("JobService.ResumeJob", request, job_pb2.Job)
    return Done(f"{job} was resumed.", asked.link("jobs", job))


@taking("name", "reason")
async def _delete(asked: PageRequest) -> Done:
    job = asked.variables["job"]
    if asked.fields.get("name") != job:
        problem = f"doesn't match; {job} was not deleted"
        raise wrong("name", problem, f"type {job} to delete it")
    note = asked.fields.get("reason", "")
    request = job_service_pb2.DeleteJobRequest(namespace=asked.namespace, job=job, note=note)
    try:
        await asked.call("JobService.DeleteJob", request, job_service_pb2.DeleteJobResponse)
    except NotFoundError:  # deleted by another user, or by the first click of two
        return Done(f"{job} was already deleted.", asked.link("jobs"))
    return Done(f"{job} was deleted.", asked.link("jobs"))


ACTIONS: Final = (
    Action("/jobs/{job}/trigger", _trigger),
    Action("/jobs/{job}/pause", _pause),
    Action("/jobs/{job}/resume", _resume),
    Action("/jobs/{job}/delete", _delete),
)
