"""Run an owner's transaction: lock the shard rows first, leave out lost shards (P1.1)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from schedd.core.ids import ShardId
from schedd.core.runs.model import Claim, OfShard
from schedd.store.cluster.fence import lock_shards
from schedd.store.connection.database import Database, HasDatabase
from schedd.store.statements.bisect import halved

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound=OfShard)

FencedBody = Callable[Concatenate[Connection, Claim, Sequence[S], P], A]
"""Part of a transaction after the fence. Its items are those whose shards the claim still owns."""


def in_fence(
    body: FencedBody[S, P, list[A]], before_commit: Callable[[], None] = lambda: None
) -> Callable[Concatenate[HasDatabase, Claim, Sequence[S], P], Coroutine[Any, Any, list[A]]]:
    """Return the method of a store that runs this body by `fenced_batches`. It returns all rows."""

    @wraps(body)
    async def method(
        store: HasDatabase,
        claim: Claim,
        items: Sequence[S],
        /,
        *arguments: P.args,
        **named: P.kwargs,
    ) -> list[A]:
        def fenced_body(connection: Connection, mine: Sequence[S]) -> list[A]:
            rows = body(connection, claim, mine, *arguments, **named)
            before_commit()
            return rows

        batches = await fenced_batches(store.database, claim, items, fenced_body)
        return [row for rows in batches for row in rows]

    return method


async def fenced_batches(
    database: Database,
    claim: Claim,
    items: Sequence[S],
    body: Callable[[Connection, Sequence[S]], T],
) -> list[T]:
    """Run `fenced`, and return the body's answer for each batch. Items that PostgreSQL rejects are
    set aside.
    """

    async def write(batch: Sequence[S]) -> T | None:
        return (await fenced(database, claim, batch, body))[1]

    answers, _ = await halved(items, write)
    return [answer for _, answer in answers if answer is not None]


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
    return {item.shard for item in items}
