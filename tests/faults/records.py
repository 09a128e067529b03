"""The records of a fault run: what each line of a history says.

Times are Unix seconds of one host's CLOCK_REALTIME as floats. Text from the database stays text.
`faults.history` writes and reads them; import them from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

VERSION = 1

Row = Mapping[str, str | None]
"""Row as PostgreSQL prints it: column → text, None for NULL."""


@dataclass(frozen=True, slots=True)
class Meta:
    """The run of the test: who, when, with which timings. `failover`, `grace`: F and G, seconds.

    `legs`: where a test moved the cluster's clock, from which second of the host's on it was
    ahead by how many.
    """

    scenario: str
    seed: int
    began: float
    ended: float
    member_ttl: float
    worker_ttl: float
    failover: float
    grace: float
    quiet: tuple[tuple[float, float], ...] = ()
    command: str = ""
    commit: str = ""
    faketime: str | None = None
    legs: tuple[tuple[float, float], ...] = ()
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Schedule:
    """At most one of `cron`, `every` (seconds) and `at` (seconds of the epoch); none: on demand."""

    cron: str | None = None
    every: float | None = None
    at: float | None = None
    zone: str = "UTC"
    start: float | None = None
    end: float | None = None
    phase: float = 0.0
    gap: str = "run_after"
    overlap: str = "first"


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition of a job that a client asked for: its creation, or an edit of it.

    `op` is the client's call that asked; `job_id` is null where that call's answer never came (the
    checker then finds the job by its name). `generation` is the one that this definition has if the
    call took place. `overlap`: as manifests say it ("skip", "allow", "allow:2", "buffer_one", …).
    `window`, `timeout`: seconds. `attempts`: the greatest number of tries; `retry`: the rest of it.
    """

    at: float
    job_id: str | None
    namespace: str
    name: str
    generation: int
    schedule: Schedule
    catch_up: str = "latest"
    window: float = 3600.0
    overlap: str = "skip"
    delivery: str = "at_least_once"
    attempts: int = 1
    retry: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    op: int | None = None


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Begin or end of a user's call: `invoke`, and later exactly one of `ok`, `fail`, `unknown`.

    `call`: create, edit, pause, resume, delete, trigger, submit, cancel, or one that only reads.
    `args` and `answer` name what the call was about by `job_id`, `run_id`, `name`, `generation`,
    `idempotency_key` where they apply.
    """

    op: int
    phase: Literal["invoke", "ok", "fail", "unknown"]
    at: float
    call: str
    args: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ProbeEvent:
    """Line that a probe job wrote, in its first act (`start`) or its last (`end`)."""

    event: Literal["start", "end"]
    run: str
    job: str
    nominal: str
    at: float
    token: int
    attempt: int
    worker: str
    incarnation: str | None = None
    pid: int = 0
    exit: int | None = None
    digest: str | None = None

    @property
    def instant(self) -> float:
        """The nominal instant in seconds of the epoch."""
        return datetime.fromisoformat(self.nominal).timestamp()


@dataclass(frozen=True, slots=True)
class Nemesis:
    """Moment of a fault. Without `took_effect` it did not verifiably happen."""

    at: float
    id: int
    fault: str
    target: str
    phase: Literal["begin", "took_effect", "end", "healed"]
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restore:
    """The database was put back. Backed up at `taken`; from `stopped` on all were shut out of it,
    and `commits` had been recorded by then; at `opened` the older one took writes. What fell due
    from `horizon` on was to be caught up when the cluster was resumed.
    """

    taken: float
    stopped: float
    opened: float
    commits: int
    horizon: float


@dataclass(frozen=True, slots=True)
class Change:
    """Row changed by a commit. `key`: the old key, of a delete or of an update of it."""

    table: str
    op: Literal["insert", "update", "delete"]
    row: Row
    key: Row | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Transaction, in commit order; `at` is the database's commit time."""

    lsn: str
    xid: int
    at: float
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Resource:
    """Resources of one process at one moment; `spool_bytes` of workers, `heap_bytes` (of tables
    that hold only what lives) and `dead_rows` (of these, that VACUUM has to leave) of PostgreSQL.
    """

    at: float
    who: str
    pid: int
    rss_kib: int
    fds: int
    threads: int
    connections: int | None = None
    spool_bytes: int | None = None
    phase: Literal["before", "during", "after"] = "during"
    heap_bytes: int | None = None
    dead_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """The machine gave a process that had slept enough no turn: until `at`, for `late` seconds."""

    at: float
    late: float


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Leftovers after healing, each in words that name it; and the names of
    members and workers that the service manager started again, once for each time.
    """

    processes: tuple[str, ...] = ()
    etcd_keys: tuple[str, ...] = ()
    spool_files: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
