"""Update masks: which fields of a job an edit changes.

`"*"` means all fields that a caller may set; otherwise each path names one field, at any depth. A
patch with one kind of schedule clears the other kinds, and the fields that belong to them.
"""

from collections.abc import Collection
from typing import Final

from google.protobuf.message import Message

from schedd.api.errors import FieldViolation, InvalidArgumentError, wrong
from schedd.runtime import job_codec
from schedd.runtime.job_codec import OF_INSTANTS
from schedproto.v1 import job_pb2
from schedproto.v1 import job_service_pb2 as wire

SCHEDULES: Final = ("cron", "every", "at", "local_at", "on_demand", "after")
"""Kinds of schedule; a job has one. `local_at` is stored as `at`."""


def masked(old: job_pb2.Job, request: wire.UpdateJobRequest) -> job_pb2.Job:
    """Return the job with the named fields of the request."""
    paths = list(request.update_mask.paths)
    if not paths:
        raise _bad_mask(
            "update_mask is missing", 'name the fields to change, or "*" for all fields'
        )
    if paths == ["*"]:
        return job_codec.set_by_user(request.job)
    if "at" in paths and request.job.local_at:
        paths.append("local_at")  # forms call both `at`
    unset = {*job_codec.SET_BY_CLUSTER, *job_codec.STORED_ONLY, "name", "namespace"}
    for path in paths:
        first = path.split(".")[0]
        if first not in job_pb2.Job.DESCRIPTOR.fields_by_name:
            raise _no_such_field(path)
        if first in unset:
            remedy = "leave the field out: the cluster sets it, or another call, such as PauseJob"
            raise wrong(path, "can't be edited", remedy, reason="BAD_UPDATE_MASK")
    new = job_pb2.Job()
    new.CopyFrom(old)
    begins = not old.HasField("after") and "after.jobs" in paths and bool(request.job.after.jobs)
    if begins or any(path in SCHEDULES for path in paths):
        plain: Message = new
        for field in (*SCHEDULES, *_meaningless(request.job, paths)):
            plain.ClearField(field)
    _copy(request.job, new, paths)
    return new


def _meaningless(given: job_pb2.Job, paths: Collection[str]) -> set[str]:
    """Return the fields that don't belong to the given kind of schedule."""
    kept: set[str] = set()
    if "every" in paths and given.HasField("every"):
        kept.update(("phase", "anchor"))
    if "cron" in paths and given.cron:
        kept.add("dst")
    bare = "on_demand" in paths and given.on_demand
    bare |= ("after" in paths or "after.jobs" in paths) and bool(given.after.jobs)
    return {"phase", "anchor", "dst", *(OF_INSTANTS if bare else ())} - kept


def _copy(source: Message, target: Message, paths: list[str]) -> None:
    """Replace the fields that `paths` name, at any depth; an unset one is cleared."""
    for path in paths:
        from_, to = source, target
        *parents, last = path.split(".")
        for name in parents:
            field = from_.DESCRIPTOR.fields_by_name.get(name)
            if field is None or field.message_type is None or field.is_repeated:
                raise _no_such_field(path)
            from_, to = getattr(from_, name), getattr(to, name)
        field = from_.DESCRIPTOR.fields_by_name.get(last)
        if field is None:
            raise _no_such_field(path)
        to.ClearField(last)
        if field.is_repeated:
            getattr(to, last).MergeFrom(getattr(from_, last))
        elif field.message_type is not None:
            if from_.HasField(last):
                getattr(to, last).CopyFrom(getattr(from_, last))
        elif not field.has_presence or from_.HasField(last):
            setattr(to, last, getattr(from_, last))


def _no_such_field(path: str) -> InvalidArgumentError:
    return _bad_mask(
        f"update_mask names the field {path!r}, but a job has no such field",
        "name fields as `schedctl job get -o json` shows them",
    )


def _bad_mask(message: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        message,
        reason="BAD_UPDATE_MASK",
        remedy=remedy,
        violations=[FieldViolation("update_mask", message)],
    )
