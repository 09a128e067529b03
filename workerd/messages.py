"""Convert the messages of `worker_service.proto` to and from the values of the core.

Times and durations are computed here: protobuf's own functions take three times as long, and each
run has five of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from struct import Struct
from typing import TypeAlias, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedkit.bounds import FRAME, problem
from schedkit.bounds.rules import LENGTH, Found
from schedkit.bounds.tables import MOST_IN_BATCH
from schedkit.set_aside import note, set_aside
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.admission import AssignmentState, NotTaken, RejectReason
from workerd.core.capture import Piece
from workerd.core.credit import Credit
from workerd.core.ids import AssignmentKey, Incarnation
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

B = TypeVar("B", pb.RunBatch, pb.AckBatch)
M = TypeVar("M", bound=Message)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHY = {why: pb.Refusal.Why.Value(f"WHY_{why.name}") for why in RejectReason}
_OUTCOME = {each: pb.Result.Outcome.ValueType(each.value) for each in AttemptVerdict}
_REASON = {each: common_pb2.Reason.ValueType(each.value) for each in OutcomeReason}
_MICROSECOND = timedelta(microseconds=1)
_KEY, _START = Struct("!16sq"), Struct("!16sqq")
"""Entries of `Held`."""
_BYTES_OF_ID, _DIGITS_OF_ID, _TEXT_OF_ID = 16, 32, 36
_GROUPS_OF_ID = Struct("8s4s4s4s12s")

Holding: TypeAlias = tuple[AssignmentKey, int, AssignmentState, int | None]
"""A run in hand, its scheduled time, its state, and its start time if it has started. Times are in
microseconds since 1970.
"""
_new_key = tuple.__new__
"""Creates keys without a call of a Python function."""


def within_bounds(kind: str, message: Message) -> bool:
    """Return whether this item of a member's frame is within its bounds; log it if not."""
    if found := FRAME.violations(message):
        note(kind, type(message).__name__, problem(found))
    return not found


def even(kind: str, batch: pb.AckBatch) -> bool:
    """Return whether a batch is within its bounds, with columns of one length; log it if not."""
    found = FRAME.violations(batch) or uneven(batch.run_ids, len(batch.fencing_tokens))
    if found:
        note(kind, type(batch).__name__, problem(found))
    return not found


def parts(batches: Sequence[B]) -> Iterator[Sequence[B]]:
    """Return batches in parts of about `MOST_IN_BATCH` runs at most, in order."""
    begin = runs = 0
    for place, batch in enumerate(batches):
        count = len(batch.fencing_tokens)
        if place > begin and runs + count > MOST_IN_BATCH:
            yield batches[begin:place]
            begin, runs = place, 0
        runs += count
    if begin < len(batches):
        yield batches[begin:]


def each(kind: str, items: Iterable[M], handle: Callable[[M], object]) -> None:
    """Handle the items of a member's frame. Items that are out of bounds, or that can't be handled,
    are set aside.
    """
    for item in items:
        if within_bounds(kind, item):
            with set_aside(kind, type(item).__name__):
                handle(item)


def key_of(message: pb.AssignmentKey) -> AssignmentKey:
    run = message.run_id
    if len(run) != _TEXT_OF_ID or run != run.lower():
        run = _canonical(run)
    return _new_key(AssignmentKey, (run, message.fencing_token))


def _canonical(run: str) -> str:
    """Return an id as batches have it, whose ids are bytes."""
    digits = run.replace("-", "").lower()
    if len(digits) != _DIGITS_OF_ID:
        return run
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def keys_of(run_ids: bytes, tokens: Iterable[int]) -> list[AssignmentKey]:
    groups = _GROUPS_OF_ID.iter_unpack(run_ids.hex().encode())
    runs = b" ".join(map(b"-".join, groups)).decode().split()
    return [*map(_new_key, repeat(AssignmentKey), zip(runs, tokens, strict=True))]


def packed_ids(keys: Iterable[AssignmentKey]) -> bytes:
    return bytes.fromhex("".join([run for run, _ in keys]).replace("-", ""))


def key_message(key: AssignmentKey, scheduled: int) -> pb.AssignmentKey:
    """Return the message of a key. `scheduled`: in microseconds since 1970."""
    message = pb.AssignmentKey(run_id=key[0], fencing_token=key[1])
    put_microseconds(scheduled, message.scheduled_at)
    return message


def uneven(run_ids: bytes, count: int, **columns: int) -> Found:
    """Return which columns of a batch of `count` runs have other lengths."""
    found = [
        (name, f"has {entries:,} entries, must have {count:,}")
        for name, entries in columns.items()
        if entries != count
    ]
    if len(run_ids) != _BYTES_OF_ID * count:
        what = f"has {len(run_ids):,} bytes, must have {_BYTES_OF_ID} for each of {count:,} runs"
        found.append(("run_ids", what))
    return found


