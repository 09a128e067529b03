"""The tables a check looks at, typed: one row as one commit left it.

A column that a row doesn't have (a server of another version, a value that wasn't printed) is None
or zero, never an error: what can't be judged without it is said by N1.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from faults.history import Row
from schedkit.outcome_digest import outcome_digest

SCHEDULED = "SCHEDULE"
"""`trigger` of a run that the schedule made; others were made by people."""
SUBMITTED = "SUBMIT"

WAITING = frozenset({"PENDING", "RETRYING"})
FIRED = frozenset({"PENDING", "RUNNING"})
"""States in which a run is inserted, unless it never ran: RUNNING with its token."""
NEVER_RAN = frozenset({"SKIPPED", "MISSED", "COALESCED"})
TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"}) | NEVER_RAN

TRANSITIONS: dict[str, frozenset[str]] = {
    "PENDING": frozenset({"RUNNING", "CANCELLED", "FAILED"}) | NEVER_RAN,
    "RUNNING": frozenset({"SUCCEEDED", "FAILED", "RETRYING", "CANCELLED", "PENDING"}),
    "RETRYING": frozenset({"RUNNING", "FAILED", "CANCELLED"}),
}
"""docs/semantics/jobs-and-runs.md. Nothing follows a terminal state."""


def instant(text: str | None) -> float | None:
    """Seconds of the epoch, of a timestamp as PostgreSQL prints it."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def number(text: str | None) -> int:
    """0 for NULL."""
    return 0 if text is None else int(text)


def flag(text: str | None) -> bool:
    """PostgreSQL prints a bool as `true` or as `t`."""
    return text in ("true", "t")


def ticks(at: float) -> int:
    """An instant as whole milliseconds, for comparison."""
    return round(at * 1000)


@dataclass(frozen=True, slots=True)
class Run:
    """A row of `runs`."""

    run_id: str
    job_id: str
    scheduled_at: float
    scheduled_until: float | None
    due_at: float
    shard: int
    count: int
    fired_by: str | None
    trigger: str
    state: str
    reason: str | None
    token: int
    generation: int
    attempt: int
    losses: int
    cancelling: bool
    worker: str | None
    incarnation: str | None
    assigned_at: float | None
    ready_at: float | None
    started_at: float | None
    finished_at: float | None
    exit_code: int | None
    digest: str | None

    @classmethod
    def of(cls, row: Row) -> Run:
        scheduled_at = instant(row["scheduled_at"])
        assert scheduled_at is not None
        code = row.get("exit_code")
        return cls(
            run_id=str(row["run_id"]),
            job_id=str(row["job_id"]),
            scheduled_at=scheduled_at,
            scheduled_until=instant(row.get("scheduled_until")),
            due_at=instant(row.get("due_at")) or scheduled_at,
            shard=number(row.get("shard")),
            count=number(row.get("count") or "1"),
            fired_by=row.get("fired_by"),
            trigger=str(row["trigger"]),
            state=str(row["state"]),
            reason=row.get("reason"),
            token=number(row.get("token")),
            generation=number(row.get("generation")),
            attempt=number(row.get("attempt")),
            losses=number(row.get("losses")),
            cancelling=flag(row.get("cancelling")),
            worker=row.get("worker"),
            incarnation=row.get("incarnation"),
            assigned_at=instant(row.get("assigned_at")),
            ready_at=instant(row.get("ready_at")),
            started_at=instant(row.get("started_at")),
            finished_at=instant(row.get("finished_at")),
            exit_code=None if code is None else int(code),
            digest=row.get("digest") or _implied_digest(row),
        )

    @property
    def scheduled(self) -> bool:
        """Whether the schedule made it."""
        return self.trigger == SCHEDULED

    @property
    def ended(self) -> bool:
        """Whether nothing may follow."""
        return self.state in TERMINAL

    @property
    def as_fresh(self) -> bool:
        """Whether it was never dispatched, or came back from pre-dispatch: then it is as before,
        except for its token (docs/protocol-rules.md, P4.7).
        """
        if self.token == 0:
            return True
        early = self.assigned_at is not None and self.assigned_at < self.due_at
        return self.state == "PENDING" and early and self.attempt == self.losses == 0

    @property
    def admitted(self) -> bool:
        """Had a token and hasn't ended: it counts for the job's overlap (P3.6)."""
        return not self.ended and not self.as_fresh


