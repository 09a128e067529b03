"""Reads and writes of a shard's owner, one transaction a method, fenced by its shards' rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.ids import (
    IncarnationId,
    JobId,
    RunId,
    ShardId,
    Token,
)
from schedd.core.runs.broadcast import ClosedBroadcasts, Closing
from schedd.core.runs.change_stream import ChangedRuns, Cursor
from schedd.core.runs.deadlines import Expiry
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import (
    Claim,
    Crowd,
    Draft,
    Firing,
    Incarnation,
    LiveRun,
    Loss,
    RunKey,
    Timer,
)
from schedd.core.runs.pools import PoolKey, PoolUsage
from schedd.core.runs.records import (
    Assignments,
    FailedTooOften,
    FireOutcome,
    JobRecord,
    Parted,
    Resumption,
    StoredDefinition,
    Unstarted,
)
from schedd.core.runs.redrive import OpenRedrive, RedriveLine
from schedd.core.timers.backfill_records import OpenBackfill


class OwnerStore(Protocol):
    """Reads and writes of a shard's owner."""

    async def due_timers(
        self, shards: Sequence[ShardId], until: datetime, limit: int, *, latest: bool = False
    ) -> list[Timer]:
        """Timers of these shards due by `until`, from minus infinity: the soonest, soonest first,
        or the latest, latest first.
        """
        ...

    async def timers(self, jobs: Sequence[JobId]) -> list[Timer]: ...
    async def live_runs(
        self,
        shards: Sequence[ShardId],
        states: Sequence[State],
        until: datetime | None = None,
        of: Collection[RunId] | None = None,
    ) -> list[LiveRun]:
        """Runs that haven't ended. PENDING and RETRYING of paused jobs are left out, and those
        that become ready later than `until`. `of`: no others than these.
        """
        ...

    async def moment(self) -> Cursor:
        """The present one, from which on changes can be asked for."""
        ...

    async def changed_runs(
        self, shards: Sequence[ShardId], states: Sequence[State], until: datetime, since: Cursor
    ) -> ChangedRuns | None:
        """Return those of `live_runs` that may have changed since. None: unknown, because the
        database was restored or replaced.
        """
        ...

    async def definitions(self, jobs: Sequence[JobId]) -> dict[JobId, "StoredDefinition"]: ...
    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        """`switched`: of the pauses (`core/timers/cluster_pauses.py`) that the firings were
        reckoned from.
        """
        ...

    async def assign(
        self,
        claim: Claim,
        drafts: Sequence[Draft],
        next_token: Callable[[ShardId], Token],
    ) -> Assignments:
        """`next_token` is called after the shard rows are locked, once a draft that is still its
        own shard's (docs/protocol-rules.md, P1.2).
        """
        ...

    async def there(self, ids: Collection[IncarnationId]) -> list[Incarnation]:
        """Return those that are neither lost nor drained."""
        ...

    async def done(self, keys: Sequence[RunKey]) -> dict[RunId, frozenset[str]]:
        """Return, for redriven broadcasts, the workers on which the originals succeeded."""
        ...

    async def over(self, keys: Sequence[RunKey]) -> list[RunKey]:
        """Return broadcasts without children in progress, or with children to cancel. A hint."""
        ...

    async def close(self, claim: Claim, closings: Sequence[Closing]) -> ClosedBroadcasts:
        """End broadcasts whose last child has ended. Cancel the children of cancelled ones; the
        caller sends the cancels to their workers.
        """
        ...

    async def pools(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        """How full these are; those that aren't there are left out. A hint."""
        ...

    async def part(self, claim: Claim, crowds: Sequence[Crowd]) -> Parted:
        """End the runs that the overlap policy replaces or skips. Running ones are marked, and the
        caller sends the cancels to their workers. A limited number: call again.
        """
        ...

    async def backfills(self, shards: Sequence[ShardId]) -> list[OpenBackfill]:
        """Return the backfills that may create more runs now, oldest first."""
        ...

    async def feed(self, claim: Claim, wanted: Sequence[OpenBackfill]) -> list[LiveRun]:
        """Make the next runs of these backfills, as many as there is room for."""
        ...

    async def redrives(self, shards: Sequence[ShardId]) -> list[OpenRedrive]:
        """Redrives that these shards' owner makes the runs of, oldest first, with the jobs of those
        that come next.
        """
        ...

    async def redrive(
        self,
        claim: Claim,
        wanted: Sequence[OpenRedrive],
        lines: Mapping[JobId, RedriveLine],
    ) -> list[LiveRun]:
        """Make the next runs of these redrives, as many as their rates allow; they are of any
        shard. `lines`: of each job, by the definition known of it; letters of other jobs wait.
        """
        ...

    async def give_back(self, claim: Claim, unstarted: Sequence[Unstarted]) -> list[LiveRun]: ...
    async def rescue(self, claim: Claim, losses: Sequence[Loss]) -> list[RunKey]:
        """Mark the incarnations lost for good and move their runs on, in one transaction."""
        ...

    async def unsettled(
        self, shards: Sequence[ShardId], now: datetime, limit: int
    ) -> tuple[list[JobRecord], list[tuple[JobRecord, int]]]:
        """Jobs whose pause has ended by now; those that failed so often in a row as to be paused,
        with how often.
        """
        ...

    async def resume(self, claim: Claim, ended: Sequence[Resumption]) -> list[JobId]:
        """Resume these; gives those that were."""
        ...

    async def pause_failing(self, claim: Claim, failed: Sequence[FailedTooOften]) -> list[JobId]:
        """Pause these, and count their failures no more; gives those that were paused."""
        ...

    async def end_waiting(self, claim: Claim, ends: Sequence[Expiry]) -> list[RunKey]:
        """End PENDING or RETRYING runs whose time is over, if they still wait."""
        ...
