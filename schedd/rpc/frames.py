"""Between the frames of the worker's stream and the values of the loops. Pure translation."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from math import inf, isfinite
from typing import Final
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core import rank
from schedd.core.deadlines import START_WITHIN, time_left
from schedd.core.early import armed_until
from schedd.core.holdings import Holdings, pack_key, pack_start
from schedd.core.ids import IncarnationId, RunId, Token
from schedd.core.lifecycle import Reason
from schedd.core.model import Assigned, Incarnation, RunKey
from schedd.core.ready_queue import Head
from schedd.core.retry import Outcome
from schedd.owner.collect import Refusal
from schedd.owner.reports import Reported
from schedd.owner.wordings import Known
from schedproto.v1 import common_pb2, job_pb2, run_pb2, worker_service_pb2

MOST_IN_HAND: Final = 50_000
"""Runs that a heartbeat tells of; a worker has less than half as many (`workerd.work.MOST_LISTED`).
"""
MOST_NOTE: Final = 200
"""Characters of a progress's note."""
_WORKER: Final = re.compile(r"[^/\s\x00-\x1f]{1,255}")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = 86_400
"""Seconds."""
_SHA256: Final = 32
"""Bytes."""
_LONGEST_PROBLEM: Final = 300


class BadFrame(ValueError):
    """A frame that no worker of ours sends."""


# Every run has a dozen instants on the wire: protobuf's own conversions, by way of calendars and
# strings, take three times as long as these.


def put_stamp(into: Timestamp, instant: datetime) -> None:
    """An aware datetime, in a field of its message."""
    since = instant - _EPOCH
    into.seconds = since.days * _DAY + since.seconds
    into.nanos = since.microseconds * 1000


def stamp(instant: datetime) -> Timestamp:
    """An aware datetime on the wire."""
    found = Timestamp()
    put_stamp(found, instant)
    return found


def put_span(into: Duration, length: timedelta) -> None:
    """A timedelta of no less than 0, in a field of its message."""
    into.seconds = length.days * _DAY + length.seconds
    into.nanos = length.microseconds * 1000


def span(length: timedelta) -> Duration:
    """A timedelta on the wire."""
    found = Duration()
    found.FromTimedelta(length)
    return found


