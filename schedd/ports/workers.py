"""Results and incarnations of workers, which any member may write; tokens alone protect them."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from schedd.core.cluster.cluster_events import EventKind, RegisteredWorker
from schedd.core.ids import (
    Epoch,
    IncarnationId,
    ShardId,
    Token,
)
from schedd.core.runs.model import AuditEntry, Incarnation, LiveRun, Report, RunKey, Verdict
from schedd.core.runs.records import Drain, Unstarted

DrainAudit: TypeAlias = Callable[[Drain | None, Drain | None], AuditEntry]


class ResultStore(Protocol):
    """Writes of any member for reports of workers; the token alone protects them."""

    async def reported_runs(self, keys: Sequence[RunKey]) -> dict[RunKey, LiveRun]:
        """The runs as they stand, whatever their state, for deciding what a report means."""
        ...

    async def accept(self, reports: Sequence[Report]) -> list[Verdict | None]:
        """Store all in one transaction; return a verdict each, in order. STALE ones are audited."""
        ...

    async def refuse(self, unstarted: Sequence[Unstarted]) -> list[RunKey]:
        """Runs that their worker refused or gave up before the start, by token and state; no
        claim needed: the token is the guard. Gives the runs that went back.
        """
        ...

    async def outdo(self, shard: ShardId, seen: Epoch) -> None:
        """Raise the shard's epoch above one that was seen in a token but never issued. The owner's
        claim becomes invalid, and it takes the shard over again.
        """
        ...

    async def started(self, starts: Sequence[tuple[RunKey, Token, datetime]]) -> None:
        """Record the start of long runs, for display."""
        ...


class WorkerStore(Protocol):
    """Incarnations of workers."""

    async def register(self, incarnation: Incarnation) -> Incarnation:
        """Insert it if it is new; gives the stored row (see `lost_at`)."""
        ...

    async def incarnations(self, ids: Sequence[IncarnationId]) -> list[Incarnation]: ...
    async def not_living(self, ids: Sequence[IncarnationId]) -> frozenset[IncarnationId]:
        """Return those that are lost or unknown: a restored database may not contain them."""
        ...

    async def of_worker(self, worker: str) -> list[Incarnation]:
        """Return those of this worker that aren't lost, newest first."""
        ...

    async def newest_of(self, names: Sequence[str]) -> list[Incarnation]:
        """The newest one of each of these workers, lost or not."""
        ...

    async def drains(self) -> list[Drain]:
        """The workers that are drained, by name."""
        ...

    async def drain(self, worker: str, by: str, reason: str, entry: DrainAudit) -> Drain:
        """Drain a worker until it is undrained; `entry` makes the audit's line of what
        was and what is, if that differs.
        """
        ...

    async def undrain(self, worker: str, entry: DrainAudit) -> bool:
        """Undrain a worker; return whether it was drained."""
        ...

    async def lose(self, lost: Collection[IncarnationId], kind: EventKind | None) -> None:
        """Record these as lost. `kind`: WORKER_LOST or WORKER_RESTARTED; None: a goodbye."""
        ...

    async def registered(self) -> list[RegisteredWorker]:
        """Incarnations that aren't recorded as lost."""
        ...

    async def note_seen(self, seen: Collection[IncarnationId]) -> None:
        """Record that the keys of these exist in etcd. A worker that was lost returns by it."""
        ...
