"""Apply the limits of pools at dispatch, decided on rows (core/runs/pools.py).

    drafts of a pool ─→ END_TURNS of ended runs ─→ LOOK how full it is ─→ dispatch the first few
                                                     dispatched runs ─→ TAKE a turn each

Invariants (docs/protocol-rules.md, P3.21)
- `admitted` and `add_places` are called under the lock of the pool's shard, in the transaction that
  dispatches. Nothing else writes turns, so a free place is still free at its COMMIT.
- A turn is open until its run has another state or another token. So code that stores a result, a
  loss or a rejection doesn't handle pools.
- A turn is deleted when no limit and no rate can count it any more, not even a changed one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from schedd.core.runs.model import Draft, LiveRun
from schedd.core.runs.pools import MOST_PER, PoolKey, PoolRooms, PoolUsage
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.statements import arrays

LATER: Final = "interval '2 s'"
"""How long after `start_by` a start may be reported."""
LONGEST: Final = f"interval '{MOST_PER.total_seconds():.0f} s'"
MARGIN: Final = "interval '20 ms'"
"""How far a worker's clock may lag. A start counts that much longer."""

OPEN = """
    SELECT run_id, token, pool, runs, CASE
        WHEN started_at IS NOT NULL THEN GREATEST(assigned_at, started_at)
        WHEN runs THEN LEAST(start_by, statement_timestamp())
        WHEN finished_at IS NOT NULL THEN start_by END AS counted_at
    FROM (
        SELECT t.run_id, t.token, t.pool, t.assigned_at, t.start_by,
            COALESCE(r.state = 'RUNNING' AND r.token = t.token, false) AS runs,
            CASE WHEN r.token = t.token THEN r.started_at ELSE a.started_at END AS started_at,
            CASE WHEN r.token = t.token THEN r.finished_at ELSE a.finished_at END AS finished_at
        FROM pool_turns t
        LEFT JOIN runs r ON r.scheduled_at = t.scheduled_at AND r.run_id = t.run_id
        LEFT JOIN attempts a ON a.run_id = t.run_id AND a.token = t.token
        WHERE t.pool = ANY (%(pools)s::text[]) AND NOT t.ended
    ) turn
"""
"""The open turns of some pools with the states of their runs, and when they started. NULL: never. A
run that was lost with its worker has `finished_at` only, and may have started."""

END_TURNS = f"""
WITH t AS MATERIALIZED ({OPEN}), never AS (
    DELETE FROM pool_turns p USING t
    WHERE p.run_id = t.run_id AND p.token = t.token AND NOT t.runs AND t.counted_at IS NULL
)
UPDATE pool_turns p SET ended = true, counted_at = t.counted_at FROM t
WHERE p.run_id = t.run_id AND p.token = t.token AND NOT t.runs AND t.counted_at IS NOT NULL
"""

PRUNE = f"""
WITH p AS MATERIALIZED (
    SELECT b.pool, rate_seconds * interval '1 s' + {LATER} AS per, (
        SELECT t.assigned_at FROM pool_turns t WHERE t.pool = b.pool AND t.ended
        ORDER BY t.start_by DESC OFFSET rate_count - 1 LIMIT 1) AS newest
    FROM unnest(%(pools)s::text[]) b(pool)
    JOIN pools ON namespace = split_part(b.pool, '/', 1) AND name = split_part(b.pool, '/', 2)
)
DELETE FROM pool_turns t USING p
WHERE t.pool = p.pool AND t.ended
  AND t.start_by < statement_timestamp() - COALESCE(p.per, interval '0') - {LATER}
  AND (p.per IS NULL OR t.start_by < p.newest
       OR t.start_by < statement_timestamp() - {LONGEST} - 2 * {LATER})
"""
"""A turn is kept while its run may still start, so that a pause finds it. A pool with a rate also
keeps the newest turns, as many as the rate counts: a later edit to a longer period counts them.
`newest`: those turns were assigned at that time or later.
"""

