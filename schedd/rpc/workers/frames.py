"""Translate between the frames of the worker's stream and the values of the loops. Pure.

Invariant: a message is checked against its bounds (`schedkit.bounds`) before it is translated.
Translation of a message within its bounds never raises.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from hashlib import sha256
from math import inf
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.views import set_stamp, stamp
from schedd.core.dispatch import priority_order
from schedd.core.dispatch.packed_runs import Holdings, pack_key, pack_start
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.dispatch.successes import Successes
from schedd.core.ids import Id, IncarnationId, RunId, Token, run_ids_of
from schedd.core.runs.deadlines import START_WITHIN, time_left
from schedd.core.runs.lifecycle import Reason
from schedd.core.runs.model import Assigned, DispatchedBatch, Incarnation, RunKey
from schedd.core.runs.retry import ReportedOutcome
from schedd.core.timers.pre_dispatch import start_not_before
from schedd.results.result_collector import AssignmentRefusal
from schedd.results.result_decision import ReceivedResult
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.bounds import FRAME, problem
from schedkit.bounds.rules import END_OF_TIME, MICROSECONDS
from schedkit.bounds.tables import MOST_HELD
from schedproto.v1 import common_pb2, job_pb2, run_pb2, worker_service_pb2

MOST_NOTE: Final = 200
"""Characters of a progress's note."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = 86_400
"""Seconds."""
_SHA256: Final = 32
"""Bytes."""
_LONGEST_PROBLEM: Final = 300
_TIMES_OF_BATCH: Final = {"result_batches.started_at", "result_batches.finished_at"}
MOST_ERROR: Final = 2_000
"""Characters of an error that a member writes instead of a worker's."""


_END_OF_TIME: Final = (END_OF_TIME - _EPOCH) // _MICROSECOND


class BadFrame(ValueError):
    """A frame, or an item of one, that is out of its bounds: the message names the field."""


def check(message: Message, path: str = "") -> str:
    """Check a message against its bounds. Raises BadFrame.

    Returns problems of informational fields, which are cleared; empty: none.
    """
    found, cleared = FRAME.tidy(message, path)
    if found:
        raise BadFrame(problem(found))
    return problem(cleared) if cleared else ""


def put_span(into: Duration, length: timedelta) -> None:
    """Write a timedelta of at least 0 into a field of a message."""
    into.seconds = length.days * _DAY + length.seconds
    into.nanos = length.microseconds * 1000


def span(length: timedelta) -> Duration:
    found = Duration()
    found.FromTimedelta(length)
    return found


