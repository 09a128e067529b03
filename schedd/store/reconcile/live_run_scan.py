"""Read the live runs of shards for a scan: all of them, or those that changed since the last scan.

    with a cursor    ──changed_runs──→ ids of unchanged runs; changed ones are read in full
    without a cursor ──live_runs─────→ all of them, in full

A row names the transaction that wrote it (`store/runs/change_stream.py`), so an unchanged run costs
16 bytes, and 8 for the token of a RUNNING one, instead of a row of hundreds. Under one token a
RUNNING row changes only by a cancel: any other RUNNING one counts as unchanged.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.dispatch.ready_bucket_ids import HURRIED, LATE_ALERT, line_of
from schedd.core.ids import Id, RunId, ShardId
from schedd.core.runs.change_stream import ChangedRuns, Cursor
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.runs.change_stream import CHANGED, span_since
from schedd.store.statements import arrays
from schedd.store.statements.rows import (
    ID,
    RUN_COLUMNS,
    RUN_WIDTH,
    cut,
    decoded,
    live_run,
    run_id_of,
)

LIVE: Final = """
FROM live l CROSS JOIN LATERAL (
    SELECT *, xmin FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
    OFFSET 0
) r
LEFT JOIN timers t ON t.job_id = l.job_id
WHERE l.shard = ANY (%(shards)s::int[]) AND r.state = ANY (%(states)s::text[])
  AND (r.state = 'RUNNING' OR NOT t.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))
  AND (r.state = 'RUNNING' OR r.ready_at <= %(until)s)
"""

IN_FULL: Final = f"""
SELECT {RUN_COLUMNS}, CASE WHEN t.line_generation = t.generation
    THEN (t.line | CASE WHEN r.generation < t.generation THEN {HURRIED} ELSE 0 END)
        & CASE WHEN r.late_notified THEN {~LATE_ALERT} ELSE -1 END END, COALESCE(t.generation, 0)
{LIVE}
"""
SOME_IN_FULL: Final = f"{IN_FULL} AND l.run_id = ANY (%(of)s::uuid[])"

UNTOUCHED: Final = """(r.state = 'PENDING' AND r.token = 0 AND r.ready_at = r.due_at
    AND r.overlap IS NULL AND r.parent IS NULL AND NOT r.late_notified
    AND r.generation = t.generation AND r.priority BETWEEN 1 AND 3)"""
"""The columns of the run are as inserted and valid, and its job hasn't been edited since."""


BY_CHANGE: Final = f"""
SELECT string_agg(uuid_send(run_id), '') FILTER (WHERE changed AND NOT untouched),
    string_agg(uuid_send(run_id), '') FILTER (WHERE changed AND untouched),
    string_agg(uuid_send(run_id), '') FILTER (WHERE NOT changed AND NOT running),
    string_agg(uuid_send(run_id) || int8send(token), '') FILTER (WHERE NOT changed AND running)
FROM (
    SELECT l.run_id, r.token, r.state = 'RUNNING' AS running,
        ({CHANGED.format(row="r")} OR COALESCE({CHANGED.format(row="t")}, false))
          AND (r.state <> 'RUNNING' OR r.cancelling OR r.children IS NOT NULL) AS changed,
        COALESCE({UNTOUCHED}, false) AS untouched
    {LIVE}
) l
"""

TOKEN = 8
"""Bytes of a token."""


def live_runs(
    connection: Connection,
    shards: Collection[ShardId],
    states: Collection[State],
    until: datetime | None = None,
    of: Collection[RunId] | None = None,
) -> list[LiveRun]:
    """Return runs of these shards in these states. Waiting ones must be ready at `until` (None: any
    time); of paused jobs only triggered ones. `of`: only these runs.
    """
    asked = _asked(shards, states, until)
    if of is not None:
        asked["of"] = arrays.ids(of)
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    rows = connection.exec_driver_sql(IN_FULL if of is None else SOME_IN_FULL, asked)
    return decoded(
        "runs",
        rows,
        lambda row: live_run(row, line=line_of(row[RUN_WIDTH]), of=row[RUN_WIDTH + 1]),
        run_id_of,
    )


def changed_runs(
    connection: Connection,
    shards: Collection[ShardId],
    states: Collection[State],
    until: datetime,
    since: Cursor,
) -> ChangedRuns | None:
    """Return the runs of `live_runs` that may have changed since. None: `since` isn't from this
    database's past.
    """
    span = span_since(connection, since)
    if span is None:
        return None
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    changed, untouched, same, running = connection.exec_driver_sql(
        BY_CHANGE, {**_asked(shards, states, until), **span}
    ).one()
    return ChangedRuns(
        tuple([RunId(Id(one)) for one in cut(changed, ID)]),
        frozenset(cut(same, ID)),
        frozenset(cut(running, ID + TOKEN)),
        frozenset(cut(untouched, ID)),
    )


def _asked(
    shards: Collection[ShardId], states: Collection[State], until: datetime | None
) -> dict[str, Any]:
    return {
        "shards": arrays.numbers(shards),
        "states": arrays.texts(states),
        "until": until or datetime.max.replace(tzinfo=UTC),
    }
