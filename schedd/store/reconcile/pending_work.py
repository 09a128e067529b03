"""Read which kinds of work of an owner have rows at all."""

from __future__ import annotations

from sqlalchemy import Connection

from schedkit.records import dataclass

ANY = """
SELECT EXISTS (SELECT FROM chain_edges) OR EXISTS (SELECT FROM chain_arrivals),
    EXISTS (SELECT FROM backfills WHERE open),
    EXISTS (SELECT FROM redrives WHERE open), EXISTS (SELECT FROM notifications),
    EXISTS (SELECT FROM resumptions) OR EXISTS (SELECT FROM failing WHERE failures >= most)
"""
"""Each answer is the first entry of a table or of a partial index, for any number of rows."""


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Whether any shard may have this work."""

    chains: bool
    backfills: bool
    redrives: bool
    notifications: bool
    pause_changes: bool


def read_pending_work(connection: Connection) -> PendingWork:
    """Return which kinds of work exist, of any shard. A hint."""
    return PendingWork(*connection.exec_driver_sql(ANY).one())
