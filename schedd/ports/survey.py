"""What is read now and then for whoever watches the cluster; nothing is decided by it."""

from collections.abc import Sequence
from typing import Protocol

from schedd.core.cluster.database_stats import DatabaseLook
from schedd.core.cluster.queue_stats import Stock
from schedd.core.ids import ShardId


class SurveyStore(Protocol):
    """Short reads, whatever there is."""

    async def stock(self, shards: Sequence[ShardId]) -> Stock:
        """What there is of these shards."""
        ...

    async def look(self) -> DatabaseLook:
        """What the whole database is held up by."""
        ...
