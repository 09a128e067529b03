"""Idempotency keys: for 24 h the same key and body return what the first call created.

The row of the key is the lock: a second call with the key waits until the first has ended.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from schedd.core.ids import Id, JobId
from schedd.core.runs.records import Idempotency, StoreConflict
from schedd.store.connection.database import RolledBack
from schedd.store.schema.tables import idempotency_keys as keys
from schedd.store.statements.arrays import clean

LIFE = timedelta(hours=24)

_FRESH = insert(keys).values(created_at=func.clock_timestamp())
_TAKE = _FRESH.on_conflict_do_update(
    index_elements=["namespace", "call", "key"],
    set_={
        "digest": _FRESH.excluded.digest,
        "made": _FRESH.excluded.made,
        "created_at": _FRESH.excluded.created_at,
    },
    where=keys.c.created_at < func.statement_timestamp() - LIFE,
).returning(keys.c.made)
"""Built once: building a statement costs more than running it."""


def claim(connection: Connection, wanted: Idempotency | None, makes: Id) -> Id | None:
    """Claim the key for the object that the call creates. Returns the id of the earlier object if
    the key is in use. Rolls the transaction back with a `StoreConflict` if the key was used with
    another body.
    """
    if wanted is None:
        return None
    key = {
        "namespace": clean(wanted.namespace),
        "call": clean(wanted.call),
        "key": clean(wanted.key),
    }
    taken = connection.execute(_TAKE, {**key, "digest": wanted.digest, "made": makes})
    if taken.first() is not None:
        return None
    digest, made = connection.execute(
        select(keys.c.digest, keys.c.made).where(*(keys.c[name] == key[name] for name in key))
    ).one()
    if bytes(digest) != wanted.digest:
        raise RolledBack(StoreConflict("key", JobId(made)))
    earlier: Id = made
    return earlier


def forget_old(connection: Connection, limit: int = 5_000) -> int:
    """Delete expired keys, at most `limit`. Returns how many."""
    old = (
        select(keys.c.namespace, keys.c.call, keys.c.key)
        .where(keys.c.created_at < func.statement_timestamp() - LIFE)
        .limit(limit)
        .subquery()
    )
    done = connection.execute(
        keys.delete().where(
            keys.c.namespace == old.c.namespace, keys.c.call == old.c.call, keys.c.key == old.c.key
        )
    )
    return done.rowcount
