"""Changes of runs, for subscriptions to a job or a namespace. Pure.

    hints ──▶ current rows ──▶ Box of each subscription ──▶ news, each with a cursor

Invariants
- A box holds a run once, in its newest state. A slow reader misses states between, but never the
  last one. A box holds at most MOST_WAITING runs; beyond that it is `behind`, and reads rows.
- An event with a cursor follows all changes by transactions below the cursor. A subscription that
  continues from the cursor loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from schedd.core.cluster.cluster_events import ClusterEventRecord
from schedd.core.ids import JobId, RunId
from schedd.core.runs.lifecycle import LIVE
from schedd.core.runs.model import LiveKey
from schedd.core.runs.run_records import RunRecord
from schedkit.records import dataclass

MOST_WAITING: Final = 2_000
"""The most runs that wait for one reader. All boxes share the records."""

_CURSOR: Final = re.compile(r"([0-9a-f]{1,8})-([0-9a-f]{1,16})")


@dataclass(frozen=True, slots=True)
class Scope:
    """The runs of a subscription: all of a namespace, or of one job."""

    namespace: str
    job: JobId | None = None

    def holds(self, record: RunRecord) -> bool:
        return record.namespace == self.namespace and self.job in (None, record.run.job_id)


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A position in the database: all transactions below `transaction` were visible."""

    timeline: int
    transaction: int

    def __str__(self) -> str:
        return f"{self.timeline:x}-{self.transaction:x}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Parse a cursor. Raises ValueError."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text[:80]!r} isn't the id of an event of this cluster: send the id of a"
                " received event unchanged"
            )
        return cls(int(found[1], 16), int(found[2], 16))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Change:
    """The current state of a run, and the transaction that stored it (`version`). All subscriptions
    share the object, so it is encoded once.
    """

    record: RunRecord
    version: int

    @property
    def run_id(self) -> RunId:
        return self.record.run.key.run_id

    @property
    def order(self) -> tuple[bool, int]:
        """The sort key of a run's states: an ended run sorts last. The version alone isn't enough:
        an older transaction may have waited for the row.
        """
        return self.record.run.state not in LIVE, self.version

    def same(self, other: Change) -> bool:
        """Return whether both have the same content: a record has more than the run's own row."""
        return self.version == other.version and self.record == other.record


@dataclass(frozen=True, slots=True)
class ChangeGap:
    """A gap: changes of ended runs scheduled before `before` were lost; None: of all runs."""

    why: str
    before: datetime | None = None


class ChangeMessage(NamedTuple):
    """The next message of a subscription, and the cursor to continue from; None: the beginning.
    Without `what` it reports progress. The first message confirms that the subscription is open.
    """

    cursor: Cursor | None
    what: Change | ChangeGap | ClusterEventRecord | None = None


@dataclass(frozen=True, slots=True)
class MissedChanges:
    """The changes since a cursor, found by a scan of rows."""

    cursor: Cursor
    """A position before the scan."""
    runs: tuple[RunId, ...] = ()
    older: frozenset[RunId] = frozenset()
    """Live runs that are older than the scanned range."""
    before: datetime | None = None
    """The scan covered live runs, and ended runs scheduled from this time on. None: all runs."""
    events: tuple[ClusterEventRecord, ...] = ()
    """Events of the cluster since the cursor."""
    unknown: bool = False
    """Whether the cursor isn't from this database's past. Then the changes since are unknown."""


@dataclass(frozen=True, slots=True)
class WrittenRuns:
    """Live runs that were written since a cursor."""

    cursor: Cursor
    """A position before they were read."""
    keys: list[LiveKey]


class PendingChanges:
    """The changes that wait for one subscription."""

    def __init__(self, scope: Scope, most: int = MOST_WAITING) -> None:
        self.scope = scope
        self.behind = False
        """Whether the box overflowed. The reader must scan rows from its cursor."""
        self.gap: ChangeGap | None = None
        self.reached: Cursor | None = None
        """All changes below this cursor were put into the box."""
        self._most = most
        self._waiting: dict[RunId, Change] = {}
        self._events: dict[int, ClusterEventRecord] = {}

    def put(self, changes: Iterable[Change]) -> bool:
        """Add the changes of the box's scope, and return whether there were any."""
        news = False
        for change in changes:
            if not self.scope.holds(change.record):
                continue
            news = True
            if self.behind:
                break
            before = self._waiting.get(change.run_id)
            if before is None or before.order <= change.order:
                self._waiting[change.run_id] = change
            if len(self._waiting) > self._most:
                self._waiting.clear()
                self.behind = True
        return news

    def put_events(self, events: Iterable[ClusterEventRecord]) -> None:
        """Add events of the cluster, each once, if the scope is a whole namespace."""
        if self.scope.job is None:
            self._events.update((event.id, event) for event in events)

    def take_events(self) -> list[ClusterEventRecord]:
        taken = [*self._events.values()]
        self._events.clear()
        return taken

    def take_changes(self) -> list[Change]:
        """Remove and return all changes, the longest waiting first."""
        taken = [*self._waiting.values()]
        self._waiting.clear()
        return taken
