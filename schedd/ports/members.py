"""Calls between members. Servers and `app` implement them: stages and calls can't import those."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from schedd.core.checkup.facts import Facts
from schedd.core.ids import Hint, IncarnationId, JobId, ShardId
from schedd.core.runs.model import LiveRun


class Nudges(Protocol):
    """Hints to the owners; never awaited, never needed for correctness."""

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        """Timers of these jobs were written: their owners read them now."""
        ...

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        """Runs were inserted or made ready in these shards."""
        ...

    def runs_made(self, runs: Sequence[LiveRun]) -> None:
        """These runs were inserted: an owner at this member needs no scan to find them."""
        ...

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        """Send hints of these runs to watchers, here and at other members."""
        ...

    def cluster_changed(self) -> None:
        """The cluster was paused or resumed, or its map may have changed: all members read it."""
        ...


class Refusals(Protocol):
    """Workers that refused runs, as known to the member that dispatches them."""

    async def of(self, shard: ShardId, job: JobId, generation: int) -> Mapping[IncarnationId, str]:
        """Return the workers that can't run this generation of the job, each with the reason."""
        ...


class CheckupFacts(Protocol):
    """Facts about the cluster, for diagnostics."""

    async def facts(self) -> Facts:
        """Return the current facts. Raises nothing: facts that can't be read have the reason."""
        ...
