"""The names of things: one type a kind, so that no checker lets a token pass for an epoch."""

from datetime import UTC, datetime
from typing import NewType, TypeAlias
from uuid import UUID, uuid5

JobId = NewType("JobId", UUID)
RunId = NewType("RunId", UUID)
TenureId = NewType("TenureId", UUID)
IncarnationId = NewType("IncarnationId", UUID)
BackfillId = NewType("BackfillId", UUID)
RedriveId = NewType("RedriveId", UUID)
AccessTokenId = NewType("AccessTokenId", UUID)
ShardId = NewType("ShardId", int)
Epoch = NewType("Epoch", int)
Term = NewType("Term", int)
Timeline = NewType("Timeline", int)
Token = NewType("Token", int)

Hint: TypeAlias = tuple[RunId, JobId | None]
"""A run that was stored otherwise just now, and its job if that is known."""

NO_TOKEN = Token(0)
"""Less than every token: the run was never dispatched."""

SHARDS = 256
"""Hash partitions of the jobs. Part of the stored data: changing it means moving every job."""

SEQUENCES = 1 << 31
"""Sequence numbers an owner may use in one epoch. After the last it takes the shard over again."""


def token_of(epoch: Epoch, sequence: int) -> Token:
    """The fencing token `epoch << 32 | sequence`: grows with each assignment and each taking."""
    if not 0 < sequence <= SEQUENCES:
        raise ValueError(f"sequence {sequence} of a fencing token is outside 1..{SEQUENCES}")
    return Token(epoch << 32 | sequence)


def epoch_of(token: Token) -> Epoch:
    """The epoch under which a token was made."""
    return Epoch(token >> 32)


def scheduled_run_id(job: JobId, nominal: datetime) -> RunId:
    """The id of the run of one nominal instant (aware), the same on every member."""
    return RunId(uuid5(job, nominal.astimezone(UTC).isoformat(timespec="microseconds")))


def redriven_run_id(run: RunId) -> RunId:
    """The id of the run that does this one again: however often it is asked for, there is one."""
    return RunId(uuid5(run, "redrive"))


def child_run_id(parent: RunId, worker: str) -> RunId:
    """The id of a broadcast's run for the worker of this name: of one parent there is one."""
    return RunId(uuid5(parent, f"child/{worker}"))


def backfilled_run_id(backfill: BackfillId, nominal: datetime) -> RunId:
    """The id of a backfill's run of one nominal instant (aware): not that of the schedule's own."""
    return RunId(uuid5(backfill, nominal.astimezone(UTC).isoformat(timespec="microseconds")))


def chained_run_id(child: JobId, scheduled_at: datetime, root: UUID) -> RunId:
    """The id of a job's run in one cycle of a chain: the same on every member."""
    nominal = scheduled_at.astimezone(UTC).isoformat(timespec="microseconds")
    return RunId(uuid5(child, f"{nominal}/{root}"))
