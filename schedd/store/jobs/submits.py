"""Store one-time work of several callers with one statement: keys, jobs, timers, runs, live rows,
audit entries. A run that has a slot is dispatched by the same statement.

Invariants
- The statement writes the same rows as `runs.submit_run` for each call. The returned records equal
  what reading the rows would return.
- A call whose key is in use, or repeated in the batch, isn't written here: `runs.submit_run`
  decides its answer. Keys are taken in one order, so no two batches deadlock.
- A run is dispatched only under the lock of its shard, and never during a cluster pause. Its job is
  new, so the job has no other live run (docs/protocol-rules.md, P1.2, P3.5, P3.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias

from sqlalchemy import Connection

from schedd.core.ids import Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Terms, Trigger
from schedd.core.runs.records import Submit
from schedd.core.runs.run_records import RunRecord
from schedd.store import audit
from schedd.store.connection.prepared import PreparedStatement
from schedd.store.jobs.requested_jobs import (
    first_of_each,
    key_of,
    numbered,
    own_columns,
    rows,
    shared_columns,
)
from schedd.store.statements import arrays
from schedd.store.statements.idempotency import LIFE
from schedd.store.statements.keys import instant
from schedkit.records import replace

Dispatches: TypeAlias = Mapping[int, tuple[Token, Terms]]
"""Tokens and terms of the runs to dispatch, by the place of the submit."""
NONE: Final[Dispatches] = MappingProxyType({})

CALL: Final = "SubmitRun"
"""The call of every key."""

ROWS: Final = rows(
    own=""", %(runs)s::uuid[], %(scheduled)s::bigint[], %(due)s::bigint[], %(payloads)s::bytea[],
        %(tokens)s::bigint[], %(terms)s::int[]""",
    own_names=", run_id, scheduled, due, payload, next_token, terms",
    shared="%(priorities)s::int[]",
    shared_names="priority",
    also=f"{instant('scheduled')} AS scheduled_at, {instant('due')} AS due_at,",
)

SUBMIT: Final = PreparedStatement(f"""
WITH b AS MATERIALIZED ({ROWS}
), taken AS (
    INSERT INTO idempotency_keys AS k (namespace, call, key, digest, made, created_at)
    SELECT namespace, '{CALL}', key, digest, run_id, clock_timestamp() FROM b WHERE key IS NOT NULL
    ORDER BY namespace, key
    ON CONFLICT (namespace, call, key) DO UPDATE
      SET digest = EXCLUDED.digest, made = EXCLUDED.made, created_at = EXCLUDED.created_at
      WHERE k.created_at < statement_timestamp() - %(life)s * interval '1 s'
    RETURNING made
), fresh AS MATERIALIZED (
    SELECT b.*, terms IS NOT NULL AND NOT (SELECT paused FROM cluster WHERE one) AS goes
    FROM b WHERE key IS NULL OR run_id IN (SELECT made FROM taken)
), stored AS (
    INSERT INTO jobs (job_id, namespace, name, shard, generation, spec, ephemeral, created_at,
        created_by, updated_at, pause_note, paused_by, retention)
    SELECT job_id, namespace, name, shard, generation, spec, true, created_at, actor, created_at,
        '', '', justify_hours(retention * interval '1 s') FROM fresh
), timed AS (
    INSERT INTO timers (job_id, shard, generation, paused, fired, line, line_generation)
    SELECT job_id, shard, generation, false, 0, line, generation FROM fresh
), made AS (
    INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, count, trigger, state,
        ready_at, generation, payload, token, attempt, assignments, worker, incarnation,
        assigned_at, start_by)
    SELECT scheduled_at, run_id, job_id, due_at, shard, priority, 1, 'SUBMIT',
        CASE WHEN goes THEN 'RUNNING' ELSE 'PENDING' END, due_at, generation, payload,
        CASE WHEN goes THEN next_token ELSE 0 END, goes::int, goes::int,
        CASE WHEN goes THEN (%(workers)s::text[])[terms] END,
        CASE WHEN goes THEN (%(incarnations)s::uuid[])[terms] END,
        CASE WHEN goes THEN statement_timestamp() END,
        CASE WHEN goes THEN GREATEST(statement_timestamp(), due_at)
          + (%(start_limits)s::float8[])[terms] * interval '1 s' END
    FROM fresh
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM fresh
), logged AS (
    {audit.INSERT} FROM fresh {audit.WITH_KEY}
)
SELECT place, goes, (SELECT paused FROM cluster WHERE one), statement_timestamp() FROM fresh
""")


def submit_all(
    connection: Connection, submits: Sequence[Submit], dispatches: Dispatches = NONE
) -> dict[int, RunRecord]:
    """Store several runs, and dispatch some of them. Returns records by place; calls left out need
    their own transaction.
    """
    chosen = first_of_each(key_of(each.key) for each in submits)
    found = SUBMIT.execute(connection, _columns(submits, chosen, dispatches), len(chosen))
    records = {}
    for number, goes, cluster_paused, at in sorted(found):
        place = chosen[number - 1]
        dispatch = dispatches.get(place) if goes else None
        records[place] = _record(submits[place], dispatch, at, cluster_paused)
    return records


def _record(
    submit: Submit, dispatch: tuple[Token, Terms] | None, at: datetime, cluster_paused: bool
) -> RunRecord:
    """Return the same as `runs.get_run` for the new run. `at`: the time of the statement."""
    new, made = submit.record.definition, submit.run
    run = LiveRun(
        made.key,
        new.job_id,
        submit.record.shard,
        State.PENDING,
        submit.priority,
        made.due_at,
        ready_at=made.due_at,
        generation=new.generation,
        created_at=at,
        line=new.line,
        line_generation=new.generation,
    )
    if dispatch is not None:
        token, terms = dispatch
        run = replace(
            run,
            state=State.RUNNING,
            attempt=1,
            token=token,
            worker=terms.worker,
            incarnation=terms.incarnation,
            start_by=max(made.due_at, at) + terms.start_by_after,
        )
    return RunRecord(
        run,
        arrays.clean(new.namespace),
        arrays.clean(new.name),
        ephemeral=True,
        trigger=Trigger.SUBMIT,
        reason=None,
        assignments=run.attempt,
        count=1,
        scheduled_until=None,
        finished_at=None,
        exit_code=None,
        error="",
        retry_at=None,
        cluster_paused=cluster_paused,
    )


def _columns(
    submits: Sequence[Submit], places: Sequence[int], dispatches: Dispatches
) -> dict[str, object]:
    chosen = [submits[place] for place in places]
    kinds, firsts = numbered([_kind(each) for each in chosen])
    first = [chosen[place] for place in firsts]
    jobs = [(each.record, each.record.definition) for each in chosen]
    terms = [*{id(of): of for _, of in dispatches.values()}.values()]
    numbers = {id(of): number for number, of in enumerate(terms, 1)}
    going = [dispatches.get(place) for place in places]
    return {
        **own_columns(
            kinds,
            [(new.job_id, new.name, record.shard, record.created_at) for record, new in jobs],
            [each.key for each in chosen],
            [each.entry for each in chosen],
        ),
        **shared_columns([each.record for each in first], [each.entry for each in first]),
        "runs": arrays.ids([each.run.key.run_id for each in chosen]),
        "scheduled": arrays.microseconds([each.run.key.scheduled_at for each in chosen]),
        "due": arrays.microseconds([each.run.due_at for each in chosen]),
        "priorities": arrays.numbers([each.priority.value for each in first]),
        "payloads": arrays.blobs([each.payload for each in chosen]),
        "life": LIFE.total_seconds(),
        "tokens": arrays.numbers([each and each[0] for each in going]),
        "terms": arrays.numbers([each and numbers[id(each[1])] for each in going]),
        "workers": arrays.texts([each.worker for each in terms]),
        "incarnations": arrays.ids([each.incarnation for each in terms]),
        "start_limits": arrays.numbers([e.start_by_after.total_seconds() for e in terms]),
    }


def _kind(submit: Submit) -> tuple[object, ...]:
    record = submit.record
    new = record.definition
    return (
        *(new.namespace, new.generation, new.spec, record.created_by, new.retention, new.line),
        submit.priority,
        audit.SHARED_OF(submit.entry),
    )