def instant(stamped: Timestamp) -> datetime:
    """Return the timestamp of a checked message as an aware datetime."""
    return _EPOCH + timedelta(seconds=stamped.seconds, microseconds=stamped.nanos // 1000)


def since_epoch(microseconds: int) -> datetime:
    """Return microseconds since 1970 as a datetime. Raises BadFrame if out of bounds."""
    if not 0 <= microseconds < _END_OF_TIME:
        raise BadFrame(
            "the worker's heartbeat is invalid: in its field held.running the time"
            f" {microseconds} µs since 1970 is out of range"
        )
    return _EPOCH + timedelta(microseconds=microseconds)


def length(duration: Duration) -> timedelta:
    """Return the duration of a checked message, to the microsecond."""
    return timedelta(seconds=duration.seconds, microseconds=int(duration.nanos / 1000))


def key_of(message: worker_service_pb2.AssignmentKey) -> tuple[RunKey, Token]:
    run = RunKey(instant(message.scheduled_at), RunId(Id.parse(message.run_id)))
    return run, Token(message.fencing_token)


def key_message(key: RunKey, token: Token) -> worker_service_pb2.AssignmentKey:
    message = worker_service_pb2.AssignmentKey(run_id=str(key.run_id), fencing_token=token)
    set_stamp(message.scheduled_at, key.scheduled_at)
    return message


def incarnation_of(hello: worker_service_pb2.Hello) -> Incarnation:
    """Return the incarnation in a hello. Raises BadFrame."""
    check(hello, "hello")
    return Incarnation(
        id=IncarnationId(Id.parse(hello.incarnation)),
        worker=hello.worker,
        spool_id=hello.spool_id,
        host=hello.host,
        version=hello.version,
        slots=hello.slots,
        labels=dict(hello.labels),
        handlers=tuple(hello.handlers),
        actions=tuple(hello.actions),
        started_at=instant(hello.started_at),
    )


def assignment(assigned: Assigned, known: CachedDefinition) -> worker_service_pb2.Assignment:
    run, definition = assigned.run, known.definition
    if run.start_by is None or run.incarnation is None:
        raise ValueError(
            f"the assignment of run {run.key.run_id} has no start_by or names no worker (a bug"
            " of schedd: please report this message)"
        )
    message = worker_service_pb2.Assignment(
        incarnation=str(run.incarnation),
        namespace=definition.namespace,
        job=known.name,
        generation=definition.generation,
        attempt=run.attempt,
        slots=definition.slots,
        on_lease_lost=job_pb2.ON_LEASE_LOST_KILL
        if definition.kills_on_lease_lost
        else job_pb2.ON_LEASE_LOST_FINISH,
        traceparent=traceparent(run.key.run_id, run.token),
    )
    key = message.key
    key.run_id, key.fencing_token = str(run.key.run_id), run.token
    set_stamp(key.scheduled_at, run.key.scheduled_at)
    set_stamp(message.due_at, run.due_at)
    set_stamp(message.start_by, run.start_by)
    if (not_before := start_not_before(run)) is not None:
        set_stamp(message.not_before, not_before)
    put_span(message.timeout, time_left(run, definition, run.start_by - START_WITHIN))
    put_span(message.kill_after, definition.kill_after)
    if definition.heartbeat_timeout is not None:
        put_span(message.heartbeat_timeout, definition.heartbeat_timeout)
    spec = known.text.spec
    if (action := spec.WhichOneof("action")) is not None:
        getattr(message, action).CopyFrom(getattr(spec, action))
    if assigned.payload is not None:
        message.payload.MergeFromString(assigned.payload)
    elif spec.HasField("payload"):
        message.payload.CopyFrom(spec.payload)
    return message


def run_batch(
    batch: DispatchedBatch, known: Sequence[CachedDefinition]
) -> worker_service_pb2.RunBatch:
    """Return assignments of one definition text, for a worker that reads batches."""
    common = assignment(Assigned(batch.first, None), known[0])
    for name in ("key", "due_at", "traceparent"):
        common.ClearField(name)
    jobs = [each.name for each in known]
    if batch.payloads:
        common.ClearField("payload")
    return worker_service_pb2.RunBatch(
        common=common,
        run_ids=b"".join(batch.places),
        fencing_tokens=batch.tokens,
        scheduled_at=[(run.key.scheduled_at - _EPOCH) // _MICROSECOND for run in batch.runs],
        jobs=jobs if len({*jobs}) > 1 else (),
        payloads=[*map(common_pb2.Payload.FromString, batch.payloads)],
    )


def traceparent(run: RunId, token: Token) -> str:
    """Return a W3C trace context: one trace a run, one span an assignment."""
    return f"00-{run.hex()}-{token & (2**64 - 1):016x}-01"


def readable(result: worker_service_pb2.Result, sender: IncarnationId) -> str:
    """Repair a result that is out of bounds in place, so that the end of a run is never lost.

    Informational fields are cleared. If a required field is invalid, the outcome is replaced by
    FAILED. `sender`: the incarnation whose stream sent it.

    Returns the problems; empty: none.

    Raises:
        BadFrame: its key is invalid.
    """
    found, cleared = FRAME.tidy(result, "results")
    if not found:
        return problem(cleared) if cleared else ""
    check(result.key, "results.key")
    why = problem([*found, *cleared])
    digest = sha256(result.SerializeToString(deterministic=True)).digest()
    fields = {path.split(".")[1] for path, _ in found}
    for name in ("result", "stored_result", "outcome", "reason"):
        result.ClearField(name)
    result.outcome = worker_service_pb2.Result.OUTCOME_FAILED
    result.error = f"the worker sent a result that isn't valid: {why}"[:MOST_ERROR]
    if "digest" in fields:
        result.digest = digest
    if "incarnation" in fields:
        result.incarnation = str(sender)
    return why


def reported(result: worker_service_pb2.Result, worker: str) -> ReceivedResult:
    """Return a result that is `readable`, of the worker of this name."""
    key, token = key_of(result.key)
    return ReceivedResult(
        key=key,
        token=token,
        worker=worker,
        sender=_sender(result.incarnation),
        digest=result.digest,
        outcome=_outcome(result.outcome),
        reason=_REASONS.get(result.reason),  # None: of a newer worker
        error=result.error,
        exit_code=result.exit_code if result.HasField("exit_code") else None,
        started_at=instant(result.started_at) if result.HasField("started_at") else None,
        finished_at=instant(result.finished_at) if result.HasField("finished_at") else None,
        result=_result(result, token),
        output=_output(result, token),
        stored=result.HasField("log") or result.HasField("stored_result"),
        retry_after=length(result.retry_after) if result.HasField("retry_after") else None,
    )


def successes(batch: worker_service_pb2.ResultBatch) -> tuple[Successes, str]:
    """Return the results of a batch, and the problems of its times; empty: none. A run ends though
    its times are out of bounds: the nearest possible times are taken.

    Raises:
        BadFrame: a key is invalid, or the columns don't fit together.
    """
    why = ""
    found, _ = FRAME.tidy(batch, "result_batches")
    if found:
        why = problem(found)
        if {path for path, _ in found} - _TIMES_OF_BATCH:
            raise BadFrame(why)
        for times in (batch.started_at, batch.finished_at):
            times[:] = [min(max(at, MICROSECONDS[0]), MICROSECONDS[1]) for at in times]
    count = len(batch.fencing_tokens)
    columns = (batch.scheduled_at, batch.started_at, batch.finished_at)
    if len(batch.run_ids) != 16 * count or any(len(column) != count for column in columns):
        lengths = [len(batch.run_ids) / 16, count, *map(len, columns)]
        raise BadFrame(
            "the worker's results are invalid: the lists of result_batches must have the same"
            f" number of entries, but have {lengths}"
        )
    return Successes(
        run_ids_of(batch.run_ids),
        [*map(Token, batch.fencing_tokens)],
        [_sender(batch.incarnation)] * count,
        *map(list, columns),
    ), why


@cache
def _outcome(said: worker_service_pb2.Result.Outcome.ValueType) -> ReportedOutcome:
    return ReportedOutcome(worker_service_pb2.Result.Outcome.Name(said).removeprefix("OUTCOME_"))


_REASONS: Final = {
    number: Reason(name.removeprefix("REASON_"))
    for name, number in common_pb2.Reason.items()
    if name.removeprefix("REASON_") in {*Reason}
}


@lru_cache(maxsize=1024)
def _sender(text: str) -> IncarnationId:
    """Cached: few senders send all results."""
    return IncarnationId(Id.parse(text))


def progress(said: worker_service_pb2.Progress) -> run_pb2.RunProgress:
    """Return the progress of an attempt. Raises BadFrame."""
    check(said, "progress")
    return run_pb2.RunProgress(
        fraction=said.fraction,
        done=said.done,
        total=said.total,
        note=said.note[:MOST_NOTE],
        at=said.at,
    )


def holdings(beat: worker_service_pb2.Heartbeat) -> Holdings:
    """Return the runs that a worker holds, by a checked heartbeat. Raises BadFrame.

    Workers of older versions send one message for each run. A run without a start is waiting.
    """
    if beat.HasField("held"):
        waiting, running, spooled = beat.held.waiting, beat.held.running, beat.held.spooled
    else:
        waiting, running, spooled = _packed(beat.holdings)
    try:
        found = Holdings(waiting, running, spooled)
    except ValueError as wrong:
        raise BadFrame(str(wrong)) from wrong
    if found.unended + found.spooled > MOST_HELD:
        raise BadFrame(
            f"the worker's heartbeat is invalid: its field held lists more than {MOST_HELD:,} runs"
        )
    return found


def _packed(listed: Iterable[worker_service_pb2.Holding]) -> tuple[bytes, bytes, bytes]:
    waiting, running, spooled = bytearray(), bytearray(), bytearray()
    for one in listed:
        run, token = RunId(Id.parse(one.key.run_id)), Token(one.key.fencing_token)
        if one.state == worker_service_pb2.Holding.STATE_SPOOLED:
            spooled += pack_key(run, token)
        elif one.HasField("started_at"):
            running += pack_start(run, token, (instant(one.started_at) - _EPOCH) // _MICROSECOND)
        else:
            waiting += pack_key(run, token)
    return bytes(waiting), bytes(running), bytes(spooled)


def refusal(
    message: worker_service_pb2.Refusal, worker: str, sender: IncarnationId
) -> AssignmentRefusal:
    """Return the refusal of an assignment. Raises BadFrame."""
    check(message, "refusals")
    key, token = key_of(message.key)
    try:
        why = worker_service_pb2.Refusal.Why.Name(message.why).removeprefix("WHY_")
    except ValueError:
        why = "UNSPECIFIED"  # a newer worker's reason; the run is still returned
    greatest, detail = Token(message.greatest_token_seen), message.detail[:MOST_NOTE]
    return AssignmentRefusal(key, token, worker, sender, why, greatest, detail)


def demand(heads: Sequence[QueueHead]) -> worker_service_pb2.Demand:
    return worker_service_pb2.Demand(
        heads=[
            worker_service_pb2.Demand.Head(
                priority=common_pb2.Priority.ValueType(head.priority),
                waiting_since=stamp(head.waiting_since),
                slots=head.slots,
                least=head.least,
            )
            for head in heads
        ]
    )


def last_rank(granted: worker_service_pb2.Granted) -> float:
    """Return the greatest rank of a run that may use the granted slots, by a checked message."""
    if not granted.HasField("before"):
        return inf
    return priority_order.last_rank(granted.before.priority, instant(granted.before.waiting_since))


def _output(result: worker_service_pb2.Result, token: Token) -> bytes | None:
    if not result.output:
        return None
    output = run_pb2.Output(pieces=result.output)
    if result.HasField("log"):
        output.log.CopyFrom(_kept(result.log, token))
    return output.SerializeToString()


def _result(result: worker_service_pb2.Result, token: Token) -> bytes | None:
    if result.HasField("stored_result"):
        kept = _kept(result.stored_result, token)
        return run_pb2.StoredResult(object=kept).SerializeToString()
    return result.result.SerializeToString() if result.HasField("result") else None


def _kept(kept: run_pb2.StoredObject, token: Token) -> run_pb2.StoredObject:
    """Return the location as the worker reports it, under its own token. Raises BadFrame."""
    if not (kept.problem or len(kept.sha256) == _SHA256):
        raise BadFrame(
            "the worker's result isn't valid: results.log has no SHA-256 of the stored content"
        )
    return run_pb2.StoredObject(
        size=kept.size,
        sha256=kept.sha256,
        fencing_token=token,
        problem=kept.problem[:_LONGEST_PROBLEM],
        omitted=kept.omitted,
        json=kept.json,
    )
