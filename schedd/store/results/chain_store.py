"""The chains' store for owners: each method is one transaction, and each write is fenced."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import Connection

from schedd.core.ids import JobId
from schedd.core.jobs.chains import ChainJoin, Wanted
from schedd.core.runs.model import Claim, LiveRun
from schedd.core.runs.records import ChainRefused
from schedd.store.cluster.fenced_transaction import fenced_rows, shards_of
from schedd.store.connection.database import Database, in_transaction
from schedd.store.jobs import chains
from schedd.store.results import chain_events, chain_joins
from schedd.store.results.accept import results_of
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.records import dataclass

BEFORE_JOIN = failpoints.blocking("chain.before_commit")


@operations("chains")
@dataclass(frozen=True, slots=True)
class ChainStore:
    """Reads and writes of an owner for joins, and reads of calls for the graph."""

    database: Database

    due = in_transaction(chain_events.due)
    results = in_transaction(results_of)

    async def join(self, claim: Claim, wanted: Sequence[Wanted]) -> list[LiveRun]:
        """Judge these joins. Returns the created runs."""

        def body(connection: Connection, mine: Sequence[Wanted]) -> list[LiveRun]:
            made = chain_joins.join(connection, claim.tenure, mine, shards_of(mine))
            BEFORE_JOIN()
            return made

        return await fenced_rows(self.database, claim, wanted, body)

    async def put_off(
        self, claim: Claim, joins: Sequence[ChainJoin], wait: timedelta
    ) -> list[LiveRun]:
        """Judge these joins after a delay."""

        def body(connection: Connection, mine: Sequence[ChainJoin]) -> list[LiveRun]:
            chain_events.later(connection, [(one, wait) for one in mine])
            return []

        return await fenced_rows(self.database, claim, joins, body)

    async def fault(
        self, job_id: JobId | None, namespace: str, name: str, after: Collection[str]
    ) -> ChainRefused | None:
        """Return why a job can't run after these; None: it can at present."""

        def look(connection: Connection) -> ChainRefused | None:
            found = chains.fault(connection, job_id, namespace, name, after)
            return found if isinstance(found, ChainRefused) else None

        return await self.database.call(look)

    waiting = in_transaction(chain_events.of_job)
