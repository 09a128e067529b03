"""Set, pause, delete and list pools. `dispatch/pool_limits` applies them to dispatched runs.

    lock the pool's shard ─→ its row ─→ write ─→ audit

Invariants
- A change of a pool locks its shard's row, so no batch of its runs is written at the same time.
- A job's definition that names a pool is written while the pool's row is locked FOR KEY SHARE
  (`hold`). So no job is left in a deleted pool, and a change of a pool waits for no job.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select
from sqlalchemy.dialects.postgresql import insert

from schedd.core.cluster.partition import shard_of_pool
from schedd.core.ids import JobId
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.pools import PoolKey, PoolRecord, PoolUse, PoolUser, StartRate, pool_key
from schedd.core.runs.records import StoreConflict
from schedd.store import audit
from schedd.store.connection.database import Database, in_transaction
from schedd.store.dispatch import pool_limits
from schedd.store.schema.tables import jobs, pool_turns, pools
from schedd.store.statements import arrays
from schedd.store.statements.arrays import clean
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import record_of
from schedkit.records import dataclass, replace

USERS: Final = """
SELECT * FROM (
    SELECT j.name, j.ephemeral, (SELECT l.run_id FROM live l
        WHERE l.shard = %(shard)s AND l.job_id = j.job_id LIMIT 1) AS run_id
    FROM jobs j WHERE j.namespace = %(namespace)s AND j.pool = %(name)s AND j.deleted_at IS NULL
) u WHERE NOT ephemeral OR run_id IS NOT NULL ORDER BY ephemeral, name LIMIT %(most)s
"""

USE: Final = """
SELECT (SELECT count(*) FROM jobs WHERE namespace = %(namespace)s AND pool = %(name)s
        AND deleted_at IS NULL AND NOT ephemeral),
    (SELECT count(*) FROM live l JOIN jobs j ON j.job_id = l.job_id
     WHERE l.shard = %(shard)s AND j.namespace = %(namespace)s AND j.pool = %(name)s)
"""

LOCK_SHARD: Final = "SELECT 1 FROM shards WHERE id = %s FOR NO KEY UPDATE"


def hold(connection: Connection, namespace: str, name: str) -> bool:
    """Lock the pool against deletion until the transaction ends. False: it doesn't exist."""
    found = (
        select(pools.c.name).where(_is(namespace, name)).with_for_update(read=True, key_share=True)
    )
    return connection.execute(found).first() is not None


def hold_of(connection: Connection, job_id: JobId) -> bool:
    """Lock the job's pool, as `hold`. The caller has locked the job's timer. False: the pool was
    deleted, as may happen after a submitted run has ended.
    """
    of = select(jobs.c.namespace, jobs.c.pool).where(jobs.c.job_id == job_id)
    row = connection.execute(of).first()
    return row is None or not row.pool or hold(connection, row.namespace, row.pool)


def set_pool(
    connection: Connection,
    namespace: str,
    name: str,
    limit: int | None,
    rate: StartRate | None,
    seen_version: int,
    actor: str,
    entry: AuditRecord,
) -> PoolRecord | StoreConflict:
    """Create the pool or change its limits. `StoreConflict`: the version isn't `seen_version`; 0
    accepts any version.
    """
    shard = shard_of_pool(namespace, name)
    connection.exec_driver_sql(LOCK_SHARD, (shard,))
    before = _found(connection, namespace, name)
    if seen_version and (before is None or before.version != seen_version):
        return StoreConflict("etag")
    if before is not None and (before.limit, before.rate) == (limit, rate):
        return before
    said = {
        "run_limit": limit,
        "rate_count": rate and rate.count,
        "rate_seconds": rate and rate.per.total_seconds(),
        "updated_at": func.clock_timestamp(),
        "updated_by": clean(actor),
    }
    connection.execute(
        insert(pools)
        .values(namespace=namespace, name=name, shard=shard, **said)
        .on_conflict_do_update(
            index_elements=["namespace", "name"], set_=said | {"version": pools.c.version + 1}
        )
    )
    audit.write_all(connection, [entry])
    return _stored(connection, namespace, name)


