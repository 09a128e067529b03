"""The columns of batches of new jobs that `job_insert` and `submits` share."""

from __future__ import annotations

from collections.abc import Sequence

from schedd.core.runs.records import Idempotency, JobRecord
from schedd.store.statements import arrays


def job_columns(
    places: Sequence[int], records: Sequence[JobRecord], keys: Sequence[Idempotency | None]
) -> dict[str, object]:
    """Return the columns of the jobs and keys at these places of a batch."""
    new = [record.definition for record in records]
    return {
        "places": arrays.numbers(places),
        "keyspaces": arrays.texts([key.namespace if key else None for key in keys]),
        "calls": arrays.texts([key.call if key else None for key in keys]),
        "keys": arrays.texts([key.key if key else None for key in keys]),
        "digests": arrays.blobs([key.digest if key else None for key in keys]),
        "namespaces": arrays.texts([one.namespace for one in new]),
        "jobs": arrays.ids([one.job_id for one in new]),
        "names": arrays.texts([one.name for one in new]),
        "shards": arrays.numbers([record.shard for record in records]),
        "generations": arrays.numbers([one.generation for one in new]),
        "line_ids": arrays.numbers([one.line for one in new]),
        "specs": arrays.blobs([one.spec for one in new]),
        "created": arrays.instants([record.created_at for record in records]),
        "actors": arrays.texts([record.created_by for record in records]),
        "retentions": arrays.numbers(
            [None if one.retention is None else one.retention.total_seconds() for one in new]
        ),
    }
