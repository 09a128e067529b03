"""PostgreSQL at READ COMMITTED, as far as the protocol leans on it.

    lock ─→ read, decide, put ─→ COMMIT ─┬─ seen
                                         ├─ unanswered: the server commits, some time later
                                         └─ unanswered: the server never got it

- Row locks are exclusive or shared, wait, time out; a statement after a lock sees what was
  committed by then. One statement is one step of the model: no process comes in between.
- A transaction that idles is ended by the server. A server that was replaced knows
  none of the old one's transactions.
- Every commit passes the judge before the rows change.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from faults.model.holds import Cluster
from faults.model.timing import IDLE_IN_TRANSACTION, LOCK_TIMEOUT

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A process, or a part of one. Anything may happen at each of its yields."""

JobId = int
ShardId = int
TenureId = int
RunId = tuple[int, int]
"""Job and instant; triggered runs count from `TRIGGERED` on."""
IncarnationId = tuple[int, int]
"""Worker, and which of its registrations."""


class Abort(Exception):
    """Rolled back: nothing happened."""


class Unknown(Abort):
    """COMMIT was sent and not answered."""


@dataclass(frozen=True, slots=True)
class Shard:
    owner: TenureId | None
    epoch: int
    timeline: int


@dataclass(frozen=True, slots=True)
class Tenure:
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class Timer:
    generation: int
    due: int
    """The next instant to fire."""
    shard: ShardId
    paused: bool = False
    paused_at: int = 0
    fired: int = 0
    """Of `max_runs`."""
    ended: bool = False
    thin: bool = False
    """Its schedule lacks every other instant."""
    changed_at: int = 0
    """When this generation was made."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Assignment, as its row keeps it."""

    token: int
    incarnation: IncarnationId
    generation: int
    start_by: int
    at: int = 0
    """When it was dispatched."""
    pre_dispatched: bool = False
    """Dispatched before it was due."""


@dataclass(frozen=True, slots=True)
class Run:
    state: str
    generation: int
    shard: ShardId
    """Where its job was when it was inserted."""
    token: int = 0
    attempt: int = 0
    incarnation: IncarnationId | None = None
    sent: tuple[Attempt, ...] = ()
    results: tuple[tuple[int, str], ...] = ()
    """Accepted ones: token and outcome, which stands for the digest."""
    why: str = ""
    """For what it was skipped."""
    back: str = ""
    """Why it is skipped if it comes back unstarted; empty: it waits then."""
    hurried: bool = False
    """The run starts without waiting for its instant."""
    parent_states: tuple[tuple[JobId, str], ...] | None = None
    """By which ends of its parents a chain's run was skipped, and by nothing else."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A parent's run has ended in a cycle, and the child isn't judged yet."""

    run: RunId
    state: str
    at: int
    """When the first of that parent arrived."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    term: int


WAITING = ("PENDING", "RETRYING")
LIVE = ("PENDING", "RUNNING", "RETRYING")

Id = TypeVar("Id", bound=Hashable)
Row = TypeVar("Row")


class Table(Generic[Id, Row]):
    """Rows by their key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[Id, Row] = {}

    def __getitem__(self, key: Id) -> Row:
        return self.rows[key]

    def get(self, key: Id) -> Row | None:
        return self.rows.get(key)


class Database:
    """Server with its tables and locks. `judge` sees each commit before it changes the rows."""

    def __init__(
        self,
        chance: Callable[[], float],
        between: Callable[[int, int], int],
        *,
        late_commits: float,
        lost_commits: float,
    ) -> None:
        self.chance = chance
        self.between = between
        self.now = 0
        self.timeline = 1
        self.server = 1
        """Which one it is: another one knows no transaction of those before."""
        self.late_commits = late_commits
        self.lost_commits = lost_commits
        self.shards: Table[ShardId, Shard] = Table("shards")
        self.tenures: Table[TenureId, Tenure] = Table("tenures")
        self.timers: Table[JobId, Timer] = Table("timers")
        self.runs: Table[RunId, Run] = Table("runs")
        self.incarnations: Table[IncarnationId, Incarnation] = Table("incarnations")
        self.terms: Table[str, Term] = Table("terms")
        self.cluster: Table[str, Cluster] = Table("cluster")
        self.arrivals: Table[tuple[int, JobId], Arrival] = Table("arrivals")
        self.tables: tuple[Table[Any, Any], ...] = (
            self.shards,
            self.tenures,
            self.timers,
            self.runs,
            self.incarnations,
            self.terms,
            self.cluster,
            self.arrivals,
        )
        self.locks: dict[tuple[str, Hashable], dict[Transaction, bool]] = {}
        self.judge: Callable[[Transaction], None] = lambda _: None
        self.spawn: Callable[[Steps[None]], None] = lambda _: None
        self.trigger: Callable[[Transaction], Steps[None]] | None = None
        """Steps that a transaction makes before its COMMIT, beside its own."""
        self.on_commit: Callable[[Transaction], None] = lambda _: None
        """Called when the process that committed has received the answer."""

    def runs_of(self, job: JobId) -> list[tuple[RunId, Run]]:
        """All rows of a job, in the order of their insertion."""
        return [(key, run) for key, run in self.runs.rows.items() if key[0] == job]

    def copy(self) -> dict[str, dict[Hashable, Any]]:
        """Copy the rows, for a standby or a backup."""
        return {table.name: dict(table.rows) for table in self.tables}

    @property
    def present(self) -> Cluster:
        """The cluster's row."""
        return self.cluster["cluster"]

    def replace(self, rows: dict[str, dict[Hashable, Any]], *, promoted: bool = True) -> None:
        """Another server takes over, with these rows: no transaction known, and a new timeline,
        unless its files were merely put back.
        """
        self.server += 1
        self.timeline += promoted
        self.locks.clear()
        for table in self.tables:
            table.rows = dict(rows[table.name])


