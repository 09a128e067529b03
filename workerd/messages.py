"""Convert the messages of `worker_service.proto` to and from the values of the core.

Times and durations are computed here: protobuf's own functions take three times as long, and each
run has five of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import TypeAlias, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedkit.bounds import FRAME, problem
from schedkit.bounds.common import LENGTH
from schedkit.set_aside import note, set_aside
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.admission import AssignmentState, NotTaken, OfferedAssignment, RejectReason
from workerd.core.capture import Piece
from workerd.core.cluster_time import MemberTime
from workerd.core.credit import Credit
from workerd.core.ids import AssignmentKey, Incarnation, RunId, Token
from workerd.core.outcome import (
    MAX_ERROR,
    MAX_RESULT,
    AttemptOutcome,
    AttemptVerdict,
    Content,
    OutcomeReason,
    digest,
)
from workerd.core.slot_split import DemandHead, Share

M = TypeVar("M", bound=Message)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHY = {why: pb.Refusal.Why.Value(f"WHY_{why.name}") for why in RejectReason}
_OUTCOME = {each: pb.Result.Outcome.ValueType(each.value) for each in AttemptVerdict}
_REASON = {each: common_pb2.Reason.ValueType(each.value) for each in OutcomeReason}
_MICROSECOND = timedelta(microseconds=1)
_KEY, _START = Struct("!16sq"), Struct("!16sqq")
"""Entries of `Held`."""
_STATE = {
    AssignmentState.HELD: pb.Holding.STATE_HELD,
    AssignmentState.PRE_DISPATCHED: pb.Holding.STATE_PRE_DISPATCHED,
    AssignmentState.RUNNING: pb.Holding.STATE_RUNNING,
    AssignmentState.ENDED: pb.Holding.STATE_SPOOLED,
}

Holding: TypeAlias = tuple[pb.AssignmentKey, AssignmentState, datetime | None]
"""A run in hand, its state, and its start time if it has started."""


def within_bounds(kind: str, message: Message) -> bool:
    """Return whether this item of a member's frame is within its bounds; log it if not."""
    if found := FRAME.violations(message):
        note(kind, type(message).__name__, problem(found))
    return not found


def each(kind: str, items: Iterable[M], handle: Callable[[M], object]) -> None:
    """Handle the items of a member's frame. Items that are out of bounds, or that can't be handled,
    are set aside.
    """
    for item in items:
        if within_bounds(kind, item):
            with set_aside(kind, type(item).__name__):
                handle(item)


def key_of(message: pb.AssignmentKey) -> AssignmentKey:
    """Return the run and the token."""
    return AssignmentKey(RunId(message.run_id), Token(message.fencing_token))


def seconds(instant: Timestamp) -> float:
    """Return seconds since the Unix epoch."""
    return instant.seconds + instant.nanos / 1e9