def seconds(instant: Timestamp) -> float:
    return instant.seconds + instant.nanos / 1e9


def span_of(duration: Duration) -> timedelta:
    """Return the duration, to the microsecond."""
    return timedelta(seconds=duration.seconds, microseconds=int(duration.nanos / 1000))


def put(instant: datetime, into: Timestamp) -> None:
    since = instant - _EPOCH
    into.seconds = since.days * 86_400 + since.seconds
    into.nanos = since.microseconds * 1000


def microseconds(instant: Timestamp) -> int:
    """Return microseconds since the Unix epoch."""
    return instant.seconds * 1_000_000 + instant.nanos // 1000


def put_microseconds(at: int, into: Timestamp) -> None:
    into.seconds, rest = divmod(at, 1_000_000)
    into.nanos = rest * 1000


def date_at(at: int) -> datetime:
    """Return a time in microseconds since 1970 as a date in UTC."""
    return _EPOCH + at * _MICROSECOND


def action_of(message: pb.Assignment) -> str:
    """Return the action, which selects the executor; empty if it is unknown."""
    action = message.WhichOneof("action")
    return f"plugin/{message.plugin.executor}" if action == "plugin" else action or ""


def heads_of(message: pb.Demand) -> Sequence[DemandHead]:
    return [
        DemandHead(head.priority, seconds(head.waiting_since), head.slots, max(head.least, 1))
        for head in message.heads
    ]


def granted(share: Share, credit: Credit) -> pb.Granted:
    message = pb.Granted(slots=share.slots, received=credit.received, serial=credit.serial)
    if share.before is not None:
        message.before.priority = common_pb2.Priority.ValueType(share.before.priority)
        message.before.waiting_since.FromMicroseconds(round(share.before.since * 1e6))
    return message


def refusal(key: pb.AssignmentKey, refused: NotTaken) -> pb.Refusal:
    return pb.Refusal(
        key=key, why=_WHY[refused.why], greatest_token_seen=refused.greatest, detail=refused.detail
    )


def pack_holdings(beat: pb.Heartbeat, holdings: Iterable[Holding]) -> None:
    """List the runs in hand as packed bytes."""
    waiting, running, spooled = bytearray(), bytearray(), bytearray()
    for (run_id, token), _, state, started_at in holdings:
        run = bytes.fromhex(run_id.replace("-", ""))
        if state is AssignmentState.ENDED:
            spooled += _KEY.pack(run, token)
        elif started_at is None:
            waiting += _KEY.pack(run, token)
        else:
            running += _START.pack(run, token, started_at)
    beat.held.waiting, beat.held.running = bytes(waiting), bytes(running)
    beat.held.spooled = bytes(spooled)


def result(
    key: AssignmentKey,
    key_message: pb.AssignmentKey,
    incarnation: Incarnation,
    worker: str,
    outcome: AttemptOutcome,
    started_at: int,
    finished_at: int,
) -> pb.Result:
    """Return the result to spool and send when an attempt has ended. Times are in microseconds
    since 1970.
    """
    message = pb.Result(
        key=key_message,
        worker=worker,
        incarnation=incarnation,
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
        put_microseconds(started_at, message.started_at)
    put_microseconds(finished_at, message.finished_at)
    if outcome.result is not None and len(outcome.result.data) <= MAX_RESULT:
        message.result.CopyFrom(payload(outcome.result))
    if outcome.retry_after is not None:
        delay = max(LENGTH.low, min(outcome.retry_after, LENGTH.high))
        message.retry_after.FromTimedelta(delay)
    return message


def payload_bytes(payload: common_pb2.Payload) -> bytes:
    """Return JSON as UTF-8 text, raw bytes unchanged."""
    return payload.raw if payload.WhichOneof("kind") == "raw" else payload.json.encode()


def content_of(payload: common_pb2.Payload) -> Content | None:
    kind = payload.WhichOneof("kind")
    return None if kind is None else Content(payload_bytes(payload), json=kind == "json")


def payload(content: Content) -> common_pb2.Payload:
    if content.json:
        return common_pb2.Payload(json=content.data.decode())
    return common_pb2.Payload(raw=content.data)


def piece(kept: Piece) -> run_pb2.LogPiece:
    stream = run_pb2.LogPiece.STREAM_STDERR if kept.stderr else run_pb2.LogPiece.STREAM_STDOUT
    message = run_pb2.LogPiece(
        stream=stream, data=kept.data, offset=kept.offset, omitted=kept.omitted
    )
    put(kept.at, message.at)
    return message
