"""The store of workers' incarnations and drains."""

from __future__ import annotations

from schedd.store.cluster import drains, workers
from schedd.store.connection.database import Database, in_autocommit, in_transaction
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("workers")
@dataclass(frozen=True, slots=True)
class WorkerStore:
    """Incarnations and drains of workers."""

    database: Database

    register = in_transaction(workers.register)
    incarnations = in_autocommit(workers.incarnations)
    ended_and_drained = in_autocommit(workers.ended_and_drained)
    of_worker = in_autocommit(workers.of_worker)
    newest_of = in_autocommit(workers.newest_of)
    drain = in_transaction(drains.begin)
    undrain = in_transaction(drains.end)
    drains = in_autocommit(drains.drains)
    lose = in_transaction(workers.lose)
    registered = in_autocommit(workers.registered)
    note_seen = in_transaction(workers.note_seen)
