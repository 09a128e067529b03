"""The store of statistics: short reads, however much data there is."""

from __future__ import annotations

from schedd.store.cluster import database_stats
from schedd.store.connection.database import Database, in_transaction
from schedd.store.reconcile import stats
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("survey")
@dataclass(frozen=True, slots=True)
class SurveyStore:
    """Statistics that are read regularly. No decision depends on them."""

    database: Database

    stock = in_transaction(stats.stock)
    look = in_transaction(database_stats.read_stats)