def date_of(instant: Timestamp) -> datetime:
    """Return the time in UTC, to the microsecond."""
    return _EPOCH + timedelta(seconds=instant.seconds, microseconds=instant.nanos // 1000)


def span_of(duration: Duration) -> timedelta:
    """Return the duration, to the microsecond."""
    return timedelta(seconds=duration.seconds, microseconds=int(duration.nanos / 1000))


def put(instant: datetime, into: Timestamp) -> None:
    """Write `instant` into a message."""
    since = instant - _EPOCH
    into.seconds = since.days * 86_400 + since.seconds
    into.nanos = since.microseconds * 1000


def offer_of(message: pb.Assignment, time: MemberTime) -> OfferedAssignment:
    """Return an assignment as admission sees it. `time`: of the member that sent it."""
    pre_dispatched = message.HasField("not_before")
    return OfferedAssignment(
        key_of(message.key),
        Incarnation(message.incarnation),
        max(message.slots, 1),
        seconds(message.start_by),
        time.surely_reached(seconds(message.not_before)) if pre_dispatched else None,
    )


def action_of(message: pb.Assignment) -> str:
    """Return the action, which selects the executor; empty if it is unknown."""
    action = message.WhichOneof("action")
    return f"plugin/{message.plugin.executor}" if action == "plugin" else action or ""


def heads_of(message: pb.Demand) -> Sequence[DemandHead]:
    """Return the heads of a member's ready queue."""
    return [
        DemandHead(head.priority, seconds(head.waiting_since), head.slots, max(head.least, 1))
        for head in message.heads
    ]


def granted(share: Share, credit: Credit) -> pb.Granted:
    """Return the message that grants a member these slots."""
    message = pb.Granted(slots=share.slots, received=credit.received, serial=credit.serial)
    if share.before is not None:
        message.before.priority = common_pb2.Priority.ValueType(share.before.priority)
        message.before.waiting_since.FromMicroseconds(round(share.before.since * 1e6))
    return message


def refusal(key: pb.AssignmentKey, refused: NotTaken) -> pb.Refusal:
    """Return the message that rejects an assignment."""
    return pb.Refusal(
        key=key,
        why=_WHY[refused.why],
        greatest_token_seen=refused.greatest,
        detail=refused.detail,
    )


def list_holdings(beat: pb.Heartbeat, holdings: Iterable[Holding]) -> None:
    """List the runs in hand, one message each: for members that don't read `held`."""
    for key, state, started_at in holdings:
        listed = beat.holdings.add(key=key, state=_STATE[state])
        if started_at is not None:
            put(started_at, listed.started_at)


def pack_holdings(beat: pb.Heartbeat, holdings: Iterable[Holding]) -> None:
    """List the runs in hand as packed bytes."""
    waiting, running, spooled = bytearray(), bytearray(), bytearray()
    for key, state, started_at in holdings:
        run, token = bytes.fromhex(key.run_id.replace("-", "")), key.fencing_token
        if state is AssignmentState.ENDED:
            spooled += _KEY.pack(run, token)
        elif started_at is None:
            waiting += _KEY.pack(run, token)
        else:
            running += _START.pack(run, token, (started_at - _EPOCH) // _MICROSECOND)
    beat.held.waiting, beat.held.running = bytes(waiting), bytes(running)
    beat.held.spooled = bytes(spooled)


def result(
    key: AssignmentKey,
    assignment: pb.Assignment,
    worker: str,
    outcome: AttemptOutcome,
    started_at: datetime,
    finished_at: datetime,
) -> pb.Result:
    """Return the result to spool and send when an attempt has ended."""
    message = pb.Result(
        key=assignment.key,
        worker=worker,
        incarnation=assignment.incarnation,
        digest=digest(key, outcome),
        outcome=_OUTCOME[outcome.verdict],
        reason=_REASON[outcome.reason],
        exit_code=outcome.exit_code,
    )
    if outcome.error:
        message.error = outcome.error.encode(errors="replace").decode()[:MAX_ERROR]
    if outcome.output:
        message.output.extend(map(piece, outcome.output))
    if outcome.began:
        put(started_at, message.started_at)
    put(finished_at, message.finished_at)
    if outcome.result is not None and len(outcome.result.data) <= MAX_RESULT:
        message.result.CopyFrom(payload(outcome.result))
    if outcome.retry_after is not None:
        delay = max(LENGTH.low, min(outcome.retry_after, LENGTH.high))
        message.retry_after.FromTimedelta(delay)
    return message


def payload(content: Content) -> common_pb2.Payload:
    """Return the message of a returned value."""
    if content.json:
        return common_pb2.Payload(json=content.data.decode())
    return common_pb2.Payload(raw=content.data)


def piece(kept: Piece) -> run_pb2.LogPiece:
    """Return the message of a piece of output."""
    stream = run_pb2.LogPiece.STREAM_STDERR if kept.stderr else run_pb2.LogPiece.STREAM_STDOUT
    message = run_pb2.LogPiece(
        stream=stream, data=kept.data, offset=kept.offset, omitted=kept.omitted
    )
    put(kept.at, message.at)
    return message


def log_fields(assignment: pb.Assignment) -> dict[str, object]:
    """Return the log keys of an assignment, for `extra`."""
    return key_of(assignment.key).log_fields | {"job": assignment.job}
