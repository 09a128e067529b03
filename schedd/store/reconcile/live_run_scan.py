"""Read the live runs of shards: all of them, the next ones of many, or those written since.

    a full scan ──live_runs──────────────→ all of them
    a scan      ──written_runs, changed_assignments──→ keys ──runs_by_key──→ those runs
    a refill    ──end_of_next, next_runs─→ the next waiting runs of many

Runs of one kind are read together: one row with their common columns, and 68 bytes for each run.
All that wait for their first attempt, with needs alike, are of one kind.

A row in `live` names the transaction that wrote it (`store/runs/change_stream.py`): the one that
inserted the run, or moved its job to another shard. So such runs are found without reading the rows
of the others in `runs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from struct import Struct
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.dispatch.ready_bucket_ids import HURRIED, LATE_ALERT, line_of
from schedd.core.ids import Id, RunId, ShardId, Token
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.change_stream import Cursor, WrittenRuns
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import LiveKey, LiveRun, RunKey
from schedd.core.timers.packed_timer import instant_of
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.runs.change_stream import CHANGED, span_since
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments
from schedd.store.statements.rows import ID, cut, decoded

_ROWS: Final = """
CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
    OFFSET 0
) r
LEFT JOIN timers t ON t.job_id = l.job_id
WHERE r.state = ANY (%(states)s::text[])
  AND (r.state = 'RUNNING' OR NOT t.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))
  AND (r.state = 'RUNNING' OR r.ready_at <= %(until)s)
"""
_OF_SHARDS: Final = f"""
FROM live l {_ROWS} AND l.shard = ANY (%(shards)s::int[])
"""
_OF_KEYS: Final = f"""
FROM unnest(%(shards)s::int[], %(jobs)s::uuid[], %(runs)s::uuid[]) k(shard, job_id, run_id)
JOIN live l ON l.shard = k.shard AND l.job_id = k.job_id AND l.run_id = k.run_id {_ROWS}
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
{{of}}
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18
"""
ALL: Final = _FULL.format(of=_OF_SHARDS)
BY_KEY: Final = _FULL.format(of=_OF_KEYS)
NEXT: Final = _FULL.format(
    of=f"""{_OF_SHARDS} AND (l.scheduled_at, l.run_id) < (%(scheduled_at)s, %(run_id)s::uuid)
        AND r.ready_at >= %(since)s"""
)
END_OF_NEXT: Final = """
SELECT scheduled_at, run_id FROM live
WHERE shard = ANY (%(shards)s::int[]) AND scheduled_at <= %(until)s
  AND (scheduled_at, run_id) >= (%(scheduled_at)s, %(run_id)s::uuid)
ORDER BY scheduled_at, run_id OFFSET %(count)s LIMIT 1
"""

KEYS: Final = """
SELECT string_agg(int4send(l.shard) || uuid_send(l.job_id) || uuid_send(l.run_id), '')
FROM live l WHERE l.shard = ANY (%(shards)s::int[])
"""
WRITTEN: Final = f"{KEYS} AND {CHANGED.format(row='l')}"
FEW: Final = 16
"""Shards up to which keys are read by index. To read most rows of `live` in the order of the table
takes a fifth of the time.
"""
KEY: Final = Struct(">i16s16s")
"""The form of a key in `KEYS`."""

CHANGED_RUNS: Final = """
SELECT string_agg(uuid_send(k.run_id), '')
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(tokens)s::bigint[])
  k(scheduled_at, run_id, token)
LEFT JOIN LATERAL (
    SELECT r.state, r.token, r.cancelling FROM runs r
    WHERE r.scheduled_at = k.scheduled_at AND r.run_id = k.run_id
      AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
) r ON true
WHERE (r.state = 'RUNNING' AND r.token = k.token AND NOT r.cancelling) IS NOT TRUE
"""


def live_runs(
    connection: Connection,
    shards: Collection[ShardId],
    states: Collection[State],
    until: datetime | None = None,
) -> list[LiveRun]:
    """Return runs of these shards in these states. Waiting ones must be ready at `until` (None: any
    time); of paused jobs only triggered ones.
    """
    return _read(connection, ALL, {"shards": arrays.numbers(shards)}, states, until)


def runs_by_key(
    connection: Connection, keys: Collection[LiveKey], until: datetime
) -> list[LiveRun]:
    """Return these runs as `live_runs`, in any state."""
    of = {
        "shards": arrays.numbers([key.shard for key in keys]),
        "jobs": arrays.ids([key.job_id for key in keys]),
        "runs": arrays.ids([key.run_id for key in keys]),
    }
    return _read(connection, BY_KEY, of, LIVE, until)


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
    of = {"shards": arrays.numbers(shards), **end._asdict(), "since": since}
    return _read(connection, NEXT, of, (State.PENDING, State.RETRYING), until)


def _read(
    connection: Connection,
    statement: str,
    of: Mapping[str, Any],
    states: Collection[State],
    until: datetime | None,
) -> list[LiveRun]:
    asked = {"states": arrays.texts(states), "until": until or datetime.max.replace(tzinfo=UTC)}
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    rows = connection.exec_driver_sql(statement, {**of, **asked})
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


def written_runs(
    connection: Connection, shards: Collection[ShardId], since: Cursor
) -> WrittenRuns | None:
    """Return the runs of these shards whose rows in `live` were written since. None: `since` isn't
    from this database's past.
    """
    present, span = span_since(connection, since)
    if span is None:
        return None
    return WrittenRuns(present, _keys(connection, WRITTEN, shards, span))


def changed_assignments(
    connection: Connection, assigned: Sequence[tuple[RunKey, Token]]
) -> list[RunId]:
    """Return which of these assignments their rows don't have, or are being canceled."""
    tokens = arrays.numbers([token for _, token in assigned])
    keys = key_arguments([key for key, _ in assigned]) | {"tokens": tokens}
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    return [
        RunId(Id(one)) for one in cut(connection.exec_driver_sql(CHANGED_RUNS, keys).scalar(), ID)
    ]


def live_keys(connection: Connection, shards: Collection[ShardId]) -> list[LiveKey]:
    """Return the keys of all live runs of these shards."""
    return _keys(connection, KEYS, shards, {})


def _keys(
    connection: Connection,
    statement: str,
    shards: Collection[ShardId],
    arguments: Mapping[str, object],
) -> list[LiveKey]:
    if len(shards) <= FEW:
        connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    asked = {"shards": arrays.numbers(shards), **arguments}
    packed = connection.exec_driver_sql(statement, asked).scalar()
    new: Any = bytes.__new__
    keys = KEY.iter_unpack(bytes(packed or b""))
    return [LiveKey(shard, new(Id, job), new(Id, run)) for shard, job, run in keys]
