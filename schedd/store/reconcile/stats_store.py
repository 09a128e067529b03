"""`schedd.ports.SurveyStore` over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from schedd.core.cluster.database_stats import DatabaseLook
from schedd.core.cluster.queue_stats import Stock
from schedd.core.ids import ShardId
from schedd.store.cluster import database_stats
from schedd.store.connection.database import Database
from schedd.store.reconcile import stats
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("survey")
@dataclass(frozen=True, slots=True)
class PostgresSurveyStore:
    """Statistics that are read regularly."""

    database: Database

    async def stock(self, shards: Sequence[ShardId]) -> Stock:
        """Read the statistics of these shards."""
        return await self.database.call(lambda c: stats.stock(c, shards))

    async def look(self) -> DatabaseLook:
        """Read the statistics of the database: old transactions, waiting dead letters."""
        return await self.database.call(database_stats.look)
