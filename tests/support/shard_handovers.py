"""How long shards were on their way, as the database itself has seen it.

    watch(server, dsn)               in a migrated database, or in the template of many
    …members come and go…
    handovers_since(server, dsn, began).took

A trigger writes down when each shard changed hands. When a test got round to looking would tell
how busy the machine is.
"""

from __future__ import annotations

from dataclasses import dataclass

from support.postgres import ScratchServer

_WITNESS = """
CREATE TABLE hands (shard int, owner uuid, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO hands VALUES (NEW.id, NEW.owner); RETURN NULL; END';
CREATE TRIGGER witness AFTER UPDATE OF owner ON shards FOR EACH ROW EXECUTE FUNCTION witness();
"""
_MOVED = """
SELECT extract(epoch FROM max(at)) - {began},
    max(CASE WHEN was IS NULL THEN extract(epoch FROM at - before) END)
FROM (
    SELECT owner, at, lag(owner) OVER hand was, lag(at) OVER hand AS before
    FROM hands WHERE at > to_timestamp({began})
    WINDOW hand AS (PARTITION BY shard ORDER BY at)
) moved WHERE owner IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class ShardHandovers:
    """Seconds until the last shard was taken, and the longest that one had no owner."""

    took: float
    unowned: float


def watch(server: ScratchServer, dsn: str) -> None:
    """From here on, in this database and those copied from it."""
    server.execute(_WITNESS, dsn)


def handovers_since(server: ScratchServer, dsn: str, began: float) -> ShardHandovers:
    """Return the changes of owners after `began`, in seconds of the epoch; there must be one."""
    [(took, unowned)] = server.execute(_MOVED.format(began=repr(began)), dsn)
    return ShardHandovers(float(str(took)), float(str(unowned or 0)))
