"""The columns of batches of new jobs that `job_insert` and `submits` have in common.

    calls ─▶ OWN: id, name, shard, time, key …, a row for each call
          └▶ SHARED: definition, actor …, a row for each kind of calls that differ in their own only

Invariant: a key is one of its job's namespace.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime
from typing import Final

from schedd.core.ids import JobId, ShardId
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import Idempotency, JobRecord
from schedd.store import audit
from schedd.store.statements import arrays
from schedd.store.statements.keys import instant

OWN: Final = f"""%(kinds)s::int[], %(jobs)s::uuid[], %(names)s::text[], %(shards)s::int[],
    %(created)s::bigint[], %(keys)s::text[], %(digests)s::bytea[], {audit.OWN}"""
OWN_NAMES: Final = f"kind, job_id, name, shard, created, key, digest, {audit.OWN_NAMES}"

SHARED: Final = f"""%(namespaces)s::text[], %(generations)s::int[], %(specs)s::bytea[],
    %(actors)s::text[], %(retentions)s::float8[], %(line_ids)s::bigint[], {audit.SHARED}"""
SHARED_NAMES: Final = f"""namespace, generation, spec, actor, retention, line,
    {audit.SHARED_NAMES}"""


def rows(
    *, own: str = "", own_names: str = "", shared: str, shared_names: str, also: str = ""
) -> str:
    """Return the SQL of a batch's rows, numbered by `place` from 1 on. `own` and `shared` are
    parameters of the statement; `also` are computed columns.
    """
    # Of an inner join the planner expects one row, and joins that to others by nested loops.
    return f"""
    SELECT own.*, {instant("created")} AS created_at, {also} shared.*
    FROM unnest({OWN}{own}) WITH ORDINALITY AS own({OWN_NAMES}{own_names}, place)
    LEFT JOIN unnest({SHARED}, {shared})
      WITH ORDINALITY AS shared({SHARED_NAMES}, {shared_names}, number) ON number = kind"""


def numbered(kinds: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Return the number of each call's kind, from 1 on, and the place of the first of each kind."""
    first: dict[Hashable, int] = {}
    for place, kind in enumerate(kinds):
        first.setdefault(kind, place)
    numbers = {kind: number for number, kind in enumerate(first, 1)}
    return [numbers[kind] for kind in kinds], [*first.values()]


def first_of_each(calls: Iterable[Sequence[object]]) -> list[int]:
    """Return the places of the calls that share no identity with an earlier call."""
    chosen: list[int] = []
    seen: set[object] = set()
    for place, identities in enumerate(calls):
        if seen.isdisjoint(identities):
            chosen.append(place)
        seen.update(identities)
    return chosen


def key_of(key: Idempotency | None) -> list[object]:
    """Return the identity of a call with a key."""
    return [(arrays.clean(key.namespace), key.call, arrays.clean(key.key))] if key else []


def own_columns(
    kinds: Sequence[int],
    jobs: Sequence[tuple[JobId, str, ShardId, datetime]],
    keys: Sequence[Idempotency | None],
    entries: Sequence[AuditRecord],
) -> dict[str, object]:
    ids, names, shards, created = zip(*jobs, strict=True) if jobs else ((),) * 4
    return {
        "kinds": arrays.numbers(kinds),
        "jobs": arrays.ids(ids),
        "names": arrays.texts(names),
        "shards": arrays.numbers(shards),
        "created": arrays.microseconds(created),
        "keys": arrays.texts([key.key if key else None for key in keys]),
        "digests": arrays.blobs([key.digest if key else None for key in keys]),
        **audit.own_columns(entries),
    }


def shared_columns(
    records: Sequence[JobRecord], entries: Sequence[AuditRecord]
) -> dict[str, object]:
    new = [record.definition for record in records]
    return {
        "namespaces": arrays.texts([one.namespace for one in new]),
        "generations": arrays.numbers([one.generation for one in new]),
        "specs": arrays.blobs([one.spec for one in new]),
        "actors": arrays.texts([record.created_by for record in records]),
        "retentions": arrays.numbers(
            [None if one.retention is None else one.retention.total_seconds() for one in new]
        ),
        "line_ids": arrays.numbers([one.line for one in new]),
        **audit.shared_columns(entries),
    }
