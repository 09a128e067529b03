"""Chains: what arrives at jobs that run after others, and who may run after whom."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.jobs.chains import Join, Wanted
from schedd.core.runs.model import Claim, LiveRun
from schedd.core.runs.records import ChainRefused


class ChainStore(Protocol):
    """Reads and writes of an owner for joins, and reads of calls for the graph."""

    async def due(self, shards: Sequence[ShardId]) -> list[Join]:
        """Return joins of these shards that are due for evaluation. A hint; a limited number."""
        ...

    async def results(self, runs: Collection[RunId]) -> dict[RunId, bytes]:
        """Return the results of these runs (serialized `Payload`), if they have any."""
        ...

    async def join(self, claim: Claim, wanted: Sequence[Wanted]) -> list[LiveRun]:
        """Make the runs of these, or the rows that say why there is none; gives the runs. One whose
        arrivals or definition have changed, and one that still waits, is left.
        """
        ...

    async def put_off(self, claim: Claim, joins: Sequence[Join], wait: timedelta) -> list[LiveRun]:
        """Look at these so much later; gives nothing."""
        ...

    async def fault(
        self, job_id: JobId | None, namespace: str, name: str, after: Collection[str]
    ) -> ChainRefused | None:
        """Why a job of this name (`job_id` None: a new one) can't run after these; None: it can."""
        ...

    async def waiting(self, job_id: JobId, at: datetime) -> list[Join]:
        """Return the incomplete joins of a job for the cycles of a scheduled time."""
        ...