@dataclass(frozen=True, slots=True)
class Job:
    """A row of `jobs`; `spec` is only compared."""

    job_id: str
    namespace: str
    name: str
    generation: int
    spec: str | None
    paused: bool
    deleted_at: float | None
    ephemeral: bool

    @classmethod
    def of(cls, row: Row) -> Job:
        return cls(
            job_id=str(row["job_id"]),
            namespace=str(row["namespace"]),
            name=str(row["name"]),
            generation=number(row["generation"]),
            spec=row.get("spec"),
            paused=row.get("paused_at") is not None,
            deleted_at=instant(row.get("deleted_at")),
            ephemeral=flag(row.get("ephemeral")),
        )

    @property
    def deleted(self) -> bool:
        """Whether it is gone."""
        return self.deleted_at is not None


@dataclass(frozen=True, slots=True)
class Timer:
    """A row of `timers`."""

    job_id: str
    nominal: float | None
    generation: int
    paused: bool

    @classmethod
    def of(cls, row: Row) -> Timer:
        return cls(
            job_id=str(row["job_id"]),
            nominal=instant(row.get("nominal")),
            generation=number(row.get("generation")),
            paused=flag(row.get("paused")),
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """A row of `shards`."""

    id: int
    owner: str | None
    epoch: int

    @classmethod
    def of(cls, row: Row) -> Shard:
        return cls(number(row["id"]), row.get("owner"), number(row["epoch"]))


@dataclass(frozen=True, slots=True)
class Taking:
    """A row of `shard_log`."""

    seq: int
    shard: int
    epoch: int
    tenure: str | None

    @classmethod
    def of(cls, row: Row) -> Taking:
        seq, shard, epoch = (number(row[name]) for name in ("seq", "shard", "epoch"))
        return cls(seq, shard, epoch, row.get("tenure"))


@dataclass(frozen=True, slots=True)
class Tenure:
    """A row of `tenures`."""

    id: str
    member: str
    fenced: bool

    @classmethod
    def of(cls, row: Row) -> Tenure:
        return cls(str(row["id"]), str(row["member"]), row.get("fenced_at") is not None)


@dataclass(frozen=True, slots=True)
class Term:
    """The row of `term`."""

    term: int
    leader: str | None

    @classmethod
    def of(cls, row: Row) -> Term:
        return cls(number(row["term"]), row.get("leader"))


@dataclass(frozen=True, slots=True)
class Cluster:
    """The row of `cluster`."""

    paused: bool

    @classmethod
    def of(cls, row: Row) -> Cluster:
        return cls(flag(row.get("paused")))


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A row of `incarnations`."""

    id: str
    worker: str
    lost: bool

    @classmethod
    def of(cls, row: Row) -> Incarnation:
        return cls(str(row["id"]), str(row["worker"]), row.get("lost_at") is not None)


@dataclass(frozen=True, slots=True)
class Audit:
    """A row of `audit`."""

    seq: str
    action: str
    object: str
    outcome: str
    reason: str
    run_id: str | None
    token: int
    worker: str
    source: str

    @classmethod
    def of(cls, row: Row) -> Audit:
        return cls(
            seq=str(row["seq"]),
            action=str(row["action"]),
            object=str(row["object"]),
            outcome=str(row["outcome"]),
            reason=row.get("reason") or "",
            run_id=row.get("run_id"),
            token=number(row.get("token")),
            worker=row.get("worker") or "",
            source=row.get("source") or "",
        )

    @property
    def stale(self) -> bool:
        """A result that was refused, for it came too late."""
        return (self.action, self.outcome, self.reason) == ("result", "refused", "STALE")


def _implied_digest(row: Row) -> str | None:
    """Return the digest of a plain success, which is stored as NULL; None if the row has no result
    of a worker.
    """
    if row["state"] != "SUCCEEDED" or row.get("incarnation") is None:
        return None
    return outcome_digest(str(row["run_id"]), number(row.get("token"))).hex()
