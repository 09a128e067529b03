"""Very many jobs alike: what a call has made of one, so many times more.

A call takes a member some 4 ms of a processor, so that 30,000 would take two busy cores minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from faults.world.postgres import Server
from schedd.core.cluster.partition import shard_of
from schedd.core.ids import JobId, new_id

COPY = """
INSERT INTO {table} ({own}, {same}) SELECT {values}, {same}
FROM unnest(%s::uuid[], %s::int[], %s::text[]) c(c_id, c_shard, c_name), {table} m
WHERE m.job_id = %s
"""
COPIES = {
    "jobs": {
        "own": "job_id, shard, name",
        "values": "c_id, c_shard, c_name",
        "same": "namespace, generation, spec, ephemeral, created_at, created_by, updated_at,"
        " pause_note, paused_by",
    },
    "timers": {
        "own": "job_id, shard",
        "values": "c_id, c_shard",
        "same": "due_at, nominal, generation, paused",
    },
}


def copies(postgres: Server, model: str, names: Sequence[str]) -> list[str]:
    """The job of the id `model` under each of these names, with its timer; their ids. And the
    statistics that autovacuum would have made meanwhile.
    """
    jobs = [JobId(new_id()) for _ in names]
    ids, shards = [str(job) for job in jobs], [shard_of(job) for job in jobs]
    for table, columns in COPIES.items():
        postgres.sql(COPY.format(table=table, **columns), ids, shards, list(names), model)
    postgres.sql("ANALYZE jobs, timers")
    return ids
