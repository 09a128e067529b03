"""Pools: set, paused, deleted, and who uses them. As attempts are handed out: `pooling`.

    lock the pool's shard ─→ its row ─→ write ─→ audit

Invariants
- Who changes a pool holds its shard's row, so that no batch of its runs is in flight beside it.
- A job's definition that names a pool is written while the pool's row is held FOR KEY SHARE
  (`hold`): so no job is left in a pool that was deleted, and who changes one waits for no job.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select
from sqlalchemy.dialects.postgresql import insert

from schedd.core.cluster.partition import shard_of_pool
from schedd.core.ids import JobId
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.pools import (
    PoolKey,
    PoolRecord,
    PoolUsage,
    PoolUse,
    PoolUser,
    StartRate,
    pool_key,
)
from schedd.core.runs.records import StoreConflict
from schedd.store import audit
from schedd.store.connection.database import Database
from schedd.store.dispatch import pool_places
from schedd.store.schema.pool_tables import pool_turns, pools
from schedd.store.schema.tables import jobs, live
from schedd.store.statements import arrays
from schedd.store.statements.arrays import clean
from schedd.store.statements.operations import operations
from schedkit.records import dataclass, replace

LOCK_SHARD: Final = "SELECT 1 FROM shards WHERE id = %s FOR NO KEY UPDATE"


def hold(connection: Connection, namespace: str, name: str) -> bool:
    """Have it stay until the end of the transaction; False: there is none."""
    found = (
        select(pools.c.name).where(_is(namespace, name)).with_for_update(read=True, key_share=True)
    )
    return connection.execute(found).first() is not None


def hold_of(connection: Connection, job_id: JobId) -> bool:
    """Have the pool that this job names stay, as `hold`; with the job's timer locked. False: it is
    gone, as it may be of a submitted run that has ended.
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
    entry: AuditEntry,
) -> PoolRecord | StoreConflict:
    """Make it, or write what it allows. `seen_version`: refused if it is another; 0: whatever."""
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
    entry: AuditEntry,
    noted: Callable[[PoolRecord], str] | None = None,
) -> PoolRecord | None:
    """Have nothing of it start, or start again. None: there is none. `noted`: what the audit has of
    how it stands.
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
    entry: AuditEntry,
    most: int,
    noted: Callable[[PoolRecord], str] | None = None,
) -> bool | list[PoolUser]:
    """Delete it. False: there is none; some (at most `most`): these use it, and it stays. `noted`:
    what the audit has of what went.
    """
    connection.exec_driver_sql(LOCK_SHARD, (shard_of_pool(namespace, name),))
    held = select(pools).where(_is(namespace, name)).with_for_update()
    gone = connection.execute(held).first()
    if gone is None:
        return False
    here = (jobs.c.namespace == clean(namespace)) & (jobs.c.pool == name)
    alive = (
        select(live.c.run_id)
        .where(live.c.shard == shard_of_pool(namespace, name), live.c.job_id == jobs.c.job_id)
        .limit(1)
    )
    users = connection.execute(
        select(jobs.c.name, jobs.c.ephemeral, alive.scalar_subquery().label("run_id"))
        .where(here, jobs.c.deleted_at.is_(None), ~jobs.c.ephemeral | alive.exists())
        .order_by(jobs.c.ephemeral, jobs.c.name)
        .limit(most)
    )
    if found := [
        PoolUser(run=row.run_id) if row.ephemeral else PoolUser(row.name) for row in users
    ]:
        return found
    # What still runs, of jobs that have moved, counts again if a pool of that name is made anew.
    connection.exec_driver_sql(
        pool_places.SETTLE, {"pools": arrays.texts([pool_key(namespace, name)])}
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
    """It, and what is in it."""
    record = _found(connection, namespace, name)
    return None if record is None else (record, _use(connection, record))


def list_pools(
    connection: Connection, namespace: str, after: str, limit: int
) -> list[tuple[PoolRecord, PoolUse]]:
    """By name, past `after`."""
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
    standing = pool_places.standings(connection, [key])[key]
    here = (jobs.c.namespace == record.namespace) & (jobs.c.pool == record.name)
    used = select(func.count()).where(here, jobs.c.deleted_at.is_(None), ~jobs.c.ephemeral)
    shard = shard_of_pool(record.namespace, record.name)
    alive = (
        select(func.count())
        .select_from(live.join(jobs, jobs.c.job_id == live.c.job_id))
        .where(live.c.shard == shard, here)
    )
    runs = connection.execute(alive).scalar_one()
    waiting = max(0, runs - standing.running)
    recent = standing.recent if record.rate else 0
    return PoolUse(connection.execute(used).scalar_one(), standing.running, waiting, recent)


def _is(namespace: str, name: str) -> Any:
    return (pools.c.namespace == clean(namespace)) & (pools.c.name == clean(name))


def _found(connection: Connection, namespace: str, name: str) -> PoolRecord | None:
    row = connection.execute(select(pools).where(_is(namespace, name))).first()
    return None if row is None else _record(row)


def _stored(connection: Connection, namespace: str, name: str) -> PoolRecord:
    return _record(connection.execute(select(pools).where(_is(namespace, name))).one())


def _record(row: Row[Any]) -> PoolRecord:
    per = None if row.rate_seconds is None else timedelta(seconds=row.rate_seconds)
    return PoolRecord(
        row.namespace,
        row.name,
        row.run_limit,
        None if row.rate_count is None or per is None else StartRate(row.rate_count, per),
        row.version,
        row.paused,
        row.pause_note,
        row.paused_by,
        row.updated_at,
        row.updated_by,
    )


@operations("pools")
@dataclass(frozen=True, slots=True)
class PostgresPoolStore:
    """`schedd.ports.PoolStore` over PostgreSQL."""

    database: Database

    async def set(
        self,
        namespace: str,
        name: str,
        limit: int | None,
        rate: StartRate | None,
        seen_version: int,
        actor: str,
        audit: AuditEntry,
    ) -> PoolRecord | StoreConflict:
        """Make it, or write what it allows."""
        wish = (namespace, name, limit, rate, seen_version, actor, audit)
        return await self.database.call(lambda c: set_pool(c, *wish))

    async def pause(
        self,
        namespace: str,
        name: str,
        paused: bool,
        note: str,
        actor: str,
        audit: AuditEntry,
        noted: Callable[[PoolRecord], str] | None = None,
    ) -> PoolRecord | None:
        """Pause it, or resume it."""
        wish = (namespace, name, paused, note, actor, audit, noted)
        return await self.database.call(lambda c: pause_pool(c, *wish))

    async def there(self, namespace: str, name: str) -> bool:
        """Whether there is such a pool."""
        return await self.database.call(lambda c: _found(c, namespace, name) is not None)

    async def standings(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        """How full these are."""
        return await self.database.call(lambda c: pool_places.standings(c, pools))

    async def get(self, namespace: str, name: str) -> tuple[PoolRecord, PoolUse] | None:
        """It, and what is in it."""
        return await self.database.call(lambda c: get_pool(c, namespace, name))

    async def list(
        self, namespace: str, after: str, limit: int
    ) -> builtins.list[tuple[PoolRecord, PoolUse]]:
        """By name."""
        return await self.database.call(lambda c: list_pools(c, namespace, after, limit))

    async def delete(
        self,
        namespace: str,
        name: str,
        audit: AuditEntry,
        most: int,
        noted: Callable[[PoolRecord], str] | None = None,
    ) -> bool | builtins.list[PoolUser]:
        """False: there is none; names: who uses it."""
        return await self.database.call(
            lambda c: delete_pool(c, namespace, name, audit, most, noted)
        )
