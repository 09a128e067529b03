"""Read the live runs of shards for a scan: all of them, or those that changed since the last scan.

    with a cursor    ──changed_runs──→ ids of unchanged runs; changed ones are read in full
    without a cursor ──live_runs─────→ all of them, in full
    a refill         ──end_of_next, next_runs──→ the next waiting runs of many, in full

Runs of one kind are read together: one row with their common columns, and 68 bytes for each run.
All that wait for their first attempt, with needs alike, are of one kind.

A row names the transaction that wrote it (`store/runs/change_stream.py`), so an unchanged run costs
16 bytes, and 8 for the token of a RUNNING one, instead of a row of hundreds. Under one token a
RUNNING row changes only by a cancel: any other RUNNING one counts as unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from itertools import chain
from struct import Struct
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.dispatch.ready_bucket_ids import HURRIED, LATE_ALERT, line_of
from schedd.core.ids import Id, RunId, ShardId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.change_stream import ChangedRuns, Cursor
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.timers.packed_timer import instant_of
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.runs.change_stream import CHANGED, span_since
from schedd.store.statements import arrays
from schedd.store.statements.rows import ID, cut, decoded

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

PACKED: Final = """uuid_send(r.run_id) || uuid_send(r.job_id) || int4send(r.shard)
    || (timestamptz_send(r.scheduled_at) || timestamptz_send(r.due_at))
    || (timestamptz_send(r.ready_at) || timestamptz_send(r.created_at))"""
FORM: Final = Struct(">16s16siqqqq")
"""The form of `PACKED`. No column of it is NULL."""

_FULL: Final = f"""
SELECT r.state, r.priority, r.attempt, r.losses, r.token, r.worker, r.incarnation, r.start_by,
    r.started_at, r.generation, r.cancelling, r.killing, r.overlap, r.parent, r.target, r.children,
    CASE WHEN t.line_generation = t.generation
    THEN (t.line | CASE WHEN r.generation < t.generation THEN {HURRIED} ELSE 0 END)
        & CASE WHEN r.late_notified THEN {~LATE_ALERT} ELSE -1 END END, COALESCE(t.generation, 0),
    string_agg({PACKED}, '')
{LIVE} {{only}}
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18
"""
IN_FULL: Final = _FULL.format(only="")
SOME_IN_FULL: Final = _FULL.format(only="AND l.run_id = ANY (%(of)s::uuid[])")

NEXT_IN_FULL: Final = _FULL.format(
    only="""AND (l.scheduled_at, l.run_id) < (%(scheduled_at)s, %(run_id)s::uuid)
        AND r.ready_at >= %(since)s"""
)
END_OF_NEXT: Final = """
SELECT scheduled_at, run_id FROM live
WHERE shard = ANY (%(shards)s::int[]) AND scheduled_at <= %(until)s
  AND (scheduled_at, run_id) >= (%(scheduled_at)s, %(run_id)s::uuid)
ORDER BY scheduled_at, run_id OFFSET %(count)s LIMIT 1
"""

UNTOUCHED: Final = """(r.state = 'PENDING' AND r.token = 0 AND r.ready_at = r.due_at
    AND r.overlap IS NULL AND r.parent IS NULL AND NOT r.late_notified
    AND r.generation = t.generation AND r.priority BETWEEN 1 AND 3)"""
"""The columns of the run are as inserted and valid, and its job hasn't been edited since."""


BY_CHANGE: Final = f"""
SELECT string_agg(uuid_send(run_id), '') FILTER (WHERE changed AND NOT untouched),
    string_agg(uuid_send(run_id), '') FILTER (WHERE changed AND untouched),
    string_agg(uuid_send(run_id), '') FILTER (WHERE NOT changed AND NOT running),
    string_agg(uuid_send(run_id) || int8send(token), '') FILTER (WHERE NOT changed AND running),
    string_agg(uuid_send(run_id), '') FILTER (WHERE NOT changed AND NOT running AND soon)
FROM (
    SELECT l.run_id, r.token, r.ready_at > %(read_until)s AS soon, r.state = 'RUNNING' AS running,
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
    kinds = decoded("runs", rows, _runs_of, lambda row: Id(row[-1][:ID]))
    return [*chain.from_iterable(kinds)]


def end_of_next(
    connection: Connection, shards: Collection[ShardId], first: RunKey, count: int, until: datetime
) -> RunKey | None:
    """Return the key of the live run that follows the next `count`, from the key `first` on. None:
    so many aren't scheduled at `until` or earlier.
    """
    asked = {**first._asdict(), "shards": arrays.numbers(shards), "count": count, "until": until}
    row = connection.exec_driver_sql(END_OF_NEXT, asked).one_or_none()
    return None if row is None else RunKey(row[0], RunId(Id(row[1])))


def next_runs(
    connection: Connection,
    shards: Collection[ShardId],
    since: datetime,
    end: RunKey,
    until: datetime,
) -> list[LiveRun]:
    """Return waiting runs as `live_runs`: those before the key `end` that become ready at `since`
    or later.
    """
    asked = {**_asked(shards, (State.PENDING, State.RETRYING), until), **end._asdict()}
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    rows = connection.exec_driver_sql(NEXT_IN_FULL, {**asked, "since": since})
    return [*chain.from_iterable(decoded("runs", rows, _runs_of, lambda row: Id(row[-1][:ID])))]


def _runs_of(row: Sequence[Any]) -> list[LiveRun]:
    state, priority, *tries, said, parent, target, children, line, of, packed = row
    state, priority = State(state), Priority(priority)
    overlap = None if said is None else Overlap(said)
    rest = (parent, target, children, False, line_of(line), of)  # it isn't known as paced
    new: Any = bytes.__new__
    run: Any = LiveRun
    return [
        run(
            *(RunKey(instant_of(scheduled), new(Id, run_id)), new(Id, job_id), shard, state),
            *(priority, instant_of(due), instant_of(ready), *tries),
            *(overlap, instant_of(created), *rest),
        )
        for run_id, job_id, shard, scheduled, due, ready, created in FORM.iter_unpack(packed)
    ]


def changed_runs(
    connection: Connection,
    shards: Collection[ShardId],
    states: Collection[State],
    until: datetime,
    since: Cursor,
    read_until: datetime,
) -> ChangedRuns | None:
    """Return the runs of `live_runs` that may have changed since, and others. `read_until`: the
    `until` of the scan at `since`. None: `since` isn't from this database's past.
    """
    span = span_since(connection, since)
    if span is None:
        return None
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    changed, untouched, same, running, soon = connection.exec_driver_sql(
        BY_CHANGE, {**_asked(shards, states, until), **span, "read_until": read_until}
    ).one()
    return ChangedRuns(
        tuple([RunId(Id(one)) for one in cut(changed, ID)]),
        frozenset(cut(same, ID)),
        frozenset(cut(running, ID + TOKEN)),
        frozenset(cut(untouched, ID)),
        frozenset(cut(soon, ID)),
    )


def _asked(
    shards: Collection[ShardId], states: Collection[State], until: datetime | None
) -> dict[str, Any]:
    return {
        "shards": arrays.numbers(shards),
        "states": arrays.texts(states),
        "until": until or datetime.max.replace(tzinfo=UTC),
    }
