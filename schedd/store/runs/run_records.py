"""Run records: a run with data of its job, for users to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Row,
    Select,
    and_,
    case,
    func,
    literal_column,
    select,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from schedd.core.ids import BackfillId, Id, JobId, RunId, TenureId, Token
from schedd.core.jobs.chains import ParentEnded
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import LiveRun, RunKey, Trigger
from schedd.core.runs.run_records import RunRecord
from schedd.store.schema.tables import attempts, jobs, runs, tenures, timers
from schedd.store.statements.arrays import clean

RAN: Final = frozenset({State.SUCCEEDED, State.FAILED})
"""States of runs that ran: an `excluded_by` of such a run doesn't apply."""


Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]
"""The columns of `runs`, or of a subquery of it."""


def pre_dispatched(of: Columns) -> ColumnElement[bool]:
    """Return the condition that a run is pre-dispatched and not due. Users see it as waiting."""
    return and_(
        of.state == State.RUNNING.value,
        of.started_at.is_(None),
        of.ready_at > func.statement_timestamp(),
    )


def in_states(of: Columns, states: Sequence[State]) -> ColumnElement[bool]:
    found: ColumnElement[bool] = of.state.in_([state.value for state in states])
    if State.PENDING in states and State.RUNNING not in states:
        return found | pre_dispatched(of)
    return (
        found & ~pre_dispatched(of)
        if State.RUNNING in states and State.PENDING not in states
        else found
    )


_BY_A_PERSON: Final = (Trigger.MANUAL.value, Trigger.SUBMIT.value)
"""Triggers whose runs start although the job is paused, as in the assign statement."""


def records(of: FromClause = runs) -> Select[Any]:
    """Select runs with data of their jobs and earlier attempts. `of`: `runs` or a subquery."""
    first = select(func.min(attempts.c.started_at)).where(attempts.c.run_id == of.c.run_id)
    fired_by = select(tenures.c.member).where(tenures.c.id == of.c.fired_by)
    earlier = case((of.c.assignments > 1, first.correlate(of).scalar_subquery()))
    return select(
        *(column for column in of.c if column.name not in {"count", "digest", "payload"}),
        of.c.count.label("instants"),  # a row has a method of its name
        jobs.c.namespace,
        jobs.c.name,
        jobs.c.ephemeral,
        (func.coalesce(timers.c.paused, False) & of.c.trigger.not_in(_BY_A_PERSON)).label("paused"),
        literal_column("(SELECT paused FROM cluster WHERE one)").label("cluster_paused"),
        pre_dispatched(of.c).label("pre_dispatched"),
        func.least(earlier, of.c.started_at).label("first_started_at"),
        fired_by.correlate(of).scalar_subquery().label("member"),
    ).select_from(
        of.join(jobs, jobs.c.job_id == of.c.job_id).outerjoin(
            timers, timers.c.job_id == of.c.job_id
        )
    )


def record(row: Row[Any]) -> RunRecord:
    run = LiveRun(
        RunKey(row.scheduled_at, RunId(row.run_id)),
        JobId(row.job_id),
        row.shard,
        State(row.state),
        Priority(row.priority),
        row.due_at,
        row.ready_at,
        row.attempt,
        row.losses,
        Token(row.token),
        row.worker,
        row.incarnation,
        row.start_by,
        row.started_at,
        row.generation,
        row.cancelling,
        row.killing,
        row.overlap and Overlap(row.overlap),
        parent=row.parent and RunId(row.parent),
        target=row.target,
        children=row.children,
    )
    return RunRecord(
        run,
        row.namespace,
        row.name,
        row.ephemeral,
        _trigger(row),
        _reason(row),
        row.assignments,
        row.instants,
        row.scheduled_until,
        row.finished_at if run.state not in LIVE else None,
        row.exit_code,
        row.error,
        row.ready_at if run.state is State.RETRYING else None,
        row.paused,
        row.cluster_paused,
        row.first_started_at,
        "" if run.state in RAN else row.excluded_by or "",
        backfill=row.backfill and BackfillId(row.backfill),
        fired_by=row.fired_by and TenureId(row.fired_by),
        member=row.member or "",
        redrive_of=row.redrive_of and RunId(row.redrive_of),
        parents=_parents(row.parents),
        pre_dispatched=row.pre_dispatched,
    )


def record_name(row: Row[Any]) -> object:
    return row.run_id


def _trigger(row: Row[Any]) -> Trigger:
    if row.backfill is not None:
        return Trigger.BACKFILL
    if row.redrive_of is not None:
        return Trigger.REDRIVE
    return Trigger(row.trigger) if row.parents is None else Trigger.CHAIN


def _reason(row: Row[Any]) -> str | None:
    """Return the reason. A run skipped because of its chain parents is stored without one: members
    of earlier versions don't know `AFTER`.
    """
    by_parents = row.reason is None and row.parents is not None and row.state == State.SKIPPED
    if by_parents:
        return Reason.AFTER.value
    return None if row.reason is None else Reason(row.reason).value


def _parents(rows: Any) -> tuple[ParentEnded, ...]:
    return tuple(
        ParentEnded(one["job"], RunId(Id.parse(one["run"])), State(one["state"]))
        for one in rows or ()
    )


def of_job(column: ColumnElement[Any], namespace: str, job: str) -> ColumnElement[bool]:
    """Return the condition that a column of job ids has this job, by id or name."""
    try:
        return column == Id.parse(job)
    except ValueError:
        named = (jobs.c.namespace == clean(namespace)) & (jobs.c.name == clean(job))
        return column.in_(select(jobs.c.job_id).where(named))


def newest_first(limit: int) -> Select[Any]:
    return records().order_by(runs.c.scheduled_at.desc(), runs.c.run_id.desc()).limit(limit)
