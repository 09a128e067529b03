"""Convert stored records to API messages."""

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core.cluster.cluster_events import ClusterEventRecord, text_of
from schedd.core.ids import Id, JobId
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import AuditRecord, Trigger
from schedd.core.runs.records import DeadLetterGroupRecord, DeadLetterRecord, JobRecord
from schedd.core.runs.redrive import RedriveRecord
from schedd.core.runs.retry import MAX_LOSSES
from schedd.core.runs.run_records import AttemptRecord, RunRecord
from schedd.core.schedule.cron import ScheduleError
from schedd.core.schedule.work_budget import TooMuchWork, limited
from schedd.core.timers.backfill import BackfillRecord, BackfillSelection
from schedd.core.timers.cluster_pauses import Pause
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import cluster_service_pb2, common_pb2, job_pb2, job_service_pb2, run_pb2
from schedproto.v1.run_service_pb2 import ClusterEvent as ClusterEventMessage

NEXT_RUN: Final = 500
"""Work budget (`core/schedule/work_budget`) to find the next run of a job whose timer is at an
excluded time. Beyond it, the due time of the timer is shown.
"""


M = TypeVar("M", bound=Message)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def stamp(instant: datetime | None) -> Timestamp | None:
    """Return a time as a proto message; None stays None."""
    if instant is None:
        return None
    found = Timestamp()
    set_stamp(found, instant)
    return found


def set_stamp(found: Timestamp, instant: datetime) -> None:
    """Set a message to this time: three times as fast as its `FromDatetime`."""
    since = instant - _EPOCH
    found.seconds = since.days * 86_400 + since.seconds
    found.nanos = since.microseconds * 1_000


def filled(message: type[M], record: object, **fields: Any) -> M:
    """Return a message with these fields. Each other field has the value of the record's attribute
    with its name, if there is one: times as timestamps, ids as text.
    """
    for name in message.DESCRIPTOR.fields_by_name:
        if name not in fields and (value := getattr(record, name, None)) is not None:
            if isinstance(value, datetime):
                value = stamp(value)
            fields[name] = str(value) if isinstance(value, Id) else value
    return message(**fields)


def etag(job_id: Id, generation: int) -> str:
    return f'"{job_id.hex()[:8]}-{generation}"'


def job_message(
    record: JobRecord, definition: JobDefinition | None = None, *, exact: bool = False
) -> job_pb2.Job:
    """Return a job as its API message. `definition`: the record's, if it is read already."""
    stored = record.definition
    definition = definition or JobDefinition.read(stored)
    job = job_pb2.Job()
    job.CopyFrom(definition.spec)
    job.namespace = stored.namespace
    job.generation = stored.generation
    set_own(job, stored.job_id, stored.name, record.created_at)
    job.paused = stored.paused
    job.pause_note = record.pause_note
    job.paused_by = record.paused_by
    if record.paused_until is not None:
        set_stamp(job.paused_until, record.paused_until)
    if job.max_runs:
        job.runs_created = record.fired
    due = next_run(record, definition) if exact else _next_run_within(record, definition)
    if due is not None and not stored.paused:
        set_stamp(job.next_run_at, due)
    for pinned in stored.calendars:
        job.calendar_versions[pinned.name] = pinned.version
    set_stamp(job.updated_at, record.updated_at)
    job.created_by = record.created_by
    return job


def set_own(job: job_pb2.Job, job_id: JobId, name: str, created_at: datetime) -> None:
    """Set the fields in which new jobs of equal requests differ."""
    job.job_id = str(job_id)
    job.name = name
    job.etag = etag(job_id, job.generation)
    set_stamp(job.created_at, created_at)
    job.updated_at.CopyFrom(job.created_at)


def _next_run_within(record: JobRecord, definition: JobDefinition) -> datetime | None:
    if not (record.early or definition.spec.HasField("exclude")):
        return record.due_at
    try:
        with limited(NEXT_RUN):
            return next_run(record, definition)
    except TooMuchWork:
        return record.due_at


