"""Runs, workers and claims in a line, for tests of the owner's parts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from schedd.cluster.ownership import Ownership
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import (
    NO_TOKEN,
    Epoch,
    Id,
    IncarnationId,
    JobId,
    RunId,
    ShardId,
    TenureId,
    Timeline,
    Token,
)
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import DispatchedBatch, Incarnation, LiveRun, RunKey, Trigger
from schedd.core.runs.run_records import RunRecord
from schedd.runtime.definition_texts import CachedDefinition

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def run(number: int, *, shard: int = 0, state: State = State.PENDING, **changes: Any) -> LiveRun:
    values: dict[str, Any] = {
        "key": RunKey(NOW, RunId(Id.from_int(number))),
        "job_id": JobId(Id.from_int(1000 + number)),
        "shard": ShardId(shard),
        "state": state,
        "priority": Priority.MEDIUM,
        "due_at": NOW,
        "ready_at": NOW,
        "token": NO_TOKEN,
        **changes,
    }
    return LiveRun(**values)


def running(number: int, worker: Incarnation, *, shard: int = 0, token: int = 7) -> LiveRun:
    return run(
        number,
        shard=shard,
        state=State.RUNNING,
        token=Token(token),
        worker=worker.worker,
        incarnation=worker.id,
        attempt=1,
        start_by=NOW + timedelta(seconds=5),
    )


def worker(number: int = 1, *, name: str = "", spool: str = "", slots: int = 4) -> Incarnation:
    return Incarnation(
        id=IncarnationId(Id.from_int(number)),
        worker=name or f"w{number}",
        spool_id=spool or f"spool-{number}",
        host="host",
        version="1",
        slots=slots,
        labels={},
        handlers=(),
        actions=("shell",),
        started_at=NOW,
    )


def owning(*shards: int, epoch: int = 5, lanes: int = 2) -> Ownership:
    ownership = Ownership(TenureId(Id.from_int(99)), Timeline(1), lanes)
    ownership.gain({ShardId(shard): Epoch(epoch) for shard in shards})
    return ownership


def record(number: int, *, namespace: str = "default", **changes: Any) -> RunRecord:
    """A run as people see it."""
    nothing: Any = None
    stored = run(number, **changes)
    return RunRecord(
        stored, namespace, "etl", False, Trigger.SCHEDULE, None, 0, 1, *[nothing] * 3, "", nothing
    )


class RecordingLine:
    """A worker's stream that records all calls."""

    def __init__(self) -> None:
        self.assigned: list[LiveRun] = []
        self.revoked: list[tuple[RunId, Token]] = []
        self.cancelled: list[RunId] = []
        self.killed: list[RunId] = []
        """Canceled runs that must be killed."""
        self.demanded: list[list[QueueHead]] = []
        self.acknowledged: list[tuple[RunId, Token, bool]] = []
        self.batches: list[int] = []
        """How many results each call acknowledged, of those in batches."""
        self.drained: list[bool] = []
        self.followed: list[tuple[RunId, Token, bool]] = []
        self.reached: list[tuple[int, int]] = []
        """Serials, and how far this member goes."""

    def assign(self, batch: DispatchedBatch, known: Sequence[CachedDefinition]) -> None:
        assert len(known) == len(batch.runs)
        self.assigned.extend([one.run for one in batch.single()])

    def revoke(self, key: RunKey, token: Token) -> None:
        self.revoked.append((key.run_id, token))

    def cancel(self, key: RunKey, token: Token, *, kill: bool) -> None:
        self.cancelled.append(key.run_id)
        if kill:
            self.killed.append(key.run_id)

    def demand(self, heads: Sequence[QueueHead]) -> None:
        self.demanded.append(list(heads))

    def acknowledge(self, key: RunKey, token: Token, *, stale: bool) -> None:
        self.acknowledged.append((key.run_id, token, stale))

    def acknowledge_all(self, run_ids: Sequence[RunId], tokens: Sequence[Token]) -> None:
        accepted = zip(run_ids, tokens, strict=True)
        self.acknowledged += [(run_id, token, False) for run_id, token in accepted]
        self.batches.append(len(run_ids))

    def follow(self, key: RunKey, token: Token, *, on: bool) -> None:
        self.followed.append((key.run_id, token, on))

    def drain(self, *, on: bool) -> None:
        self.drained.append(on)

    def reach(self, serial: int, slots: int) -> None:
        self.reached.append((serial, slots))


class SetClock:
    """Cluster time as the test sets it."""

    def __init__(self, now: datetime = NOW) -> None:
        self.time = now

    def now(self) -> datetime:
        return self.time
