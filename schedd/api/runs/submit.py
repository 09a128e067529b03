"""Submit one-time work, one or many in a call: checked one by one, stored by group commit.

Submitted work is a run with a definition of its own, which is deleted with the run. The payload is
stored with the run, so that work with other payloads has the same definition.
"""

from datetime import datetime, timedelta
from typing import Final, TypeAlias

from schedd.api import audit_diff, batches, views
from schedd.api.batches import LARGEST, RequestTemplates
from schedd.api.definitions import notifications, references, validation
from schedd.api.errors import FailedPreconditionError, wrong
from schedd.api.jobs import stored_jobs
from schedd.api.jobs.stored_jobs import idempotency, namespace_of, new_record
from schedd.api.jobs.timer_edit import WHEN
from schedd.api.services import Caller, Services
from schedd.core.cluster.partition import shard_of_job
from schedd.core.ids import JobId, RunId, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import LiveRun, NewRun, RunKey
from schedd.core.runs.records import JobRecord, StoreConflict, StoredDefinition, Submit
from schedd.core.runs.run_records import RunRecord
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedkit.errors import Unavailable
from schedkit.records import replace
from schedproto.v1 import job_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as wire

MOST_CHECKED: Final = 64
"""Requests that were checked and whose equals are known, of `LARGEST` bytes each at most. Most
submits are of few kinds: thousands of one kind with different payloads.
"""

_STORED_ONLY: Final = WHEN | {
    *job_codec.SET_BY_CLUSTER,
    *job_codec.STORED_ONLY,
    *("catch_up", "overlap", "name"),
}
"""Fields of a schedule or a pause."""

Answer: TypeAlias = RunRecord | StoreConflict | Unavailable | None


async def submit_run(
    services: Services, caller: Caller, request: wire.SubmitRunRequest
) -> run_pb2.Run:
    item = _known(caller, request, services.clock.now())
    item = item or await _checked(services, caller, request)
    stored = _made(request, await services.store.submit_run(item))
    definitions = [item.record.definition] if stored.run.key == item.run.key else []
    services.wake_ups.runs_created([stored.run], definitions)
    return views.run_message(stored)


async def batch_submit_runs(
    services: Services, caller: Caller, request: wire.BatchSubmitRunsRequest
) -> wire.BatchSubmitRunsResponse:
    """Submit many; each succeeds or fails as with `submit_run`."""
    batches.check_count(request.requests)
    made: list[LiveRun] = []
    definitions: dict[RunKey, StoredDefinition] = {}

    own: RequestTemplates[wire.SubmitRunRequest, Submit]
    own = RequestTemplates("name", "spec.payload", nameless=True)

    async def check(one: wire.SubmitRunRequest) -> Submit:
        item = await _checked(services, caller, one)
        definitions[item.run.key] = item.record.definition
        if item.plain:
            own.add(one, item)
        return item

    def derive(one: wire.SubmitRunRequest) -> Submit | None:
        item = _known(caller, one, services.clock.now(), own)
        if item is not None:
            definitions[item.run.key] = item.record.definition
        return item

    def convert(
        result: wire.BatchSubmitRunsResponse.Result, one: wire.SubmitRunRequest, answer: Answer
    ) -> None:
        stored = _made(one, answer)
        made.append(stored.run)
        result.run.CopyFrom(views.run_message(stored))

    answer = wire.BatchSubmitRunsResponse()
    store = services.store.submit_runs
    await batches.answer_all(request.requests, answer.results, check, store, convert, derive)
    stored = {run.key for run in made}
    services.wake_ups.runs_created(
        made, [definition for key, definition in definitions.items() if key in stored]
    )
    if answer.ByteSize() > batches.MOST_BYTES:
        for result in answer.results:
            if result.HasField("error"):
                result.error.ClearField("violations")
    return answer


