"""Calls on jobs. In all of them `job` is an id, a name, or a `Job` that a call returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Unpack

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from schedclient.calls import watching
from schedclient.calls.base import NamespacedCalls, id_of, new_key, place_of
from schedclient.calls.batches import Batches
from schedclient.calls.specs import (
    Form,
    JobSpec,
    Length,
    When,
    enum_number,
    job_message,
    length_message,
    payload_message,
    read_form,
    when_message,
)
from schedclient.errors import ApiError
from schedclient.values.jobs import Backfill, BackfillPlan, Instant, InstantExplanation, Job
from schedclient.values.runs import Run
from schedkit.protojson import named_fields
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as wire


class Jobs(NamespacedCalls):
    """`client.jobs`. Every call raises `ApiError`; `deadline` is in seconds."""

    async def create(
        self,
        /,
        name: str,
        spec: Form | job_pb2.Job | None = None,
        *,
        idempotency_key: str | None = None,
        validate_only: bool = False,
        deadline: float | None = None,
        **fields: Unpack[JobSpec],
    ) -> Job:
        """Create a job from keywords, a mapping, or a wire message.

        A key is created if none is given, so a retry after a lost answer creates no second job.
        """
        _need_name("create", name)
        request = wire.CreateJobRequest(
            job=job_message(fields if spec is None else spec, name=name, namespace=self._namespace),
            idempotency_key="" if validate_only else idempotency_key or new_key(),
            validate_only=validate_only,
        )
        return await self._one(Job, request, deadline)

    async def create_many(
        self, specs: Iterable[Form | job_pb2.Job], *, calls: int = 2, deadline: float | None = None
    ) -> list[Job | ApiError]:
        """Create many jobs, each named by its own spec. Return an answer for each, in order. A
        rejected job doesn't affect the others.

        A call has hundreds of jobs, and `calls` run at a time; each has the `deadline`. Every job
        has its own key. A job's `after` can't name another one of these: create the parents first.
        """

        def request(spec: Form | job_pb2.Job) -> wire.CreateJobRequest:
            job = job_message(spec, namespace=self._namespace)
            return wire.CreateJobRequest(job=job, idempotency_key=new_key())

        make = Batches(self._transport, wire.BatchCreateJobsRequest, Job, "job", deadline)
        return await make.ask(specs, request, calls)

    async def get(self, job: Job | str, *, deadline: float | None = None) -> Job:
        """Return a job."""
        namespace, name = place_of(job, Job, self._namespace)
        return await self._one(Job, wire.GetJobRequest(namespace=namespace, job=name), deadline)

    def list(
        self, *, where: str = "", limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Job]:
        """Yield jobs, newest first; `deadline` holds for each page."""
        request = wire.ListJobsRequest(namespace=self._namespace, filter=where)
        return self._pages(Job, request, limit, deadline)

    async def update(
        self,
        /,
        job: Job | str,
        spec: Form | job_pb2.Job | None = None,
        *,
        mask: Sequence[str] | None = None,
        etag: str = "",
        validate_only: bool = False,
        deadline: float | None = None,
        **fields: Unpack[JobSpec],
    ) -> Job:
        """Change the named fields. `mask=["*"]` replaces every field that a user may set.

        None clears a field. With `etag` the call fails if the job has changed (`Conflict`). A wire
        message needs its mask.
        """
        if not isinstance(job, Job):
            _need_name("update", job)
        namespace, name = place_of(job, Job, self._namespace)
        written: Form | job_pb2.Job = fields if spec is None else spec
        message = job_message(written, name=name, namespace=namespace)
        if mask is None:
            if isinstance(written, Message):
                raise TypeError(
                    "update: a job message doesn't say which fields to change: also give mask"
                )
            mask = named_fields(written, job_pb2.Job)
        request = wire.UpdateJobRequest(
            job=message, update_mask=FieldMask(paths=mask), etag=etag, validate_only=validate_only
        )
        return await self._one(Job, request, deadline)

    async def delete(
        self, job: Job | str, note: str = "", *, etag: str = "", deadline: float | None = None
    ) -> None:
        """Delete a job. When this returns, no run of it starts. Runs in progress finish."""
        namespace, name = place_of(job, Job, self._namespace)
        request = wire.DeleteJobRequest(namespace=namespace, job=name, etag=etag, note=note)
        await self._call(request, deadline)

    async def pause(
        self,
        job: Job | str,
        note: str = "",
        *,
        until: When | None = None,
        etag: str = "",
        deadline: float | None = None,
    ) -> Job:
        """Pause a job: skip its scheduled times until `resume`, or `until`. They aren't caught up
        afterwards. With `etag` the call fails if the job has changed.
        """
        namespace, name = place_of(job, Job, self._namespace)
        request = wire.PauseJobRequest(
            namespace=namespace, job=name, note=note, until=when_message(until, "until"), etag=etag
        )
        return await self._one(Job, request, deadline)

    async def resume(self, job: Job | str, *, deadline: float | None = None) -> Job:
        """Resume a paused job."""
        namespace, name = place_of(job, Job, self._namespace)
        return await self._one(Job, wire.ResumeJobRequest(namespace=namespace, job=name), deadline)

    async def trigger(
        self,
        job: Job | str,
        payload: object = None,
        *,
        priority: str | None = None,
        overlap: str | None = None,
        delay: Length | None = None,
        idempotency_key: str | None = None,
        deadline: float | None = None,
    ) -> Run:
        """Start a run now, or after `delay`, regardless of the schedule."""
        namespace, name = place_of(job, Job, self._namespace)
        request = wire.TriggerJobRequest(
            namespace=namespace,
            job=name,
            payload=payload_message(payload),
            idempotency_key=idempotency_key or new_key(),
            overlap=job_pb2.Overlap.ValueType(enum_number("overlap", overlap)),
            priority=common_pb2.Priority.ValueType(enum_number("priority", priority)),
            delay=length_message(delay, "delay"),
        )
        return await self._one(Run, request, deadline)

    async def next(
        self,
        job: Job | str,
        *,
        after: When | None = None,
        count: int = 10,
        excluded: bool = False,
        deadline: float | None = None,
    ) -> tuple[Instant, ...]:
        """Return the next `count` scheduled times after `after` (exclusive; now if None). With
        `excluded`, also excluded times between them.
        """
        namespace, name = place_of(job, Job, self._namespace)
        request = wire.ListNextInstantsRequest(
            namespace=namespace,
            job=name,
            after=when_message(after, "after"),
            count=count,
            excluded=excluded,
        )
        return await self._all(Instant, request, deadline)

    async def explain(
        self, job: Job | str, at: When, *, deadline: float | None = None
    ) -> InstantExplanation:
        """Explain why the job ran, or not, at the scheduled time `at`."""
        namespace, name = place_of(job, Job, self._namespace)
        request = wire.ExplainInstantRequest(
            namespace=namespace, job=name, at=when_message(at, "at")
        )
        return await self._one(InstantExplanation, request, deadline)

    async def backfill(
        self,
        job: Job | str,
        first: When,
        last: When,
        *,
        overlap: str | None = None,
        max_parallel: int = 0,
        priority: str | None = None,
        rerun: str | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
        deadline: float | None = None,
    ) -> BackfillPlan:
        """Run the job for the scheduled times from `first` to `last` (both inclusive and past), at
        most `max_parallel` at a time (1 if 0). The priority is LOW by default.

        Scheduled times that have a run are omitted; `rerun` "failed" or "all" runs those again. A
        dry run returns the plan only. A key is created if none is given, as for `create`.
        """
        namespace, name = place_of(job, Job, self._namespace)
        request = wire.BackfillJobRequest(
            namespace=namespace,
            job=name,
            to=when_message(last, "last"),
            dry_run=dry_run,
            overlap=job_pb2.Overlap.ValueType(enum_number("overlap", overlap)),
            max_parallel=max_parallel,
            idempotency_key="" if dry_run else idempotency_key or new_key(),
            priority=common_pb2.Priority.ValueType(enum_number("priority", priority)),
            rerun=read_form({"rerun": rerun}, wire.BackfillJobRequest).rerun,
        )
        getattr(request, "from").CopyFrom(when_message(first, "first"))
        return await self._one(BackfillPlan, request, deadline)

    async def get_backfill(
        self, backfill_id: Backfill | str, *, deadline: float | None = None
    ) -> Backfill:
        """Return a backfill, with the states of its runs."""
        request = wire.GetBackfillRequest(backfill_id=id_of(backfill_id, Backfill))
        return await self._one(Backfill, request, deadline)

    def watch_backfill(
        self, backfill_id: Backfill | str, *, deadline: float | None = None
    ) -> AsyncIterator[Backfill]:
        """Yield the backfill, then each change of it, until it has `ended`. A broken stream is
        resumed at another member. `deadline`, and what it raises, as for `client.runs.watch`.
        """
        request = wire.WatchBackfillRequest(backfill_id=id_of(backfill_id, Backfill))
        return watching.one(self._transport, request, deadline, Backfill, lambda one: one.ended)

    def backfills(
        self, job: Job | str = "", *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Backfill]:
        """Yield backfills of one job (default: all jobs), newest first."""
        namespace, name = place_of(job, Job, self._namespace)
        request = wire.ListBackfillsRequest(namespace=namespace, job=name)
        return self._pages(Backfill, request, limit, deadline)

    async def cancel_backfill(
        self, backfill_id: Backfill | str, *, deadline: float | None = None
    ) -> Backfill:
        """Cancel a backfill: create no more runs, and cancel existing ones."""
        request = wire.CancelBackfillRequest(backfill_id=id_of(backfill_id, Backfill))
        return await self._one(Backfill, request, deadline)


def _need_name(call: str, given: object) -> None:
    """Reject a spec instead of the name: protobuf's own error would be unclear."""
    if not isinstance(given, str):
        raise TypeError(
            f"{call}: the job's name comes first, as text, then its fields: "
            f'{call}("etl", …); got {type(given).__name__}'
        )
