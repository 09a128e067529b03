"""Marks: detect that a database lost committed transactions. Pure.

    the leader, every 5 s:   PostgreSQL ← mark, committed ──then──→ etcd ← the same mark

    newest mark in etcd  −  newest mark in the database  =  data loss
        none (a restart, a failover)                     → continue
        at most `TOLERATED` (the tail of a failover)     → continue, and report it
        more, or another server that has less            → recovery: the operator decides

In this order, etcd never has a mark that the database didn't have. The timeline alone isn't enough:
each failover raises it, and a restored base backup keeps it.

Invariants
- Marks of one database grow: by its clock; by a microsecond if the clock doesn't advance; by half
  of the time between two if the clock went far back. So the clock catches up with the marks, and a
  loss in the meantime isn't reported as zero seconds.
- `Lineage` compares a reading with the state known before it was taken, so a lesser mark is a loss.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

from schedd.core.cluster import etcd_values
from schedd.core.cluster.etcd_values import number, parsed, text
from schedd.core.cluster.shard_map import MOST_TIMELINE, NO_TIMELINE
from schedd.core.ids import Timeline
from schedkit.records import dataclass

KEY: Final = "mark"
"""In etcd, without a lease."""

MOST_SYSTEM: Final = (1 << 64) - 1
"""PostgreSQL's own identifiers have 64 bits."""

EVERY: Final = 5.0
"""Seconds between two marks."""

TOLERATED: Final = timedelta(seconds=30)
"""What an asynchronous fail-over may lose without a person being asked."""

DOUBT: Final = timedelta(seconds=30)
"""The least of `doubt`."""


def doubt(ttl: float) -> timedelta:
    """After the newest remembered mark, how long the lost database may have gone on.

    `ttl`: seconds of a member's lease. A leader's successor makes the next mark within F, and
    without etcd no owner acts for longer than that.
    """
    return max(DOUBT, timedelta(seconds=EVERY + 2 * ttl + 10))


@dataclass(frozen=True, slots=True)
class Mark:
    """A database at one moment. `at`: its newest mark, UTC; None: none was ever made in it.

    `database`: the name that it gave itself (`cluster.cluster_id`); `system`: PostgreSQL's
    identifier of the server's files, which a copy of them keeps and a dump doesn't.
    """

    at: datetime | None
    database: str
    system: int
    timeline: Timeline = NO_TIMELINE


@dataclass(frozen=True, slots=True)
class DataLoss:
    """The loss of a database: from its own newest mark to the newest mark in etcd.

    `since` None: it has no mark. `tolerated`: the cluster continues automatically.
    """

    since: datetime | None
    until: datetime
    tolerated: bool = False
    moved: bool = False
    """It is on another server than the remembered mark's."""

    @property
    def seconds(self) -> float | None:
        """How much that is, within the 5 s between two marks; None: unknown."""
        return None if self.since is None else (self.until - self.since).total_seconds()

    def doubtful_until(self, ttl: float) -> datetime:
        """Until when something may have happened that the database knows nothing of. `ttl`: seconds
        of a member's lease.
        """
        return self.until + doubt(ttl)


def gap(remembered: Mark | None, found: Mark) -> DataLoss | None:
    """What `found` lost of what is `remembered`; None: nothing, or nothing to compare with."""
    if remembered is None or remembered.at is None:
        return None
    moved = remembered.system != found.system
    if found.at is None:
        # A new database, which never had a leader, lost nothing. A restored one that is older than
        # its first mark did.
        fresh = remembered.database != found.database
        return None if fresh else DataLoss(None, remembered.at, moved=moved)
    lost = remembered.at - found.at
    if lost <= timedelta(0):
        return None
    tolerated = lost <= TOLERATED and not moved and remembered.database == found.database
    return DataLoss(found.at, remembered.at, tolerated, moved)


def encode(mark: Mark) -> bytes:
    """The mark as the bytes of its key."""
    value = {
        "at": None if mark.at is None else mark.at.astimezone(UTC).isoformat(),
        "database": mark.database,
        "system": str(mark.system),
        "timeline": mark.timeline,
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decode(value: bytes) -> Mark:
    """The mark that the bytes hold; fields it doesn't know are left alone.

    Raises:
        Unreadable: they hold none.
    """
    return etcd_values.read(KEY, value, "mark", _decoded)


def _decoded(value: bytes) -> Mark:
    found = parsed(value)
    at = None if found["at"] is None else datetime.fromisoformat(text(found["at"]))
    if at is not None:
        if at.tzinfo is None:
            raise ValueError("a time without a zone")
        at = at.astimezone(UTC)
        if not 1970 <= at.year < 2200:
            raise ValueError(f"{at} isn't from 1970 up to 2200")
    timeline = Timeline(number(found["timeline"], 0, MOST_TIMELINE))
    system = number(int(text(found["system"])), 0, MOST_SYSTEM)
    return Mark(at, text(found["database"]), system, timeline)


class Lineage:
    """The marks that one process has seen in its database, and whether the database still has them.

    `known` is the newest one. Once `broken` says why the database isn't the same any more, the
    process doesn't use it until `follow`: when no task of the tenure is running.
    """

    def __init__(self) -> None:
        self.known: Mark | None = None
        self.broken = ""
        self.expected = ""
        """Id of the cluster that the etcd prefix belongs to; empty: any database is used."""
        self.foreign = ""
        """Why the database that was seen last is another cluster's; empty: it isn't."""

    def seen(self, found: Mark, known: Mark | None) -> None:
        """Take in a look at the database; `known`: what was known before it was taken."""
        if self.expected in ("", found.database):
            self.foreign = ""
        elif not self.broken:
            self.foreign = self.broken = (
                f"the database is of cluster {found.database}, and the etcd prefix belongs to"
                f" cluster {self.expected}; if this database replaces the other one for good:"
                " `schedd claim-prefix`"
            )
        if known is None or self.broken:
            self.known = self.known or found
            return
        broken = _broken(known, found)
        if broken:
            self.broken = broken  # never taken back by a look that another thread took before
        elif self.known is None or _newer(found, self.known):
            self.known = found

    def follow(self) -> None:
        """Take the database as it is from here on."""
        self.known = None
        self.broken = ""


def _broken(known: Mark, found: Mark) -> str:
    """Why `found` isn't `known` going on; empty: it is."""
    if found.database != known.database:
        return f"the database is another one: {found.database}, not {known.database}"
    if found.system != known.system:
        return f"the database is on another server: {found.system}, not {known.system}"
    if known.at is not None and (found.at is None or found.at < known.at):
        return f"the database went back: its newest mark is {found.at}, and {known.at} was seen"
    return ""


def _newer(found: Mark, known: Mark) -> bool:
    if found.timeline != known.timeline:
        return found.timeline > known.timeline
    return found.at is not None and (known.at is None or found.at > known.at)
