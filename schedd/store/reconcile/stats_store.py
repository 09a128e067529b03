"""`schedd.ports.SurveyStore` over PostgreSQL."""

from __future__ import annotations

from schedd.store.cluster import database_stats
from schedd.store.connection.database import Database, in_transaction
from schedd.store.reconcile import stats
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("survey")
@dataclass(frozen=True, slots=True)
class PostgresSurveyStore:
    """Statistics that are read regularly."""

    database: Database

    stock = in_transaction(stats.stock)
    look = in_transaction(database_stats.look)
