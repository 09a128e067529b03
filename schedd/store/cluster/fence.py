"""The shard row is the fence: an owner's first statement; how fencing ends blocking sessions.

Invariants (docs/protocol-rules.md, P1.1 and P2.4)
- `lock_shards` is the first statement of an owner's transaction, alone. Its locks last until the
  transaction ends. Later statements write only for the shards that it returned. The transaction of
  a submit uses `lock_free_shards`, because a submit can be stored without a lock.
- It compares owner, epoch and timeline, and the timeline with the server's present one. After a
  promotion or a restore no claim is valid until its shards are taken again.
- Only sessions of fenced tenures are ended. They are identified by their application name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection

from schedd.core.ids import ShardId, TenureId
from schedd.core.runs.model import Claim
from schedd.store.connection.database import Database
from schedd.store.connection.prepared import PreparedStatement
from schedd.store.connection.primary_selection import TIMELINE
from schedd.store.statements import arrays
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

BY_INDEX = """(SELECT set_config('enable_seqscan', 'off', true)
    || set_config('enable_bitmapscan', 'off', true) || set_config('enable_mergejoin', 'off', true)
    || set_config('enable_hashjoin', 'off', true) || set_config('jit', 'off', true)
    || set_config('max_parallel_workers_per_gather', '0', true))"""
"""A column that sets planner settings for the rest of this transaction: only index lookups by key,
one for each row of the batch, without parallel workers and JIT compilation, whose start takes
longer than the statement.

`live` and the day's partition grow from empty, and `live` shrinks again. So their statistics are
always outdated, and a join planned by them would read whole tables.
"""

_OWNED = f"""
SELECT array_agg(id), {BY_INDEX} FROM (
    SELECT s.id FROM shards s
    WHERE s.id = ANY (%(ids)s::int[]) AND s.owner = %(tenure)s::uuid
      AND s.epoch = (%(epochs)s::bigint[])[array_position(%(ids)s::int[], s.id)]
      AND s.timeline = %(timeline)s::int AND s.timeline = (SELECT {TIMELINE})
    ORDER BY s.id {{lock}}
) locked
"""
LOCK_SHARDS: Final = PreparedStatement(_OWNED.format(lock="FOR NO KEY UPDATE OF s"))
LOCK_FREE_SHARDS: Final = PreparedStatement(
    _OWNED.format(lock="FOR NO KEY UPDATE OF s SKIP LOCKED")
)
READ_OWNED_SHARDS: Final = PreparedStatement(_OWNED.format(lock=""))

END_BLOCKERS = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.pid = ANY (pg_blocking_pids(%(pid)s)) AND a.pid <> pg_backend_pid()
  AND (a.application_name = ANY (%(names)s::text[])
       OR EXISTS (SELECT FROM tenures t WHERE t.fenced_at IS NOT NULL
                  AND a.application_name = 'schedd/' || t.id))
"""

BLOCKED_AT_MOST = 0.5
"""Seconds that fencing or a takeover waits for a lock before it ends the blocking sessions."""


def application_name(tenure: TenureId) -> str:
    """Return the name of a tenure's connections in `pg_stat_activity`."""
    return f"schedd/{tenure}"


def lock_shards(connection: Connection, claim: Claim) -> frozenset[ShardId]:
    """Lock the rows of the shards that the claim still owns. Returns those shards."""
    return _owned(connection, claim, LOCK_SHARDS)


def lock_free_shards(
    connection: Connection, claim: Claim
) -> tuple[frozenset[ShardId], frozenset[ShardId]]:
    """Lock the same rows, except those that another session has locked. Returns the locked shards,
    and those that the claim no longer owns.
    """
    locked = _owned(connection, claim, LOCK_FREE_SHARDS)
    if len(locked) == len(claim.epochs):
        return locked, frozenset()
    return locked, frozenset(claim.epochs) - _owned(connection, claim, READ_OWNED_SHARDS) - locked


def _owned(
    connection: Connection, claim: Claim, statement: PreparedStatement
) -> frozenset[ShardId]:
    values = {
        "ids": arrays.numbers(claim.epochs),
        "epochs": arrays.numbers(claim.epochs.values()),
        "tenure": claim.tenure,
        "timeline": claim.timeline,
    }
    [(owned, _)] = statement.execute(connection, values, len(claim.epochs))
    return frozenset(owned or ())


@contextmanager
def ending_blockers(
    database: Database, connection: Connection, fencing: Sequence[TenureId] = ()
) -> Iterator[None]:
    """While inside, end the sessions that block this connection, every `BLOCKED_AT_MOST`. Ends
    only sessions of tenures that are fenced, or are among `fencing`.
    """
    [pid] = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
    names = arrays.texts(application_name(tenure) for tenure in fencing)
    through = threading.Event()

    def end(watch: Connection) -> None:
        watch.exec_driver_sql(END_BLOCKERS, {"pid": pid, "names": names})

    def watch() -> None:
        while not through.wait(BLOCKED_AT_MOST):
            try:
                database.transact(end)
            except Unavailable as error:
                log.warning("blocking sessions not ended: %s; trying again", error)

    watcher = threading.Thread(target=watch, name="end-blockers", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        through.set()
        watcher.join()