async def _checked(services: Services, caller: Caller, request: wire.SubmitRunRequest) -> Submit:
    """Return the item to store. Equal requests are known from then on, if the check depended on the
    request alone: on no stored rows, and no means of notification.
    """
    now = services.clock.now()
    namespace = namespace_of(request.namespace)
    spec = job_pb2.Job()
    spec.CopyFrom(request.spec)
    extra = _STORED_ONLY & {field.name for field, _ in request.spec.ListFields()}
    if extra:
        raise wrong(
            f"spec.{min(extra)}",
            "isn't allowed in a submit, because only stored jobs have a schedule or a pause: leave"
            " it out",
        )
    if spec.namespace not in ("", namespace):
        raise wrong(
            "spec.namespace",
            f"differs from the run's namespace {namespace!r}: leave spec.namespace out",
        )
    spec.name, spec.namespace, spec.on_demand = request.name, namespace, True
    if not spec.retry.ByteSize():
        spec.retry.max_attempts = 1  # a stored job without retry options has four
    run_id = RunId(new_id())
    definition = JobDefinition.requested(spec, JobId(run_id), namespace, ephemeral=True)
    validation.check(definition, now, scheduled=False)
    await references.check_pool(services, namespace, spec.pool)
    notifications.check_means(services, spec)
    if request.delay.ToTimedelta() < timedelta(0):
        raise wrong("delay", "the delay must not be negative: give 0s or more")
    if spec.HasField("payload"):
        spec.ClearField("payload")
        definition = JobDefinition.requested(spec, JobId(run_id), namespace, ephemeral=True)
    after = audit_diff.definition(definition)
    record = new_record(caller, definition, now)
    item = _item(caller, request, record, after, Priority(spec.priority or Priority.MEDIUM))
    if item.plain and not any(spec.HasField(event) for event in notifications.FIELDS):
        _CHECKED.add(request, replace(item, payload=None, key=None))
    return item


def _item(
    caller: Caller,
    request: wire.SubmitRunRequest,
    record: JobRecord,
    after: str,
    priority: Priority,
) -> Submit:
    now, definition = record.created_at, record.definition
    run_id = RunId(definition.job_id)
    return Submit(
        record,
        NewRun(RunKey(now, run_id), now + request.delay.ToTimedelta()),
        idempotency(definition.namespace, request.idempotency_key, "SubmitRun", request),
        caller.audit("submit", f"run/{run_id}", request.request_id, run_id=run_id, after=after),
        priority,
        request.spec.payload.SerializeToString() if request.spec.HasField("payload") else None,
    )


Checked: TypeAlias = RequestTemplates[wire.SubmitRunRequest, Submit]
_CHECKED: Checked = RequestTemplates("name", "spec.payload", nameless=True, most=MOST_CHECKED)


def _known(
    caller: Caller, request: wire.SubmitRunRequest, now: datetime, own: Checked | None = None
) -> Submit | None:
    """Return the item of a request that equals a checked one, of its own batch or of an earlier
    call, but for its name, keys and payload; None: it must be checked.
    """
    template = (own.find(request) if own is not None else None) or _CHECKED.find(request)
    if template is None:
        return None
    payload = request.spec.payload
    if payload.ByteSize() > LARGEST or any(validation.payload_violations(payload)):
        return None
    record, job_id = template.record, JobId(new_id())
    stored = replace(record.definition, job_id=job_id, name=request.name)
    return _item(
        caller,
        request,
        replace(
            record,
            definition=stored,
            shard=shard_of_job(job_id, stored.namespace, stored.pool),
            created_at=now,
            created_by=caller.actor,
            updated_at=now,
        ),
        audit_diff.work(stored.namespace, stored.name, stored.spec),
        template.priority,
    )


def _made(request: wire.SubmitRunRequest, stored: Answer) -> RunRecord:
    """Return the stored run. Raises the error for a rejected one."""
    if stored is None:
        raise FailedPreconditionError(
            f"the run that was submitted with idempotency key {request.idempotency_key!r} isn't"
            " kept any more",
            reason="RUN_FORGOTTEN",
            remedy="use a new idempotency key to submit the work again",
        )
    key = request.idempotency_key
    return stored_jobs.stored(stored, name=request.name, pool=request.spec.pool, key=key)