def next_run(record: JobRecord, definition: JobDefinition) -> datetime | None:
    """Return when the job runs next. The timer of a job with `exclude` may be at an excluded time.
    A run that was created early (`core/timers/pre_dispatch`) comes first, if its scheduled time is
    still in the schedule.
    """
    excludes = definition.spec.HasField("exclude")
    plain = record.due_at is None or record.nominal is None or not excludes
    if plain and not record.early:
        return record.due_at
    try:
        schedule = definition.schedule
    except ScheduleError:  # stored by an earlier version that accepted it
        return record.due_at
    due = record.due_at
    if not plain and record.nominal is not None and schedule.excludes(record.nominal):
        following = schedule.next_after(record.nominal)
        due = None if following is None else following.due
    made = next((schedule.due(at) for at in record.early if schedule.runs_at(at)), None)
    return min((at for at in (due, made) if at is not None), default=None)


def run_message(record: RunRecord, progress: run_pb2.RunProgress | None = None) -> run_pb2.Run:
    run = record.run
    late = record.lateness
    return run_pb2.Run(
        run_id=str(run.key.run_id),
        namespace=record.namespace,
        job=record.job,
        job_id="" if record.ephemeral else str(run.job_id),
        state=state_value(record.state),
        reason=reason_value(_reason(record)),
        priority=common_pb2.Priority.ValueType(run.priority),
        scheduled_at=stamp(run.key.scheduled_at),
        due_at=stamp(run.due_at),
        started_at=stamp(run.started_at),
        finished_at=stamp(record.finished_at),
        attempt=run.attempt,
        assignments=record.assignments,
        fencing_token=run.token,
        worker=run.worker or "",
        exit_code=record.exit_code,
        lateness_ms=None if late is None else round(late.total_seconds() * 1000),
        count=record.count,
        scheduled_until=stamp(record.scheduled_until),
        generation=run.generation,
        error=record.error,
        trigger=trigger_value(record.trigger),
        retry_at=stamp(record.retry_at) if run.state is State.RETRYING else None,
        backfill_id=str(record.backfill or ""),
        fired_by=record.member,
        tenure=str(record.fired_by or ""),
        excluded_by=record.excluded_by,
        redrive_of=str(record.redrive_of or ""),
        progress=progress,
        parent_run_id=str(run.parent or ""),
        target=run.target or "",
        children=run.children or 0,
        losses=run.losses,
        max_losses=MAX_LOSSES if run.losses else 0,
        parents=[
            run_pb2.Run.Parent(job=one.job, run_id=str(one.run_id), state=state_value(one.state))
            for one in record.parents
        ],
    )


def planned_message(plan: BackfillSelection) -> job_service_pb2.BackfillJobResponse:
    """Return the scheduled times that a backfill runs, and those that it leaves out."""
    answer = job_service_pb2.BackfillJobResponse()
    for at in plan.instants:
        answer.instants.add().FromDatetime(at.astimezone(UTC))
    for one in plan.omitted:
        answer.omitted.add(
            scheduled_at=stamp(one.at),
            run_id=str(one.run_id) if one.run_id else "",
            state=state_value(one.state),
            why=one.why,
        )
    return answer


_COUNTED: Final = (
    *(State.RUNNING, State.RETRYING, State.SUCCEEDED, State.FAILED, State.SKIPPED),
    State.CANCELLED,
)
"""States whose runs a backfill counts by their names."""