def instant(stamped: Timestamp) -> datetime:
    """A wire instant as an aware datetime. Raises BadFrame when it is out of range."""
    nanos = stamped.nanos
    if not 0 <= nanos < 1_000_000_000:
        raise BadFrame(f"instant out of range: {nanos} ns")
    try:
        return _EPOCH + timedelta(seconds=stamped.seconds, microseconds=nanos // 1000)
    except OverflowError as wrong:
        raise BadFrame(f"instant out of range: {wrong}") from wrong


def micros(at: datetime) -> int:
    """An aware datetime in microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def since_epoch(microseconds: int) -> datetime:
    """The other way. Raises BadFrame when it is out of range."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError as wrong:
        raise BadFrame(f"instant out of range: {wrong}") from wrong


def length(duration: Duration) -> timedelta:
    """A wire duration as a timedelta. Raises BadFrame when it is out of range."""
    try:
        return duration.ToTimedelta()
    except (ValueError, OverflowError) as wrong:
        raise BadFrame(f"duration out of range: {wrong}") from wrong


def uuid(text: str, what: str) -> UUID:
    """An id. Raises BadFrame."""
    try:
        return UUID(text)
    except ValueError as wrong:
        raise BadFrame(f"{what} {text[:60]!r} isn't an id") from wrong


def key_of(message: worker_service_pb2.AssignmentKey) -> tuple[RunKey, Token]:
    """Which handing out of which run."""
    run = RunKey(instant(message.scheduled_at), RunId(uuid(message.run_id, "run")))
    return run, Token(message.fencing_token)


def key_message(key: RunKey, token: Token) -> worker_service_pb2.AssignmentKey:
    """The same on the wire."""
    message = worker_service_pb2.AssignmentKey(run_id=str(key.run_id), fencing_token=token)
    put_stamp(message.scheduled_at, key.scheduled_at)
    return message


def incarnation_of(hello: worker_service_pb2.Hello) -> Incarnation:
    """Who says hello. Raises BadFrame."""
    if not hello.spool_id or hello.slots < 0:
        raise BadFrame("a hello names spool and slots")
    if not _WORKER.fullmatch(hello.worker):
        raise BadFrame(f"{hello.worker[:60]!r} isn't the name of a worker: it is part of a key")
    return Incarnation(
        id=IncarnationId(uuid(hello.incarnation, "incarnation")),
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


def assignment(assigned: Assigned, known: Known) -> worker_service_pb2.Assignment:
    """What a worker is given."""
    run, definition = assigned.run, known.definition
    if run.start_by is None or run.incarnation is None:
        raise ValueError(f"run {run.key.run_id} was assigned without start_by or worker")
    message = worker_service_pb2.Assignment(
        incarnation=str(run.incarnation),
        namespace=definition.namespace,
        job=definition.name,
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
    put_stamp(key.scheduled_at, run.key.scheduled_at)
    put_stamp(message.due_at, run.due_at)
    put_stamp(message.start_by, run.start_by)
    if (not_before := armed_until(run)) is not None:
        put_stamp(message.not_before, not_before)
    put_span(message.timeout, time_left(run, definition, run.start_by - START_WITHIN))
    put_span(message.kill_after, definition.kill_after)
    if definition.heartbeat_timeout is not None:
        put_span(message.heartbeat_timeout, definition.heartbeat_timeout)
    match known.spec.WhichOneof("action"):
        case "shell":
            message.shell.CopyFrom(known.spec.shell)
        case "http":
            message.http.CopyFrom(known.spec.http)
        case "grpc":
            message.grpc.CopyFrom(known.spec.grpc)
        case "python":
            message.python.CopyFrom(known.spec.python)
        case "plugin":
            message.plugin.CopyFrom(known.spec.plugin)
    if assigned.payload is not None:
        message.payload.MergeFromString(assigned.payload)
    elif known.spec.HasField("payload"):
        message.payload.CopyFrom(known.spec.payload)
    return message


def traceparent(run: RunId, token: Token) -> str:
    """A W3C trace context: one trace a run, one span an assignment."""
    return f"00-{run.hex}-{token & (2**64 - 1):016x}-01"


def reported(result: worker_service_pb2.Result, worker: str) -> Reported:
    """A result of the worker of this name. Raises BadFrame."""
    key, token = key_of(result.key)
    try:
        outcome, reason = _outcome(result.outcome), _reason(result.reason)
        return Reported(
            key=key,
            token=token,
            worker=worker,
            sender=_sender(result.incarnation),
            digest=result.digest,
            outcome=outcome,
            reason=reason,
            error=result.error[:4096],
            exit_code=result.exit_code if result.HasField("exit_code") else None,
            started_at=instant(result.started_at) if result.HasField("started_at") else None,
            finished_at=instant(result.finished_at) if result.HasField("finished_at") else None,
            result=_result(result, token),
            output=_output(result, token),
            stored=result.HasField("log") or result.HasField("kept_result"),
            retry_after=length(result.retry_after) if result.HasField("retry_after") else None,
        )
    except BadFrame:
        raise
    except ValueError as wrong:
        raise BadFrame(str(wrong)) from wrong


@cache
def _outcome(said: worker_service_pb2.Result.Outcome.ValueType) -> Outcome:
    """Raises ValueError; what is none isn't remembered."""
    return Outcome(worker_service_pb2.Result.Outcome.Name(said).removeprefix("OUTCOME_"))


@cache
def _reason(said: common_pb2.Reason.ValueType) -> Reason | None:
    """As above."""
    name = common_pb2.Reason.Name(said).removeprefix("REASON_")
    return None if name == "UNSPECIFIED" else Reason(name)


@lru_cache(maxsize=1024)
def _sender(text: str) -> IncarnationId:
    """Raises BadFrame. The few that are there send all the results."""
    return IncarnationId(uuid(text, "incarnation"))


def progress(said: worker_service_pb2.Progress) -> run_pb2.RunProgress:
    """How far an attempt is. Raises BadFrame."""
    if not (0.0 <= said.fraction <= 1.0 and isfinite(said.done) and isfinite(said.total)):
        raise BadFrame(f"a progress of {said.fraction}")
    return run_pb2.RunProgress(
        fraction=said.fraction,
        done=said.done,
        total=said.total,
        note=said.note[:MOST_NOTE],
        at=stamp(instant(said.at)),
    )


def holdings(beat: worker_service_pb2.Heartbeat) -> Holdings:
    """What its worker has in hand. Raises BadFrame.

    One of a version before this one tells each by a message; whose start it doesn't tell waits.
    """
    if beat.HasField("held"):
        waiting, running, spooled = beat.held.waiting, beat.held.running, beat.held.spooled
    else:
        waiting, running, spooled = _packed(beat.holdings)
    try:
        found = Holdings(waiting, running, spooled)
    except ValueError as wrong:
        raise BadFrame(str(wrong)) from wrong
    if found.unended + found.spooled > MOST_IN_HAND:
        raise BadFrame(f"nobody has more than {MOST_IN_HAND:,} runs in hand")
    return found


def _packed(told: Iterable[worker_service_pb2.Holding]) -> tuple[bytes, bytes, bytes]:
    waiting, running, spooled = bytearray(), bytearray(), bytearray()
    for one in told:
        run, token = RunId(uuid(one.key.run_id, "run")), Token(one.key.fencing_token)
        if one.state == worker_service_pb2.Holding.STATE_SPOOLED:
            spooled += pack_key(run, token)
        elif one.HasField("started_at"):
            running += pack_start(run, token, micros(instant(one.started_at)))
        else:
            waiting += pack_key(run, token)
    return bytes(waiting), bytes(running), bytes(spooled)


def refusal(message: worker_service_pb2.Refusal, worker: str, sender: IncarnationId) -> Refusal:
    """An assignment that wasn't taken. Raises BadFrame."""
    key, token = key_of(message.key)
    try:
        why = worker_service_pb2.Refusal.Why.Name(message.why).removeprefix("WHY_")
    except ValueError:
        why = "UNSPECIFIED"  # a newer worker's reason; the run comes back all the same
    greatest, detail = Token(message.greatest_token_seen), message.detail[:MOST_NOTE]
    return Refusal(key, token, worker, sender, why, greatest, detail)


def demand(heads: Sequence[Head]) -> worker_service_pb2.Demand:
    """What waits here."""
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
    """The greatest rank of a run that granted slots are for. Raises BadFrame."""
    if not granted.HasField("before"):
        return inf
    return rank.last_rank(granted.before.priority, instant(granted.before.waiting_since))


def _output(result: worker_service_pb2.Result, token: Token) -> bytes | None:
    """The pieces as they are stored, and where the whole log is."""
    if not result.output:
        return None
    output = run_pb2.Output(pieces=result.output)
    if result.HasField("log"):
        output.log.CopyFrom(_kept(result.log, token))
    return output.SerializeToString()


def _result(result: worker_service_pb2.Result, token: Token) -> bytes | None:
    """What it returned as it is stored, or where it is."""
    if result.HasField("kept_result"):
        kept = _kept(result.kept_result, token)
        return run_pb2.StoredResult(kept=kept).SerializeToString()
    return result.result.SerializeToString() if result.HasField("result") else None


def _kept(kept: run_pb2.Kept, token: Token) -> run_pb2.Kept:
    """What its worker says; the key is that of its own assignment. Raises BadFrame."""
    if kept.size < 0 or kept.omitted < 0 or not (kept.problem or len(kept.sha256) == _SHA256):
        raise BadFrame("what is in the result store has a size and a SHA-256")
    return run_pb2.Kept(
        size=kept.size,
        sha256=kept.sha256[:_SHA256],
        fencing_token=token,
        problem=kept.problem[:_LONGEST_PROBLEM],
        omitted=kept.omitted,
        json=kept.json,
    )
