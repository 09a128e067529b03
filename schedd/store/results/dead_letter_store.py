"""The store of dead letter and redrive calls: each is one transaction, with its audit entry."""

from __future__ import annotations

from schedd.store.connection.database import Database, in_transaction
from schedd.store.results import dead_letters, redrive_feed, redrives
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("dead_letters")
@dataclass(frozen=True, slots=True)
class DeadLetterStore:
    """Dead letters and redrives as users see them. Owners create the runs of redrives."""

    database: Database

    listed = in_transaction(dead_letters.listed)
    get = in_transaction(dead_letters.get)
    groups = in_transaction(dead_letters.groups)
    discard = in_transaction(dead_letters.discard)
    once_more = in_transaction(redrive_feed.once_more)
    planned = in_transaction(redrives.planned)
    create = in_transaction(redrives.create)
    redrive = in_transaction(redrives.get)
    switch = in_transaction(redrives.switch)
    redrives = in_transaction(redrives.newest)
