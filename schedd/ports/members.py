"""Ports for calls between members, implemented by servers and `app`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from schedd.core.checkup.facts import Facts
from schedd.core.ids import Hint, IncarnationId, JobId, ShardId
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import StoredDefinition


class WakeUps(Protocol):
    """Hints to the owners; never awaited, never needed for correctness."""

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        """Wake the owners of these jobs' timers, which were written."""
        ...

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        """Wake the owners of these shards: runs were inserted or made ready."""
        ...

    def runs_created(
        self, runs: Sequence[LiveRun], definitions: Sequence[StoredDefinition] = ()
    ) -> None:
        """Pass inserted runs, and definitions that were stored with them, to an owner at this
        member. The owner then needs no scan to find the runs, and no read of these definitions.
        """
        ...

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        """Send hints of these runs to watchers, here and at other members."""
        ...

    def cluster_changed(self) -> None:
        """Let all members read the cluster pause and the shard map, which may have changed."""
        ...


class Refusals(Protocol):
    """Workers that refused runs, as known to the member that dispatched the runs."""

    async def refusals_of_job(
        self, shard: ShardId, job: JobId, generation: int
    ) -> Mapping[IncarnationId, str]:
        """Return the workers that can't run this generation of the job, each with the reason."""
        ...


class CheckupFacts(Protocol):
    """Facts about the cluster, for diagnostics."""

    async def facts(self) -> Facts:
        """Return the current facts; never raises. An unreadable fact has the reason instead."""
        ...
