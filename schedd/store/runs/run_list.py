"""List runs, newest first, from the smallest table or index that has them.

    of states that haven't ended    live ─────────╮
    FAILED                          dead_letters ─┴─▶ places ─▶ runs ╮
    of a job, parent or backfill    an index of runs ────────────────┼─▶ the newest LOOKED_AT
    any                             by (scheduled_at, run_id) ───────╯     └─▶ those that are wanted

Invariants
- No index of `runs` has a column that a completion changes (docs/decisions, "Live runs and waiting
  runs"). So other filters scan LOOKED_AT runs, and the answer says where the scan ended.
- For a namespace with one job that job's runs are scanned; without jobs nothing is scanned.
- A FAILED run that isn't a child has a dead letter, resolved or not, as long as the run's row
  exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    and_,
    select,
    tuple_,
    union_all,
)

from schedd.core.ids import Id, RunId
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import Trigger
from schedd.core.runs.run_records import ALL_RUNS, RunFilter, RunRecord
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.runs.run_records import Columns, in_states, record, record_name, records
from schedd.store.schema.tables import backfills, dead_letters, jobs, live, runs
from schedd.store.statements.arrays import clean
from schedd.store.statements.rows import decoded

LOOKED_AT = 25_000
"""Runs that one statement scans, in about a tenth of a second: well below the timeout."""

Place: TypeAlias = tuple[datetime, RunId]
"""A position in a list of runs."""


def list_runs(
    connection: Connection,
    namespace: str,
    after: Place | None,
    limit: int,
    wanted: RunFilter = ALL_RUNS,
) -> tuple[list[RunRecord], Place | None]:
    """Return runs after `after`, up to `limit`, and the place where the scan ended; None: the end
    of the list.
    """
    source = _source(wanted)
    reached = _newest(select(source.c.scheduled_at, source.c.run_id), source.c).where(
        *_between(source.c, wanted, after)
    )
    of_job = _ids(connection, namespace, wanted.job) if wanted.job else _only(connection, namespace)
    if of_job is not None and not of_job:
        return [], None
    if of_job is not None:
        one = len(of_job) == 1
        reached = reached.where(
            source.c.job_id == of_job[0] if one else source.c.job_id.in_(of_job)
        )
    if wanted.parent is not None:
        reached = reached.where(runs.c.parent == wanted.parent)
    looked = _whole(source, reached.limit(LOOKED_AT)).subquery("looked")
    query = _newest(records(looked), looked.c).where(
        jobs.c.namespace == clean(namespace), *_conditions(looked.c, wanted)
    )
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    rows = connection.execute(query.limit(limit)).all()
    found = decoded("runs", rows, record, record_name)
    if len(found) < len(rows) == limit:  # rows were set aside: the list continues
        return found, (rows[-1].scheduled_at, RunId(rows[-1].run_id))
    return found, _end(connection, reached) if len(rows) < limit else None


def _source(wanted: RunFilter) -> FromClause:
    """Return the smallest source with all runs of the wanted states: `live`, the dead letters,
    both, or `runs`.
    """
    states, tables = set(wanted.states), list[Table]()
    if states & LIVE:
        tables.append(live)
    if State.FAILED in states and not wanted.worker:
        tables.append(dead_letters)
        states.remove(State.FAILED)
    if not tables or not states <= LIVE or wanted.parent is not None:
        return runs
    places = (select(each.c.scheduled_at, each.c.run_id, each.c.job_id) for each in tables)
    return union_all(*places).subquery("places")


def _whole(source: FromClause, reached: Select[Any]) -> Select[Any]:
    """Return the query of the runs at these places of `source`, in their order."""
    if source is runs:
        return reached.with_only_columns(*runs.c)
    places = reached.subquery("reached")
    at = (runs.c.scheduled_at == places.c.scheduled_at) & (runs.c.run_id == places.c.run_id)
    return _newest(select(runs).join(places, at), places.c)


def _end(connection: Connection, reached: Select[Any]) -> Place | None:
    """Return the last place of the scan; None: the scan reached the end of the list."""
    last = connection.execute(reached.offset(LOOKED_AT - 1).limit(1)).first()
    return None if last is None else (last.scheduled_at, RunId(last.run_id))


def _ids(connection: Connection, namespace: str, job: str) -> Sequence[Id]:
    """Return the ids of the job: a name may have several, all but one of them deleted."""
    try:
        return [Id.parse(job)]
    except ValueError:
        named = (jobs.c.namespace == clean(namespace)) & (jobs.c.name == clean(job))
        return connection.execute(select(jobs.c.job_id).where(named)).scalars().all()


def _only(connection: Connection, namespace: str) -> Sequence[Id] | None:
    """Return the only job of a namespace, or nothing if it has none; None: it has several."""
    of_namespace = select(jobs.c.job_id).where(jobs.c.namespace == clean(namespace)).limit(2)
    found = connection.execute(of_namespace).scalars().all()
    return found if len(found) < 2 else None


def _newest(query: Select[Any], of: Columns) -> Select[Any]:
    return query.order_by(of.scheduled_at.desc(), of.run_id.desc())


def _between(of: Columns, wanted: RunFilter, after: Place | None) -> Iterator[ColumnElement[bool]]:
    """Return the conditions on scheduled times, which use an index. Literal bounds also prune
    partitions.
    """
    if wanted.since is not None:
        yield of.scheduled_at >= wanted.since
    if wanted.before is not None:
        yield of.scheduled_at < wanted.before
    if after is not None:
        yield of.scheduled_at <= after[0]
        yield tuple_(of.scheduled_at, of.run_id) < after
    if wanted.backfill is not None:
        one = backfills.c.backfill_id == wanted.backfill
        yield of.job_id == select(backfills.c.job_id).where(one).scalar_subquery()
        yield of.scheduled_at >= select(backfills.c.first).where(one).scalar_subquery()
        yield of.scheduled_at <= select(backfills.c.last).where(one).scalar_subquery()


def _conditions(of: Columns, wanted: RunFilter) -> Iterator[ColumnElement[bool]]:
    """Return the conditions that no index covers."""
    if wanted.parent is None and not wanted.worker:
        yield of.parent.is_(None)
    if wanted.states:
        yield in_states(of, wanted.states)
    if wanted.worker:
        yield of.worker == clean(wanted.worker)
    if wanted.trigger is not None:
        yield _made_by(of, wanted.trigger)
    if wanted.backfill is not None:
        yield of.backfill == wanted.backfill


def _made_by(of: Columns, trigger: Trigger) -> ColumnElement[bool]:
    backfill: ColumnElement[bool] = of.backfill.is_not(None)
    redrive: ColumnElement[bool] = of.redrive_of.is_not(None)
    chain: ColumnElement[bool] = of.parents.is_not(None)
    match trigger:
        case Trigger.BACKFILL:
            return backfill
        case Trigger.REDRIVE:
            return redrive
        case Trigger.CHAIN:
            return chain & ~backfill & ~redrive
    return and_(of.trigger == trigger.value, ~chain, ~backfill, ~redrive)
