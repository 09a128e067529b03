"""`schedd.ports.SurveyStore` over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from schedd.core.ids import ShardId
from schedd.core.survey import Stock
from schedd.core.vitals import DatabaseLook
from schedd.store import stock, vitals
from schedd.store.database import Database
from schedd.store.operations import operations
from schedkit.records import dataclass


@operations("survey")
@dataclass(frozen=True, slots=True)
class PostgresSurveyStore:
    """What is read now and then."""

    database: Database

    async def stock(self, shards: Sequence[ShardId]) -> Stock:
        """What there is of these shards."""
        return await self.database.call(lambda c: stock.stock(c, shards))

    async def look(self) -> DatabaseLook:
        """What the whole database is held up by."""
        return await self.database.call(vitals.look)
