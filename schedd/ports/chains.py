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
    """What an owner reads and writes of joins, and what calls ask of the graph."""

    async def due(self, shards: Sequence[ShardId]) -> list[Join]:
        """What has arrived at jobs of these shards and is to be judged. A hint; some at a time."""
        ...

    async def results(self, runs: Collection[RunId]) -> dict[RunId, bytes]:
        """What these runs gave back (serialised `Payload`), as far as they gave anything."""
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
        """What has arrived at a job of the cycles of an instant, and waits for the others."""
        ...
