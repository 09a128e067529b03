"""Changes of runs, for subscriptions to a job or a namespace. Pure.

    hints ──▶ current rows ──▶ Box of each subscription ──▶ news, each with a cursor

Invariants
- A box holds a run once, in its newest state. A slow reader gets fewer states, never a wrong last
  one, and costs at most MOST_WAITING runs. Beyond that it is `behind`, and reads all rows.
- All changes by transactions below a cursor were sent with or before the event that carries the
  cursor: a subscription that continues from there loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from schedd.core.cluster.cluster_events import ClusterEventRecord
from schedd.core.ids import JobId, RunId
from schedd.core.runs.lifecycle import LIVE
from schedd.core.runs.run_records import RunRecord
from schedkit.records import dataclass

MOST_WAITING: Final = 2_000
"""Runs that wait for one reader. Their records are shared by all boxes."""

_CURSOR: Final = re.compile(r"([0-9a-f]{1,8})-([0-9a-f]{1,16})")


@dataclass(frozen=True, slots=True)
class Scope:
    """The runs of a subscription: all of a namespace, or of one job."""

    namespace: str
    job: JobId | None = None

    def holds(self, record: RunRecord) -> bool:
        """Whether a run is one of them."""
        return record.namespace == self.namespace and self.job in (None, record.run.job_id)


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A moment of the database: all that transactions below `transaction` did was to be seen."""

    timeline: int
    transaction: int

    def __str__(self) -> str:
        return f"{self.timeline:x}-{self.transaction:x}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """From its text. Raises ValueError."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError("isn't the id of an event of this cluster")
        return cls(int(found[1], 16), int(found[2], 16))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Change:
    """The current state of a run, and the transaction that stored it. All subscriptions share one
    object, so that its encodings are made once.
    """

    record: RunRecord
    version: int

    @property
    def run_id(self) -> RunId:
        """Whose it is."""
        return self.record.run.key.run_id

    @property
    def order(self) -> tuple[bool, int]:
        """Of two states of a run the later one has the greater: what has ended stays so. Versions
        alone don't say, for a transaction that began sooner may have waited for the row.
        """
        return self.record.run.state not in LIVE, self.version

    def same(self, other: Change) -> bool:
        """Whether the other tells nothing else. A version alone doesn't say: a record has more in
        it than the run's own row.
        """
        return self.version == other.version and self.record == other.record


@dataclass(frozen=True, slots=True)
class ChangeGap:
    """Changes were lost: of ended runs scheduled before `before`; None: of all runs."""

    why: str
    before: datetime | None = None


class News(NamedTuple):
    """The next message of a subscription, and the cursor to continue from; None: begin again.
    Without `what` it only reports progress, or, as the first one, that the subscription is open.
    """

    cursor: Cursor | None
    what: Change | ChangeGap | ClusterEventRecord | None = None


@dataclass(frozen=True, slots=True)
class MissedChanges:
    """What changed since a cursor, as far as rows were looked through."""

    cursor: Cursor
    """A moment before the look."""
    runs: tuple[RunId, ...] = ()
    older: frozenset[RunId] = frozenset()
    """Runs that haven't ended and are older than what was looked through."""
    before: datetime | None = None
    """Only runs scheduled from here on were looked through, and those that haven't ended; None:
    all there are.
    """
    events: tuple[ClusterEventRecord, ...] = ()
    """Of the cluster, since then."""
    unknown: bool = False
    """The cursor is none of this database's past: nothing is known of what changed since."""


@dataclass(frozen=True, slots=True)
class ChangedRuns:
    """Live runs, by whether their rows may have changed since a cursor, or their jobs' timers."""

    changed: tuple[RunId, ...]
    """All that run are among them."""
    same: frozenset[bytes]
    """The ids of the others, 16 bytes each: there may be very many, and only ids are needed."""


class Box:
    """What waits for one who watches."""

    def __init__(self, scope: Scope, most: int = MOST_WAITING) -> None:
        self.scope = scope
        self.behind = False
        """It was too much: rows have to be looked through from where the reader is."""
        self.gap: ChangeGap | None = None
        self.reached: Cursor | None = None
        """All below it was put in here before."""
        self._most = most
        self._waiting: dict[RunId, Change] = {}
        self._events: dict[int, ClusterEventRecord] = {}

    def put(self, changes: Iterable[Change]) -> bool:
        """Those of its scope; whether there were any."""
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
        """Take events of the cluster, if the scope is a whole namespace; each once."""
        if self.scope.job is None:
            self._events.update((event.id, event) for event in events)

    def take_events(self) -> list[ClusterEventRecord]:
        """Return the events of the cluster that wait, and forget them."""
        taken = [*self._events.values()]
        self._events.clear()
        return taken

    def take(self) -> list[Change]:
        """All that waits, the longest waiting first."""
        taken = [*self._waiting.values()]
        self._waiting.clear()
        return taken
