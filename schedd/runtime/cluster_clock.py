"""Cluster time for this member, and the state of its database: one probe a second.

    store.probe ──→ core/cluster/cluster_time ──→ now()
            └──→ timeline, and when the last good probe was sent

Invariants
- A standby, or a server with a lower timeline than one seen before, was replaced: its time and its
  rows are ignored, and the connections to it are closed.
- A database that was restored or replaced isn't used until the tenure that knew it has ended
  (`lineage`, `follow`).
- The time without a database is counted from the sending of the last good probe.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from schedd.core.cluster import cluster_time
from schedd.core.cluster.cluster_time import ClusterTime
from schedd.core.cluster.data_loss_check import Lineage
from schedd.core.cluster.shard_map import NO_TIMELINE
from schedd.core.ids import Timeline
from schedd.core.runs.records import DatabaseProbe
from schedkit.backoff import Backoff
from schedkit.clock import boottime, utcnow
from schedkit.errors import DatabaseUnavailable, Unavailable
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

PROBE_EVERY: Final = 1.0

WALL_CLOCK_TOLERANCE: Final = 1.0
"""Seconds of difference above which a warning is logged."""


class DatabaseClock:
    """The port `ClusterClock`. `probe`, `reconnect`, `expects`, `lineage` and `follow` belong to
    the store: `reconnect` closes all connections, `expects` receives each higher timeline. `clock`
    returns seconds of CLOCK_BOOTTIME.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[DatabaseProbe]],
        clock: Callable[[], float] = boottime,
        *,
        reconnect: Callable[[], None] = lambda: None,
        expects: Callable[[Timeline], None] = lambda _: None,
        lineage: Lineage | None = None,
        follow: Callable[[], None] = lambda: None,
    ) -> None:
        self.lineage = lineage or Lineage()
        self._follow = follow
        self._probe = probe
        self._reconnect = reconnect
        self._expects = expects
        self._clock = clock
        self._time: ClusterTime | None = None
        self._shown: datetime | None = None
        self._timeline = NO_TIMELINE
        self._expected = NO_TIMELINE
        self._good_at = clock()
        self._wall_clock_wrong = False
        backoff = Backoff(initial=0.2, maximum=PROBE_EVERY)
        self.loop = Loop("cluster clock", self.step, interval=PROBE_EVERY, backoff=backoff)

    def now(self) -> datetime:
        """Return cluster time, in UTC. Raises Unavailable: the database was never reached."""
        if self._time is None:
            raise DatabaseUnavailable(
                "cluster time is unknown: this member hasn't reached PostgreSQL yet; check"
                " postgres.dsn, and that PostgreSQL is running"
            )
        now = self._time.now(self._clock())
        if self._shown is None or now > self._shown:
            self._shown = now
        return self._shown

    @property
    def known(self) -> bool:
        return self._time is not None

    @property
    def timeline(self) -> Timeline:
        """Timeline of the database at the last good probe; 0 before the first."""
        return self._timeline

    def expect(self, timeline: Timeline) -> None:
        """Reject servers of a lower timeline: they were replaced."""
        if timeline > self._expected:
            self._expected = timeline
            self._expects(timeline)

    @property
    def database(self) -> str:
        """Id of the database's cluster; empty before the first good probe."""
        known = self.lineage.known
        return known.database if known is not None else ""

    def follow(self) -> None:
        """Accept the database as it is: nothing of a tenure runs."""
        if self.lineage.broken:
            self._follow()

    def away_for(self) -> float:
        """Return the seconds since the last good probe was sent, or since the start."""
        return self._clock() - self._good_at

    async def step(self) -> None:
        sent = self._clock()
        probe = await self._probe()
        received = self._clock()
        self._check(probe)
        if self._time is None:
            self._time = cluster_time.begin(sent, received, probe.now)
        else:
            self._time = self._time.observe(sent, received, probe.now)
        self._timeline = probe.timeline
        self._good_at = sent
        self._compare_wall_clock(probe.now, received - sent)

    def _check(self, probe: DatabaseProbe) -> None:
        if probe.in_recovery:
            self._reconnect()
            raise Unavailable(
                "the PostgreSQL server accepts no writes, because it is a standby or still in"
                " recovery; schedd tries the other servers of the DSN: make one the primary"
            )
        self.expect(probe.timeline)
        if probe.timeline < self._expected:
            self._reconnect()
            raise Unavailable(
                f"PostgreSQL is on timeline {probe.timeline}, but timeline {self._expected}"
                " was seen before: this server was replaced by another primary; schedd connects"
                " again"
            )
        if self._timeline not in (NO_TIMELINE, probe.timeline):
            log.warning("database timeline changed: from=%d to=%d", self._timeline, probe.timeline)

    def _compare_wall_clock(self, database: datetime, trip: float) -> None:
        off = (utcnow() - database).total_seconds()
        wrong = abs(off) > WALL_CLOCK_TOLERANCE + trip
        if wrong and not self._wall_clock_wrong:
            log.warning(
                "this host's wall clock is %+.1f s off the database's clock: scheduling isn't"
                " affected, but log timestamps are wrong",
                off,
            )
        self._wall_clock_wrong = wrong