LOOK = f"""
WITH p AS MATERIALIZED (
    SELECT p.namespace || '/' || p.name AS pool, run_limit, rate_count, paused,
        rate_seconds * interval '1 s' + {MARGIN} AS per
    FROM pools p
    JOIN unnest(%(namespaces)s::text[], %(names)s::text[]) b(namespace, name)
      USING (namespace, name)
), open AS MATERIALIZED ({OPEN}), starts AS MATERIALIZED (
    SELECT p.pool, o.counted_at FROM p JOIN open o ON o.pool = p.pool
    WHERE o.counted_at > statement_timestamp() - p.per
    UNION ALL
    SELECT p.pool, t.counted_at FROM p JOIN pool_turns t ON t.pool = p.pool AND t.ended
      AND t.start_by > statement_timestamp() - p.per - {LATER}
    WHERE t.counted_at > statement_timestamp() - p.per
)
SELECT p.pool, p.run_limit, p.rate_count, p.paused, COALESCE(o.running, 0), COALESCE(s.recent, 0),
    s.fills + p.per - statement_timestamp()
FROM p
LEFT JOIN (SELECT pool, count(*) AS running FROM open WHERE runs GROUP BY pool) o USING (pool)
LEFT JOIN (
    SELECT pool, count(*) AS recent, max(counted_at) FILTER (WHERE place = rate_count) AS fills
    FROM (
        SELECT pool, p.rate_count, starts.counted_at,
            row_number() OVER (PARTITION BY pool ORDER BY starts.counted_at DESC) AS place
        FROM starts JOIN p USING (pool)
    ) placed GROUP BY pool
) s USING (pool)
"""
"""Each turn is read once, for any number of pools."""

ORPHANS = """
DELETE FROM pool_turns t
WHERE NOT EXISTS (SELECT FROM pools p WHERE p.namespace || '/' || p.name = t.pool)
  AND NOT EXISTS (
    SELECT FROM runs r WHERE r.scheduled_at = t.scheduled_at AND r.run_id = t.run_id
      AND r.state = 'RUNNING' AND r.token = t.token)
"""

TAKE = """
INSERT INTO pool_turns (run_id, token, scheduled_at, pool, assigned_at, start_by)
SELECT b.run_id, b.token, b.scheduled_at, b.pool, statement_timestamp(), b.start_by
FROM unnest(%(runs)s::uuid[], %(tokens)s::bigint[], %(scheduled)s::timestamptz[],
    %(pools)s::text[], %(start_by)s::timestamptz[]) b(run_id, token, scheduled_at, pool, start_by)
"""


def usage(connection: Connection, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
    """Return how much of these pools is in use, without pools that don't exist. A hint, unless the
    caller holds the locks of their shards.
    """
    keys = [pool.split("/", 1) for pool in pools]
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    rows = connection.exec_driver_sql(
        LOOK,
        {
            "pools": arrays.texts(pools),
            "namespaces": arrays.texts(namespace for namespace, _ in keys),
            "names": arrays.texts(name for _, name in keys),
        },
    )
    return {PoolKey(pool): _usage(*columns) for pool, *columns in rows}


def admitted(
    connection: Connection, drafts: Sequence[Draft]
) -> tuple[Sequence[Draft], list[Draft]]:
    """Return the drafts that have a place in their pools, in order, and those that don't."""
    pools = {draft.terms.pool for draft in drafts if draft.terms.pool}
    if not pools:
        return drafts, []
    named = {"pools": arrays.texts(pools)}
    connection.exec_driver_sql(END_TURNS, named)
    connection.exec_driver_sql(PRUNE, named)
    rooms = PoolRooms.from_usage(usage(connection, pools))
    going: list[Draft] = []
    full: list[Draft] = []
    for draft in drafts:
        if rooms.fits(draft.terms.pool):
            rooms.use_room(draft.terms.pool)
            going.append(draft)
        else:
            full.append(draft)
    return going, full


def forget_orphans(connection: Connection) -> None:
    """Delete turns of deleted pools whose runs have ended since."""
    connection.exec_driver_sql(ORPHANS)


def add_places(connection: Connection, dispatched: Sequence[tuple[LiveRun, PoolKey]]) -> None:
    """Record turns for runs that this transaction has dispatched."""
    mine = [(run, pool) for run, pool in dispatched if pool]
    if not mine:
        return
    connection.exec_driver_sql(
        TAKE,
        {
            "runs": arrays.ids(run.key.run_id for run, _ in mine),
            "tokens": arrays.numbers(run.token for run, _ in mine),
            "scheduled": arrays.instants(run.key.scheduled_at for run, _ in mine),
            "pools": arrays.texts(pool for _, pool in mine),
            "start_by": arrays.instants(run.start_by for run, _ in mine),
        },
    )


def _usage(
    limit: int | None,
    rate: int | None,
    paused: bool,
    running: int,
    recent: int,
    until_free: timedelta | None,
) -> PoolUsage:
    return PoolUsage(limit, rate, paused, running, recent, until_free)