@dataclass(frozen=True, slots=True)
class Claim:
    """Ownership that an owner's transaction claims."""

    tenure: TenureId
    shard: ShardId
    epoch: int
    timeline: int


class Transaction:
    """Transaction; `claim` is the owner's, if an owner writes."""

    def __init__(self, database: Database, claim: Claim | None = None) -> None:
        self.database = database
        self.claim = claim
        self.writes: dict[tuple[str, Hashable], tuple[Table[Any, Any], Any]] = {}
        self.inserts: set[tuple[str, Hashable]] = set()
        self.committing = False
        self._held: list[tuple[str, Hashable]] = []
        self.began = database.now
        self._server = database.server
        self._touched = database.now
        self._over = False

    def lock(self, table: Table[Id, Row], key: Id, *, shared: bool = False) -> Steps[Row | None]:
        """Lock a row, or the absence of one; gives it as it is then."""
        database = self.database
        at = (table.name, key)
        until = database.now + LOCK_TIMEOUT
        while True:
            yield
            self._alive()
            holders = database.locks.setdefault(at, {})
            rivals = [
                other
                for other, other_shared in holders.items()
                if other is not self and not (shared and other_shared)
            ]
            if not rivals:
                holders[self] = shared and holders.get(self, True)
                self._held.append(at)
                return self.get(table, key)
            for rival in rivals:
                rival.end_if_idle()
            if database.now > until:
                self.rollback()
                raise Abort

    def get(self, table: Table[Id, Row], key: Id) -> Row | None:
        """Return the row as a statement of this transaction sees it now."""
        written = self.writes.get((table.name, key))
        return table.get(key) if written is None else cast("Row | None", written[1])

    def put(self, table: Table[Id, Row], key: Id, row: Row | None) -> None:
        """Insert or update; None deletes."""
        self._alive()
        self.writes[table.name, key] = (table, row)

    def insert(self, table: Table[Id, Row], key: Id, row: Row) -> None:
        """As `put`, of a row that the writer takes for a new one."""
        self.put(table, key, row)
        self.inserts.add((table.name, key))

    def commit(self) -> Steps[None]:
        """Send COMMIT and wait for the answer. Raises Unknown when there is none."""
        database = self.database
        self._alive()
        if database.trigger is not None:
            yield from database.trigger(self)
        self.committing = True
        try:
            yield
        except GeneratorExit:  # killed before it was sent: the server finds an idle session
            self.committing = False
            raise
        x = database.chance()
        if x < database.late_commits:
            database.spawn(self._late())
            raise Unknown
        if x < database.late_commits + database.lost_commits:
            self.rollback()
            raise Unknown
        self._apply()
        database.on_commit(self)

    def rollback(self) -> None:
        """Nothing of it happened."""
        self._over = True
        for at in self._held:
            self.database.locks.get(at, {}).pop(self, None)

    def end_if_idle(self) -> None:
        """The server ends a session that has sat in a transaction for too long."""
        if not self.committing and self.database.now > self._touched + IDLE_IN_TRANSACTION:
            self.rollback()

    def _late(self) -> Steps[None]:
        for _ in range(self.database.between(1, 60)):
            yield
        self._apply()

    def _apply(self) -> None:
        if self._over or self._server != self.database.server:
            raise Abort
        self.database.judge(self)
        for (_, key), (table, row) in self.writes.items():
            if row is None:
                table.rows.pop(key, None)
            else:
                table.rows[key] = row
        self.rollback()

    def _alive(self) -> None:
        if self._over or self._server != self.database.server:
            self.rollback()
            raise Abort
        self._touched = self.database.now
