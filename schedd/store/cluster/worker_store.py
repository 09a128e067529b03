"""The store of workers' incarnations and drains."""

from __future__ import annotations

from schedd.store.cluster import drains, workers
from schedd.store.connection.database import Database, in_transaction
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("workers")
@dataclass(frozen=True, slots=True)
class WorkerStore:
    """Incarnations and drains of workers."""

    database: Database

    register = in_transaction(workers.register)
    incarnations = in_transaction(workers.incarnations)
    not_living = in_transaction(workers.not_living)
    of_worker = in_transaction(workers.of_worker)
    newest_of = in_transaction(workers.newest_of)
    drain = in_transaction(drains.begin)
    undrain = in_transaction(drains.end)
    drains = in_transaction(drains.drains)
    lose = in_transaction(workers.lose)
    registered = in_transaction(workers.registered)
    note_seen = in_transaction(workers.note_seen)
