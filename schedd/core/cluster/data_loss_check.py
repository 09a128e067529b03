"""Marks: detect that a database lost committed transactions (P2.9). Pure.

    the leader, every 5 s:   PostgreSQL ← mark, committed ──then──→ etcd ← the same mark

So etcd never has a mark that the database didn't have, and their difference is the loss. At most
`TOLERATED` (the tail of a failover) is reported only; more, or another server that has less, starts
recovery. The timeline isn't enough: each failover raises it, and a restored base backup keeps it.

Invariants
- Marks of one database grow by its clock. If the clock doesn't advance, they grow by a microsecond.
  If the clock went far back, they grow by half of the time between two marks. So the clock catches
  up with the marks, and a loss in the meantime isn't reported as zero seconds.
- `Lineage` compares a reading with the state known before it was taken, so a lesser mark is a loss.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from schedd.core.cluster import etcd_values
from schedd.core.cluster.etcd_values import number, parsed, text
from schedd.core.cluster.shard_map import MOST_TIMELINE, NO_TIMELINE
from schedd.core.ids import Timeline
from schedkit.records import dataclass

KEY: Final = "mark"
"""The key in etcd, without a lease."""

MOST_SYSTEM: Final = (1 << 64) - 1

EVERY: Final = 5.0
"""Seconds between two marks."""

TOLERATED: Final = timedelta(seconds=30)
"""Maximum loss of an asynchronous failover that is accepted without an operator."""

DOUBT: Final = timedelta(seconds=30)


def doubt(ttl: float) -> timedelta:
    """Return how long after the newest mark in etcd the lost database may have been in use.

    `ttl`: seconds of a member's lease. The next leader makes its first mark within F of a failure.
    Without etcd, no owner acts for longer than F.
    """
    return max(DOUBT, timedelta(seconds=EVERY + 2 * ttl + 10))


@dataclass(frozen=True, slots=True)
class Mark:
    """A database at one moment. `at`: its newest mark, UTC; None: it never had a mark. `system`:
    PostgreSQL's identifier of the server's files. A copy of the files keeps it, a dump doesn't.
    """

    at: datetime | None
    database: str
    system: int
    timeline: Timeline = NO_TIMELINE

    def is_newer(self, than: "Mark") -> bool:
        if self.timeline != than.timeline:
            return self.timeline > than.timeline
        return self.at is not None and (than.at is None or self.at > than.at)


@dataclass(frozen=True, slots=True)
class DataLoss:
    """The loss of a database: from its own newest mark (None: it has none) to the newest one in
    etcd. `tolerated`: the cluster continues automatically.
    """

    since: datetime | None
    until: datetime
    tolerated: bool = False
    moved: bool = False
    """Whether the database is on another server than the mark in etcd."""

    @property
    def seconds(self) -> float | None:
        """The length of the loss in seconds, exact to the 5 s between two marks; None: unknown."""
        return None if self.since is None else (self.until - self.since).total_seconds()

    def doubtful_until(self, ttl: float) -> datetime:
        """Return the end of the time in which the lost database may have been in use (`doubt`)."""
        return self.until + doubt(ttl)


def gap(remembered: Mark | None, found: Mark) -> DataLoss | None:
    """Return the loss of `found` against `remembered`; None: no loss, or nothing to compare."""
    if remembered is None or remembered.at is None:
        return None
    moved = remembered.system != found.system
    if found.at is None:
        # A new database that never had a leader lost nothing. A restored database that is older
        # than its first mark did.
        fresh = remembered.database != found.database
        return None if fresh else DataLoss(None, remembered.at, moved=moved)
    lost = remembered.at - found.at
    if lost <= timedelta(0):
        return None
    tolerated = lost <= TOLERATED and not moved and remembered.database == found.database
    return DataLoss(found.at, remembered.at, tolerated, moved)


def encode(mark: Mark) -> bytes:
    at = None if mark.at is None else mark.at.astimezone(UTC).isoformat()
    system = str(mark.system)
    rest = {"database": mark.database, "timeline": mark.timeline}
    return etcd_values.encoded({"at": at, "system": system, **rest})


def decode(value: bytes) -> Mark:
    """Return the mark of a value. Raises InvalidValue."""
    return etcd_values.read(KEY, value, "mark", _decoded)


def _decoded(value: bytes) -> Mark:
    found = parsed(value)
    at = None if found["at"] is None else datetime.fromisoformat(text(found["at"]))
    if at is not None:
        named = "the time of the mark (a timestamp of the leader that detects data loss)"
        if at.tzinfo is None:
            raise ValueError(f"{named} has no time zone")
        at = at.astimezone(UTC)
        if not 1970 <= at.year < 2200:
            raise ValueError(f"{named} is {at}, but must be from 1970 up to 2200")
    timeline = Timeline(number(found["timeline"], 0, MOST_TIMELINE))
    system = number(int(text(found["system"])), 0, MOST_SYSTEM)
    return Mark(at, text(found["database"]), system, timeline)


class Lineage:
    """The marks that one process has seen in its database, and whether the database still has them.

    `known`: the newest mark. `broken`: why the database isn't the same any more. The process then
    doesn't use the database until `follow`, which is called when no task of the tenure is running.
    """

    def __init__(self) -> None:
        self.known: Mark | None = None
        self.broken = ""
        self.expected = ""
        """Id of the cluster that the etcd prefix belongs to; empty: any database is used."""
        self.foreign = ""
        """Why the database that was seen last belongs to another cluster; empty: it doesn't."""

    def record_mark(self, found: Mark, known: Mark | None) -> None:
        """Record a reading of the database. `known`: the newest mark before the reading."""
        if self.expected in ("", found.database):
            self.foreign = ""
        elif not self.broken:
            self.foreign = self.broken = (
                f"the database belongs to cluster {found.database}, but the etcd prefix belongs to"
                f" cluster {self.expected}: correct postgres.dsn or etcd.prefix; if this database"
                " replaces the other one for good, run `schedd claim-prefix`"
            )
        if known is None or self.broken:
            self.known = self.known or found
            return
        broken = _broken(known, found)
        if broken:
            self.broken = broken  # never reset by an earlier reading from another thread
        elif self.known is None or found.is_newer(self.known):
            self.known = found

    def follow(self) -> None:
        """Accept the database as it is from now on."""
        self.known = None
        self.broken = ""


def _broken(known: Mark, found: Mark) -> str:
    """Return why `found` doesn't continue `known`; empty: it does."""
    if found.database != known.database:
        return f"the database was replaced: it is {found.database} now, not {known.database}"
    if found.system != known.system:
        return f"the database is on another server now: {found.system}, not {known.system}"
    if known.at is not None and (found.at is None or found.at < known.at):
        return (
            f"the database went back in time: its newest mark is of {found.at}, but a mark of"
            f" {known.at} was seen before"
        )
    return ""
