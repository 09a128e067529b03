"""Decode rows: which columns make which value, defined once.

Each `…_COLUMNS` is a select list over fixed aliases (`r` runs, `l` live, `t` timers), and the
function below it reads that list from `start` on.

Rows are written by other versions, too, and by people with SQL. A column may contain an unknown
word, or JSON of another form. So several rows are always read by `decoded`: a row that can't be
decoded is set aside with its name, and the others are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from operator import itemgetter
from typing import Any, TypeVar, cast

from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Incarnation, LiveRun, RunKey, Timer
from schedkit.set_aside import together

Row = TypeVar("Row")
T = TypeVar("T")

TIMER_COLUMNS = "t.job_id, t.shard, t.generation, t.due_at, t.nominal, t.paused, t.fired"


ID = 16
"""Bytes of a packed id."""
PACKED_TIMER = """uuid_send(t.job_id)
    || (int8send(t.shard::bigint << 32 | t.generation) || int4send(t.fired))
    || (timestamptz_send(t.due_at) || timestamptz_send(COALESCE(t.nominal, '-infinity')))"""
"""A timer in the form of `core/timers/packed_timer.py`."""


def decoded(
    kind: str,
    rows: Iterable[Row],
    decode: Callable[[Row], T],
    name: Callable[[Any], object] = itemgetter(0),
) -> list[T]:
    """Return the values of these rows, except rows that can't be decoded: each is logged once.
    `name` returns the name of a row; its first column by default.
    """
    parts = together(f"row of {kind}", [*rows], lambda some: [*map(decode, some)], name=name)
    return [value for part in parts for value in part]


def record_of(kind: type[T], row: Any, **others: object) -> T:
    """Return a record: a field has the value of `others`, or of the row's column with its name. A
    field without either keeps its default.
    """
    columns: dict[str, object] = row._asdict() | others
    return kind(**{name: columns[name] for name in _names(cast("Any", kind)) if name in columns})


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def cut(packed: memoryview | None, width: int) -> list[bytes]:
    """Return the entries of an aggregate: each has `width` bytes."""
    written = bytes(packed or b"")
    return [written[at : at + width] for at in range(0, len(written), width)]


def run_id_of(row: Any) -> object:
    """Return the run id of a row of `RUN_COLUMNS`, as its name."""
    return row[1]


def timer(row: Sequence[Any]) -> Timer:
    """Return the timer of a row of `TIMER_COLUMNS`."""
    return Timer(*row)


RUN_COLUMNS = """r.scheduled_at, r.run_id, r.job_id, r.shard, r.state, r.priority, r.due_at,
    r.ready_at, r.attempt, r.losses, r.token, r.worker, r.incarnation, r.start_by, r.started_at,
    r.generation, r.cancelling, r.killing, r.overlap, r.created_at, r.parent, r.target,
    r.children"""
RUN_WIDTH = 23


def live_run(row: Sequence[Any], start: int = 0) -> LiveRun:
    """Return the run of a row of `RUN_COLUMNS`."""
    at, run_id, job_id, shard, state, priority, *rest = row[start : start + RUN_WIDTH]
    if rest[-5] is not None:
        rest[-5] = Overlap(rest[-5])
    return LiveRun(RunKey(at, run_id), job_id, shard, State(state), Priority(priority), *rest)


INCARNATION_COLUMNS = """id, worker, spool_id, host, version, slots, labels, handlers, actions,
    started_at, lost_at, namespaces"""


def incarnation(row: Sequence[Any]) -> Incarnation:
    """Return the incarnation of a row of `INCARNATION_COLUMNS`."""
    id_, worker, spool_id, host, version, slots, labels, handlers, actions, *rest = row
    for text in (*labels.items(), (*handlers, *actions, *(rest[-1] or ()))):
        if not all(isinstance(part, str) for part in text):
            raise TypeError(f"not all of these are strings: {text!r:.100}")
    started_at, lost_at, namespaces = rest
    return Incarnation(
        id_,
        worker,
        spool_id,
        host,
        version,
        slots,
        labels,
        tuple(handlers),
        tuple(actions),
        started_at,
        lost_at,
        None if namespaces is None else frozenset(namespaces),
    )
