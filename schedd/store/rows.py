"""Rows in, values out: which columns make which value, written once.

Each `…_COLUMNS` is a select list over fixed aliases (`r` runs, `l` live, `t` timers), and the
function below it reads that list from `start` on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedd.core.definition import Overlap, Priority
from schedd.core.lifecycle import State
from schedd.core.line_ids import LineId
from schedd.core.model import Incarnation, LiveRun, RunKey, Timer

TIMER_COLUMNS = "t.job_id, t.shard, t.generation, t.due_at, t.nominal, t.paused, t.fired"


def timer(row: Sequence[Any]) -> Timer:
    """From `TIMER_COLUMNS`."""
    return Timer(*row)


RUN_COLUMNS = """r.scheduled_at, r.run_id, r.job_id, r.shard, r.state, r.priority, r.due_at,
    r.ready_at, r.attempt, r.losses, r.token, r.worker, r.incarnation, r.start_by, r.started_at,
    r.generation, r.cancelling, r.killing, r.overlap, r.created_at, r.parent, r.target,
    r.children"""
RUN_WIDTH = 23


def live_run(
    row: Sequence[Any], start: int = 0, line: LineId | None = None, of: int = 0
) -> LiveRun:
    """From `RUN_COLUMNS`. `line`: its job's, if it was read beside them, with its generation."""
    at, run_id, job_id, shard, state, priority, *rest = row[start : start + RUN_WIDTH]
    if rest[-5] is not None:
        rest[-5] = Overlap(rest[-5])
    rest += [False, line, of]  # whether it is paced isn't known of rows
    return LiveRun(RunKey(at, run_id), job_id, shard, State(state), Priority(priority), *rest)


INCARNATION_COLUMNS = """id, worker, spool_id, host, version, slots, labels, handlers, actions,
    started_at, lost_at, namespaces"""


def incarnation(row: Sequence[Any]) -> Incarnation:
    """From `INCARNATION_COLUMNS`."""
    id_, worker, spool_id, host, version, slots, labels, handlers, actions, *rest = row
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
