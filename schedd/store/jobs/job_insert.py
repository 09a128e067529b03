"""Store jobs of several callers with one statement: jobs, timers, idempotency keys, audit entries.

    creates ─▶ own columns: id, name, shard, time, key ─┬─▶ jobs, timers, keys, audit
           └─▶ templates: what equal requests share ────┘

Invariants
- The statement writes the same rows as `jobs.create_job` for each call. Reading them returns the
  given records.
- A call isn't written here if its key is in use or repeated in the batch, or its name is taken.
  `jobs.create_job` decides its answer.
- Key and job are written together. If another transaction takes a key meanwhile, the statement
  fails, and group commit halves the batch until that call is alone. Keys that are in use already
  are left out before: hundreds of them would delay all other calls by a bisection of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from schedd.core.runs.records import ChainRefused, Create, JobRecord, StoreConflict
from schedd.store import audit
from schedd.store.connection.prepared import PreparedStatement
from schedd.store.jobs import jobs
from schedd.store.jobs.requested_jobs import (
    first_of_each,
    key_of,
    numbered,
    own_columns,
    rows,
    shared_columns,
)
from schedd.store.statements import arrays

CALL: Final = "CreateJob"
"""The call of every key."""

ROWS: Final = rows(
    shared="%(due)s::timestamptz[], %(nominal)s::timestamptz[]", shared_names="due_at, nominal"
)

CREATE: Final = PreparedStatement(f"""
WITH b AS MATERIALIZED ({ROWS}
), stored AS (
    INSERT INTO jobs (job_id, namespace, name, shard, generation, spec, ephemeral, created_at,
        created_by, updated_at, pause_note, paused_by, retention)
    SELECT job_id, namespace, name, shard, generation, spec, false, created_at, actor, created_at,
        '', '', justify_hours(retention * interval '1 s')
    FROM b WHERE COALESCE((
        SELECT false FROM idempotency_keys k
        WHERE k.namespace = b.namespace AND k.call = '{CALL}' AND k.key = b.key), true)
    ORDER BY namespace, name
    ON CONFLICT (namespace, name) WHERE deleted_at IS NULL AND NOT ephemeral DO NOTHING
    RETURNING job_id
), fresh AS MATERIALIZED (
    SELECT b.* FROM b JOIN stored USING (job_id)
), timed AS (
    INSERT INTO timers (job_id, shard, due_at, nominal, generation, paused, fired, line,
        line_generation)
    SELECT job_id, shard, due_at, nominal, generation, false, 0, line, generation FROM fresh
), taken AS (
    INSERT INTO idempotency_keys (namespace, call, key, digest, made, created_at)
    SELECT namespace, '{CALL}', key, digest, job_id, clock_timestamp()
    FROM fresh WHERE key IS NOT NULL ORDER BY namespace, key
), logged AS (
    {audit.INSERT} FROM fresh ORDER BY place {audit.WITH_KEY}
)
SELECT array_agg(place) FROM fresh
""")


def create(connection: Connection, create: Create) -> JobRecord | StoreConflict | ChainRefused:
    return jobs.create_job(connection, create.record, create.key, create.entry)


def create_all(connection: Connection, creates: Sequence[Create]) -> dict[int, Create]:
    """Store several jobs. Returns those stored by place; calls left out need their own
    transaction.
    """
    chosen = first_of_each(map(_identities, creates))
    columns = _columns([creates[place] for place in chosen])
    [(stored,)] = CREATE.execute(connection, columns, len(chosen))
    places = [chosen[number - 1] for number in stored or ()]
    return {place: creates[place] for place in places}


def _identities(create: Create) -> list[object]:
    namespace = arrays.clean(create.template.definition.namespace)
    return [(namespace, arrays.clean(create.name)), *key_of(create.key)]


def _columns(creates: Sequence[Create]) -> dict[str, object]:
    kinds, places = numbered([id(each.template) for each in creates])
    first = [creates[place] for place in places]
    records = [each.template for each in first]
    return {
        **own_columns(
            kinds,
            [(each.job_id, each.name, each.shard, each.created_at) for each in creates],
            [each.key for each in creates],
            [each.entry for each in creates],
        ),
        **shared_columns(records, [each.entry for each in first]),
        "due": arrays.instants([record.due_at for record in records]),
        "nominal": arrays.instants([record.nominal for record in records]),
    }
