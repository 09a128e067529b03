"""The shard row is the fence: an owner's first statement, and how a fencer gets past a sleeper.

Invariants (PROTOCOL 1, 2)
- `lock_shards` is the first statement of an owner's transaction and stands alone; its locks last
  until the transaction ends. What is written afterwards is for the shards it gave and no other.
- It compares owner, epoch and timeline, and the timeline with the server's present one: after a
  promotion or a restore nobody's claim holds until it has taken anew.
- Only backends of fenced tenures are ended, told by their application name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from schedd.core.ids import ShardId, TenureId
from schedd.core.runs.model import Claim
from schedd.store.connection.database import Database
from schedd.store.connection.primary_selection import TIMELINE
from schedd.store.statements import arrays
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

BY_INDEX = """(SELECT set_config('enable_seqscan', 'off', true)
    || set_config('enable_bitmapscan', 'off', true) || set_config('enable_mergejoin', 'off', true)
    || set_config('enable_hashjoin', 'off', true) || set_config('jit', 'off', true))"""
"""A column by which the later statements of this transaction, and of no other, go by keys alone:
for each row of the batch a look into the index; and none is compiled, which takes longer than it.

`live` and the day's partition grow from nothing, and `live` is emptied again: whatever their
statistics say is old, and a join planned on it would read them whole.
"""

LOCK_SHARDS = f"""
SELECT s.id, {BY_INDEX} FROM shards s
JOIN unnest(%(ids)s::int[], %(epochs)s::bigint[]) b(id, epoch) USING (id)
WHERE s.owner = %(tenure)s AND s.epoch = b.epoch AND s.timeline = %(timeline)s
  AND s.timeline = (SELECT {TIMELINE})
ORDER BY s.id FOR NO KEY UPDATE OF s
"""

END_BLOCKERS = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.pid = ANY (pg_blocking_pids(%(pid)s)) AND a.pid <> pg_backend_pid()
  AND (a.application_name = ANY (%(names)s::text[])
       OR EXISTS (SELECT FROM tenures t WHERE t.fenced_at IS NOT NULL
                  AND a.application_name = 'schedd/' || t.id))
"""

PATIENCE = 0.5
"""Seconds that a fencer or a taker waits before it ends the backends in its way."""


def application_name(tenure: TenureId) -> str:
    """What the connections of a tenure are called in `pg_stat_activity`."""
    return f"schedd/{tenure}"


def lock_shards(connection: Connection, claim: Claim) -> frozenset[ShardId]:
    """Lock the rows of the claim's shards that are still its own, and give those."""
    rows = connection.exec_driver_sql(
        LOCK_SHARDS,
        {
            "ids": arrays.numbers(claim.epochs),
            "epochs": arrays.numbers(claim.epochs.values()),
            "tenure": claim.tenure,
            "timeline": claim.timeline,
        },
    )
    return frozenset(ShardId(row[0]) for row in rows)


@contextmanager
def ending_blockers(
    database: Database, connection: Connection, fencing: Sequence[TenureId] = ()
) -> Iterator[None]:
    """While inside, end what blocks this connection past `PATIENCE`, again and again.

    Ends backends of tenures that are fenced already, or are among `fencing`.
    """
    [pid] = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
    names = arrays.texts(application_name(tenure) for tenure in fencing)
    through = threading.Event()

    def end(watch: Connection) -> None:
        watch.exec_driver_sql(END_BLOCKERS, {"pid": pid, "names": names})

    def watch() -> None:
        while not through.wait(PATIENCE):
            try:
                database.transact(end)
            except Unavailable as error:
                log.warning("couldn't look at what blocks us: %s", error)

    watcher = threading.Thread(target=watch, name="end-blockers", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        through.set()
        watcher.join()