def backfill_message(record: BackfillRecord) -> job_service_pb2.Backfill:
    states = record.states
    if record.cancelled_at is not None:
        state = job_service_pb2.Backfill.STATE_CANCELLED
    elif record.over:
        state = job_service_pb2.Backfill.STATE_DONE
    else:
        state = job_service_pb2.Backfill.STATE_ACTIVE
    message = filled(
        job_service_pb2.Backfill,
        record,
        to=stamp(record.last),
        state=state,
        overlap=job_pb2.Overlap.Value(f"OVERLAP_{record.overlap or 'UNSPECIFIED'}"),
        not_created=record.total - record.made if record.cancelled_at is None else 0,
        waiting=states.get(State.PENDING, 0),
        **{state.lower(): states.get(state, 0) for state in _COUNTED},
    )
    getattr(message, "from").FromDatetime(record.first)
    return message


@cache
def state_value(state: State) -> common_pb2.RunState.ValueType:
    return common_pb2.RunState.Value(f"RUN_STATE_{state}")


def state_of(value: common_pb2.RunState.ValueType) -> State:
    """Return the state of a proto value. Raises ValueError for UNSPECIFIED and unknown values."""
    return State(common_pb2.RunState.Name(value).removeprefix("RUN_STATE_"))


def trigger_of(value: run_pb2.Run.Trigger.ValueType) -> Trigger | None:
    """Return the trigger of a proto value; None for UNSPECIFIED."""
    word = run_pb2.Run.Trigger.Name(value).removeprefix("TRIGGER_")
    return None if word == "UNSPECIFIED" else Trigger(word)


@cache
def trigger_value(trigger: Trigger) -> run_pb2.Run.Trigger.ValueType:
    return run_pb2.Run.Trigger.Value(f"TRIGGER_{trigger}")


@cache
def reason_value(reason: str | None) -> common_pb2.Reason.ValueType:
    return common_pb2.Reason.Value(f"REASON_{reason}") if reason else common_pb2.REASON_UNSPECIFIED


def attempt_message(record: AttemptRecord) -> run_pb2.Attempt:
    return filled(
        run_pb2.Attempt,
        record,
        fencing_token=record.token,
        state=state_value(record.state),
        reason=reason_value(record.reason),
    )


def dead_letter_message(record: DeadLetterRecord) -> run_pb2.DeadLetter:
    resolution = f"RESOLUTION_{record.resolved or 'UNSPECIFIED'}"
    return filled(
        run_pb2.DeadLetter,
        record,
        run=run_message(record.run),
        resolution=run_pb2.DeadLetter.Resolution.Value(resolution),
        redriven_as=str(record.became or ""),
        redrive_id=str(record.redrive or ""),
    )


def group_message(group: DeadLetterGroupRecord) -> run_pb2.DeadLetterGroup:
    return filled(run_pb2.DeadLetterGroup, group, reason=reason_value(group.reason))


def redrive_message(record: RedriveRecord) -> run_pb2.Redrive:
    state = "DONE" if record.finished_at else "OPEN" if record.open else "STOPPED"
    return filled(
        run_pb2.Redrive,
        record,
        created=record.made,
        omitted=record.total - record.made - record.waiting,
        state=run_pb2.Redrive.State.Value(f"STATE_{state}"),
        runs={one.value: count for one, count in record.states.items()},
        payload_edited=record.edited,
    )


def audit_message(entry: AuditRecord) -> cluster_service_pb2.AuditEntry:
    return filled(cluster_service_pb2.AuditEntry, entry, fencing_token=entry.token)


def paused(pause: Pause) -> str:
    """Describe a cluster pause: by whom, since when, why."""
    if pause.recovering:
        return f"in recovery: {pause.note}"
    since = pause.began.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"paused by {pause.by} since {since}" + (f": {pause.note}" if pause.note else "")


def _reason(record: RunRecord) -> str | None:
    """Return the stored reason; PAUSED for a waiting run of a paused job or cluster."""
    if record.pre_dispatched:
        return Reason.PRE_DISPATCHED
    waits = record.run.state in {State.PENDING, State.RETRYING}
    return "PAUSED" if (record.paused or record.cluster_paused) and waits else record.reason


def cluster_event(event: ClusterEventRecord) -> ClusterEventMessage:
    return filled(ClusterEventMessage, event, text=text_of(event))