def pause_pool(
    connection: Connection,
    namespace: str,
    name: str,
    paused: bool,
    note: str,
    actor: str,
    entry: AuditRecord,
    noted: Callable[[PoolRecord], str] | None = None,
) -> PoolRecord | None:
    """Pause or resume the pool. None: it doesn't exist. `noted`: returns the audit log's text for
    the pool's state.
    """
    connection.exec_driver_sql(LOCK_SHARD, (shard_of_pool(namespace, name),))
    before = _found(connection, namespace, name)
    if before is None:
        return None
    if before.paused == paused and (not paused or note in ("", before.pause_note)):
        return before
    connection.execute(
        pools.update()
        .where(_is(namespace, name))
        .values(
            paused=paused,
            pause_note=clean(note or before.pause_note) if paused else "",
            paused_by=clean(actor) if paused else "",
            version=pools.c.version + 1,
            updated_at=func.clock_timestamp(),
            updated_by=clean(actor),
        )
    )
    now = _stored(connection, namespace, name)
    if noted is not None:
        entry = replace(entry, before=noted(before), after=noted(now))
    audit.write_all(connection, [entry])
    return now


def delete_pool(
    connection: Connection,
    namespace: str,
    name: str,
    entry: AuditRecord,
    most: int,
    noted: Callable[[PoolRecord], str] | None = None,
) -> bool | list[PoolUser]:
    """Delete the pool. False: it doesn't exist. Users, at most `most`: these use it, and it isn't
    deleted. `noted`: returns the audit log's text for the deleted pool.
    """
    connection.exec_driver_sql(LOCK_SHARD, (shard_of_pool(namespace, name),))
    held = select(pools).where(_is(namespace, name)).with_for_update()
    gone = connection.execute(held).first()
    if gone is None:
        return False
    asked = {
        "shard": shard_of_pool(namespace, name),
        "namespace": clean(namespace),
        "name": name,
        "most": most,
    }
    users = connection.exec_driver_sql(USERS, asked)
    if found := [
        PoolUser(run=row.run_id) if row.ephemeral else PoolUser(row.name) for row in users
    ]:
        return found
    # Running attempts of jobs that have moved count again if a pool with that name is created.
    connection.exec_driver_sql(
        pool_limits.END_TURNS, {"pools": arrays.texts([pool_key(namespace, name)])}
    )
    mine = pool_turns.c.pool == pool_key(namespace, name)
    connection.execute(pool_turns.delete().where(mine, pool_turns.c.ended))
    connection.execute(pools.delete().where(_is(namespace, name)))
    before = entry.before if noted is None else noted(_record(gone))
    audit.write_all(connection, [replace(entry, before=before)])
    return True


def get_pool(
    connection: Connection, namespace: str, name: str
) -> tuple[PoolRecord, PoolUse] | None:
    record = _found(connection, namespace, name)
    return None if record is None else (record, _use(connection, record))


def list_pools(
    connection: Connection, namespace: str, after: str, limit: int
) -> list[tuple[PoolRecord, PoolUse]]:
    rows = connection.execute(
        select(pools)
        .where(pools.c.namespace == clean(namespace), pools.c.name > clean(after))
        .order_by(pools.c.name)
        .limit(limit)
    )
    found = [_record(row) for row in rows]
    return [(record, _use(connection, record)) for record in found]


def _use(connection: Connection, record: PoolRecord) -> PoolUse:
    key = PoolKey(pool_key(record.namespace, record.name))
    usage = pool_limits.usage(connection, [key])[key]
    where = {
        "shard": shard_of_pool(record.namespace, record.name),
        "namespace": record.namespace,
        "name": record.name,
    }
    used, runs = connection.exec_driver_sql(USE, where).one()
    recent = usage.recent if record.rate else 0
    return PoolUse(used, usage.running, max(0, runs - usage.running), recent)


def _is(namespace: str, name: str) -> Any:
    return (pools.c.namespace == clean(namespace)) & (pools.c.name == clean(name))


def _found(connection: Connection, namespace: str, name: str) -> PoolRecord | None:
    row = connection.execute(select(pools).where(_is(namespace, name))).first()
    return None if row is None else _record(row)


def _stored(connection: Connection, namespace: str, name: str) -> PoolRecord:
    return _record(connection.execute(select(pools).where(_is(namespace, name))).one())


def _record(row: Row[Any]) -> PoolRecord:
    rate = None
    if row.rate_count is not None and row.rate_seconds is not None:
        rate = StartRate(row.rate_count, timedelta(seconds=row.rate_seconds))
    return record_of(PoolRecord, row, limit=row.run_limit, rate=rate)


@operations("pools")
@dataclass(frozen=True, slots=True)
class PoolStore:
    """Reads and writes of user calls on pools. Dispatch enforces their limits (`OwnerStore`)."""

    database: Database

    set = in_transaction(set_pool)
    pause = in_transaction(pause_pool)

    async def there(self, namespace: str, name: str) -> bool:
        return await self.database.call(lambda c: _found(c, namespace, name) is not None)

    usage = in_transaction(pool_limits.usage)
    get = in_transaction(get_pool)
    list = in_transaction(list_pools)
    delete = in_transaction(delete_pool)
