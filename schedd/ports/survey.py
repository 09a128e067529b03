"""Statistics for people who watch the cluster; no decision depends on them."""

from collections.abc import Sequence
from typing import Protocol

from schedd.core.cluster.database_stats import DatabaseLook
from schedd.core.cluster.queue_stats import Stock
from schedd.core.ids import ShardId


class SurveyStore(Protocol):
    """Short reads, however much data there is."""

    async def stock(self, shards: Sequence[ShardId]) -> Stock:
        """Return the numbers of these shards."""
        ...

    async def look(self) -> DatabaseLook:
        """Return what blocks or slows down the whole database."""
        ...
