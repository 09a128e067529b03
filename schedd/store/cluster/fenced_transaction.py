"""Run an owner's transaction: lock the shard rows first, leave out lost shards (P1.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from schedd.core.ids import ShardId
from schedd.core.runs.model import Claim, OfShard
from schedd.store.cluster.fence import lock_shards
from schedd.store.connection.database import Database
from schedd.store.statements.bisect import halved

A = TypeVar("A")
T = TypeVar("T")


S = TypeVar("S", bound=OfShard)


async def fenced_rows(
    database: Database,
    claim: Claim,
    items: Sequence[S],
    body: Callable[[Connection, Sequence[S]], list[A]],
) -> list[A]:
    """Run `fenced` for a body that returns rows. Items that PostgreSQL rejects are set aside."""

    async def write(batch: Sequence[S]) -> list[A]:
        _, answer = await fenced(database, claim, batch, body)
        return answer or []

    answers, _ = await halved(items, write) if items else ([], [])
    return [row for _, rows in answers for row in rows]


async def fenced(
    database: Database,
    claim: Claim,
    items: Sequence[S],
    body: Callable[[Connection, Sequence[S]], T],
) -> tuple[frozenset[ShardId], T | None]:
    """Return the lost shards, and the body's answer for the other items (None: no items)."""

    def transaction(connection: Connection) -> tuple[frozenset[ShardId], T | None]:
        owned = lock_shards(connection, claim)
        mine = [item for item in items if item.shard in owned]
        return frozenset(claim.epochs) - owned, body(connection, mine) if mine else None

    return await database.on_lane(claim.epochs, transaction)


def shards_of(items: Sequence[OfShard]) -> set[ShardId]:
    """Return the shards of these items."""
    return {item.shard for item in items}
