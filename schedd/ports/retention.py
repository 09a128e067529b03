"""Reads and deletes of a shard's owner for data past its retention."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.runs.model import Claim, RunKey
from schedd.core.runs.retention import EndedRun, OldRuns, Unwanted


class RetentionStore(Protocol):
    """Pages are hints; what is deleted is judged again, under the claim."""

    async def old_runs(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        """The next page of rows past `after` that were scheduled before; of these shards those
        that have ended.
        """
        ...

    async def old_letters(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        """As `old_runs`, of dead letters that wait."""
        ...

    async def old_logs(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        """As `old_runs`, of runs that have output."""
        ...

    async def with_retention(self, after: JobId, limit: int) -> list[JobId]:
        """Jobs with a retention of their own, by id."""
        ...

    async def old_runs_of(
        self, shards: Sequence[ShardId], past: Mapping[JobId, RunKey], now: datetime, limit: int
    ) -> list[EndedRun]:
        """Of each of these jobs the next of the runs past that key that are past its retention; no
        dead letters that wait. None: there are no more.
        """
        ...

    async def delete_runs(self, claim: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
        """Delete these with all that belongs to them; gives those that are gone."""
        ...

    async def delete_logs(self, claim: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
        """Delete what these wrote; gives those that had."""
        ...

    async def unwanted(self, shards: Sequence[ShardId], limit: int) -> list[Unwanted]:
        """Return objects whose rows were deleted, the longest deleted first."""
        ...

    async def put_aside(self, claim: Claim, stuck: Sequence[Unwanted]) -> list[str]:
        """Move these behind all others: they couldn't be removed."""
        ...

    async def settle(self, claim: Claim, removed: Sequence[Unwanted]) -> list[str]:
        """Record that these were removed from the result store."""
        ...
