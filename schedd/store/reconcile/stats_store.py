"""The store of statistics: short reads, however much data there is."""

from __future__ import annotations

from schedd.store.cluster import database_stats
from schedd.store.connection.database import Database, in_transaction
from schedd.store.reconcile import stats
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("statistics")
@dataclass(frozen=True, slots=True)
class StatisticsStore:
    """Statistics that are read regularly. No decision depends on them."""

    database: Database

    read_queue_stats = in_transaction(stats.read_queue_stats)
    read_database_stats = in_transaction(database_stats.read_stats)
