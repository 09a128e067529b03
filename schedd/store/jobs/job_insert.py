"""Store jobs of several callers with one statement: jobs, timers, idempotency keys, audit entries.

Invariants
- The statement writes the same rows as `jobs.create_job` for each call. Reading them returns the
  given records.
- A call isn't written here if its key is in use or repeated in the batch, or its name is taken.
  `jobs.create_job` decides its answer.
- Key and job are written together. If another transaction takes one of the keys meanwhile, the
  batch is rolled back, and each call gets its own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from schedd.core.runs.records import ChainRefused, Create, JobRecord, StoreConflict
from schedd.store import audit
from schedd.store.connection.database import RolledBack
from schedd.store.connection.prepared import PreparedStatement
from schedd.store.jobs import jobs
from schedd.store.jobs.requested_jobs import job_columns
from schedd.store.statements import arrays

CREATE: Final = PreparedStatement(f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(places)s::int[], %(keyspaces)s::text[], %(calls)s::text[],
        %(keys)s::text[], %(digests)s::bytea[], %(namespaces)s::text[], %(jobs)s::uuid[],
        %(names)s::text[], %(shards)s::int[], %(generations)s::int[], %(specs)s::bytea[],
        %(created)s::timestamptz[], %(updated)s::timestamptz[], %(actors)s::text[],
        %(retentions)s::float8[], %(due)s::timestamptz[], %(nominal)s::timestamptz[],
        %(line_ids)s::bigint[], {audit.ARRAYS})
      AS b(place, keyspace, call, key, digest, namespace, job_id, name, shard, generation, spec,
        created_at, updated_at, actor, retention, due_at, nominal, line, {audit.NAMES})
), stored AS (
    INSERT INTO jobs (job_id, namespace, name, shard, generation, spec, ephemeral, created_at,
        created_by, updated_at, pause_note, paused_by, retention)
    SELECT job_id, namespace, name, shard, generation, spec, false, created_at, actor, updated_at,
        '', '', justify_hours(retention * interval '1 s')
    FROM b WHERE NOT EXISTS (
        SELECT FROM idempotency_keys k
        WHERE k.namespace = b.keyspace AND k.call = b.call AND k.key = b.key)
    ORDER BY namespace, name
    ON CONFLICT (namespace, name) WHERE deleted_at IS NULL AND NOT ephemeral DO NOTHING
    RETURNING job_id
), timed AS (
    INSERT INTO timers (job_id, shard, due_at, nominal, generation, paused, fired, line,
        line_generation)
    SELECT job_id, shard, due_at, nominal, generation, false, 0, line, generation
    FROM b JOIN stored USING (job_id)
), taken AS (
    INSERT INTO idempotency_keys (namespace, call, key, digest, made, created_at)
    SELECT keyspace, call, key, digest, job_id, clock_timestamp()
    FROM b JOIN stored USING (job_id) WHERE key IS NOT NULL
    ORDER BY keyspace, call, key
    ON CONFLICT (namespace, call, key) DO NOTHING RETURNING made
), logged AS (
    {audit.INSERT} FROM b JOIN stored USING (job_id) ORDER BY place {audit.WITH_KEY}
)
SELECT place, key IS NULL OR job_id IN (SELECT made FROM taken) FROM b JOIN stored USING (job_id)
""")


def create(connection: Connection, create: Create) -> JobRecord | StoreConflict | ChainRefused:
    """Store one job."""
    return jobs.create_job(connection, create.record, create.key, create.entry)


def create_all(connection: Connection, creates: Sequence[Create]) -> dict[int, JobRecord]:
    """Store several jobs. Returns records by place; calls left out need their own transaction."""
    chosen = _first_of_each(creates)
    rows = CREATE.execute(connection, _columns(creates, chosen), len(chosen))
    if not all(keyed for _, keyed in rows):
        raise RolledBack({})
    return {place: creates[place].record for place, _ in sorted(rows)}


def _first_of_each(creates: Sequence[Create]) -> list[int]:
    """Return the places of the calls whose key and name no earlier call has."""
    chosen: list[int] = []
    seen: set[object] = set()
    for place, each in enumerate(creates):
        key, new = each.key, each.record.definition
        identities: list[object] = [("name", arrays.clean(new.namespace), arrays.clean(new.name))]
        if key is not None:
            identities.append((key.namespace, arrays.clean(key.call), arrays.clean(key.key)))
        if seen.isdisjoint(identities):
            chosen.append(place)
        seen.update(identities)
    return chosen


def _columns(creates: Sequence[Create], places: Sequence[int]) -> dict[str, object]:
    chosen = [creates[place] for place in places]
    records = [each.record for each in chosen]
    of_job = job_columns(places, records, [each.key for each in chosen])
    return (
        of_job
        | audit.columns([each.entry for each in chosen])
        | {
            "updated": arrays.instants([record.updated_at for record in records]),
            "due": arrays.instants([record.due_at for record in records]),
            "nominal": arrays.instants([record.nominal for record in records]),
        }
    )
