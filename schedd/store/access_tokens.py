"""Access tokens: made, found, revoked, and forgotten a while after they have ended.

Of who made one the row of a login says `parent`, that of any other token `maker`: by this they are
told apart.

Invariants
- What is revoked takes along all that was made by it, at any depth, by one mark: whoever reads a
  row reads those of its makers, all the way up. So it costs the same however much was made. Those
  that are found near are marked, too, for who looks at them, and to be told; none has to be.
- Nothing is made by what was revoked, however lately: one lock, which makers share and who revokes
  has alone, for no longer than MOST_MARKED rows take.
- A token has MOST_LOGINS at a time, and those that newer ones ended are dead by their own mark.
- A row outlives those of what was made by it: with it they would be forgotten, too. Nor are more
  than so many deleted at a time.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    Uuid,
    any_,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
)

from schedd.core.ids import AccessTokenId
from schedd.core.jobs.access_tokens import AccessToken
from schedd.core.jobs.rights import Role
from schedd.core.runs.model import AuditEntry
from schedd.ports.access_tokens import MOST_MARKED, Noted, Revoked
from schedd.store import audit
from schedd.store.connection.database import Database
from schedd.store.schema.tables import access_tokens as tokens
from schedd.store.statements.arrays import clean, ids
from schedd.store.statements.rows import decoded
from schedkit.records import dataclass, replace

KEPT: Final = timedelta(days=30)
"""After its end: so long a list says that it was there."""

MOST_LOGINS: Final = 100
"""That one token has at a time: a new one ends the oldest."""

_LOCK: Final = "hashtext('schedd access tokens')"

_BY_INDEX: Final = "; ".join(
    f"SET LOCAL {name} = off"
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
)
"""Where one token has made nearly all there are, statistics take that for what each has made."""

_NO_JIT: Final = "SET LOCAL jit = off"
"""A few looks up for each row are estimated dear enough to be compiled."""

_made: Final = tokens.alias("made")
_MAKER: Final = func.coalesce(tokens.c.maker, tokens.c.parent)
_UP: Final = """(
    WITH RECURSIVE up (id, maker, revoked_at) AS (
        SELECT m.token_id, COALESCE(m.maker, m.parent), m.revoked_at FROM access_tokens m
        WHERE m.token_id = COALESCE(access_tokens.maker, access_tokens.parent)
      UNION ALL
        SELECT m.token_id, COALESCE(m.maker, m.parent), m.revoked_at
        FROM up JOIN access_tokens m ON m.token_id = up.maker)
    SELECT {} FROM up)
"""
"""Over all that it was made by: their depth is bounded by who makes them (`schedd.api`)."""
_ALL: Final = select(
    tokens,
    _MAKER.label("made_by"),
    literal_column(_UP.format("min(revoked_at)")).label("maker_revoked_at"),
    literal_column(_UP.format("array_agg(id::text)")).label("makers"),
)


def create(connection: Connection, token: AccessToken, entry: AuditEntry) -> bool:
    """Store a new one; whether it was: its maker is there, and not revoked."""
    if token.maker is not None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({_LOCK})")
        maker = find(connection, token.maker)
        if maker is None or maker.revoked:
            return False
    row = {
        "token_id": token.id,
        "digest": token.digest,
        "name": clean(token.name),
        "role": token.role.name,
        "namespaces": [*token.namespaces],
        "created_at": token.created_at,
        "created_by": clean(token.created_by),
        "expires_at": token.expires_at,
        "revoked_by": "",
        "parent": token.maker if token.login else None,
        "maker": None if token.login else token.maker,
    }
    ended = _outdated(connection, token) if token.login and token.maker is not None else []
    connection.execute(tokens.insert().values(row))
    of_ended = [
        replace(entry, action="logout", object=f"token/{each}", before="", after="")
        for each in ended
    ]
    audit.write_all(connection, [*of_ended, entry])
    return True


def find(connection: Connection, token: AccessTokenId) -> AccessToken | None:
    """It, as it stands."""
    row = connection.execute(_ALL.where(tokens.c.token_id == token)).first()
    return None if row is None else _token_of(row)


def find_all(connection: Connection, wanted: Collection[AccessTokenId]) -> list[AccessToken]:
    """Those of these that there are."""
    connection.exec_driver_sql(_NO_JIT)
    these = any_(literal(ids(wanted)).cast(ARRAY(Uuid)))
    found = connection.execute(_ALL.where(tokens.c.token_id == these))
    return decoded("access_tokens", found, _token_of)


def list_tokens(
    connection: Connection, after: tuple[datetime, AccessTokenId] | None, limit: int
) -> list[AccessToken]:
    """Newest first; logins left out."""
    connection.exec_driver_sql(_NO_JIT)
    at = tuple_(tokens.c.created_at, tokens.c.token_id)
    query = _ALL.where(tokens.c.parent.is_(None)).order_by(at.desc()).limit(limit)
    if after is not None:
        query = query.where(at < after)
    return decoded("access_tokens", connection.execute(query), _token_of)


def revoke(
    connection: Connection,
    token: AccessTokenId,
    by: str,
    entry: AuditEntry,
    noted: Noted,
) -> Revoked | None:
    """It ends now, with all that was made by it; the first time stays."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    connection.exec_driver_sql(_BY_INDEX)
    theirs = _living_of(token).limit(MOST_MARKED + 1).cte("theirs")
    changed = (
        tokens.update()
        .where(tokens.c.token_id.in_(select(theirs.c.token_id)), tokens.c.revoked_at.is_(None))
        .values(revoked_at=func.clock_timestamp(), revoked_by=clean(by))
        .returning(tokens.c.token_id)
    )
    ended = {AccessTokenId(row.token_id) for row in connection.execute(changed)}
    found = find(connection, token)
    if found is None:
        return None
    with_it = sorted(ended - {token})
    if ended:
        before, after = noted(found, with_it)
        audit.write_all(connection, [replace(entry, before=before, after=after)])
    return Revoked(found, with_it)


def forget_ended(connection: Connection, limit: int = 2_000) -> int:
    """Delete those that ended long ago, logins as soon as they have ended, where nothing is there
    any more that was made by them: at most `limit`; how many.
    """
    connection.exec_driver_sql(_BY_INDEX)
    now = func.statement_timestamp()
    made = select(_made.c.token_id).where(_by(_made, tokens.c.token_id))
    old = (
        select(tokens.c.token_id)
        .where(tokens.c.expires_at < now)
        .where(or_(tokens.c.parent.isnot(None), tokens.c.expires_at < now - KEPT))
        .where(~made.exists())
        .order_by(tokens.c.expires_at)
        .limit(limit)
        .cte("old")
    )
    gone = tokens.delete().where(tokens.c.token_id.in_(select(old.c.token_id)))
    return connection.execute(gone).rowcount


def _living_of(token: AccessTokenId) -> Select[Any]:
    """The ids of it, and of what is good that was made by it at any depth, nearest first. What has
    ended is passed by: so has what was made by that.
    """
    first = select(literal(token, Uuid).label("token_id")).cte("living", recursive=True)
    next_ = (
        select(_made.c.token_id)
        .where(_by(_made, first.c.token_id), _made.c.revoked_at.is_(None))
        .where(_made.c.expires_at > func.clock_timestamp())
    )
    return select(first.union_all(next_).c.token_id)


def _outdated(connection: Connection, token: AccessToken) -> builtins.list[AccessTokenId]:
    """End the oldest logins of a token that is about to have one more; which. Those that somebody
    else is about to end they end.
    """
    living = (tokens.c.parent == token.maker, tokens.c.revoked_at.is_(None))
    beyond = (
        select(tokens.c.token_id)
        .where(*living, tokens.c.expires_at > func.clock_timestamp())
        .order_by(tokens.c.created_at.desc())
        .offset(MOST_LOGINS - 1)
        .limit(MOST_LOGINS)
    )
    free = (
        select(tokens.c.token_id)
        .where(tokens.c.token_id.in_(beyond), *living)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("free")
    )
    ends = {"revoked_at": func.clock_timestamp(), "revoked_by": clean(token.created_by)}
    changed = tokens.update().where(tokens.c.token_id.in_(select(free.c.token_id))).values(ends)
    rows = connection.execute(changed.returning(tokens.c.token_id))
    return [AccessTokenId(row.token_id) for row in rows]


def _by(made: FromClause, maker: ColumnElement[UUID]) -> ColumnElement[bool]:
    """Whether it was made by that one: each half has an index of its own."""
    return or_(made.c.maker == maker, made.c.parent == maker)


def _token_of(row: Row[Any]) -> AccessToken:
    return AccessToken(
        AccessTokenId(row.token_id),
        bytes(row.digest),
        row.name,
        Role[row.role],
        tuple(row.namespaces),
        row.created_at,
        row.created_by,
        row.expires_at,
        row.revoked_at,
        row.revoked_by,
        None if row.made_by is None else AccessTokenId(row.made_by),
        row.maker_revoked_at,
        row.parent is not None,
        tuple(AccessTokenId(UUID(each)) for each in row.makers or ()),
    )


@dataclass(frozen=True, slots=True)
class PostgresAccessTokenStore:
    """`schedd.ports.AccessTokenStore` over PostgreSQL."""

    database: Database

    async def create(self, token: AccessToken, audit: AuditEntry) -> bool:
        """Store a new one; False: its maker was revoked."""
        return await self.database.call(lambda c: create(c, token, audit))

    async def find(self, token: AccessTokenId) -> AccessToken | None:
        """It, as it stands."""
        return await self.database.call(lambda c: find(c, token))

    async def find_all(self, tokens: Collection[AccessTokenId]) -> builtins.list[AccessToken]:
        """Those of these that there are, in one look."""
        return await self.database.call(lambda c: find_all(c, tokens))

    async def list(
        self, after: tuple[datetime, AccessTokenId] | None, limit: int
    ) -> builtins.list[AccessToken]:
        """Newest first, past `after`; logins left out."""
        return await self.database.call(lambda c: list_tokens(c, after, limit))

    async def revoke(
        self,
        token: AccessTokenId,
        by: str,
        audit: AuditEntry,
        noted: Noted,
    ) -> Revoked | None:
        """It ends now, with all that was made by it; None: there is none."""
        return await self.database.call(lambda c: revoke(c, token, by, audit, noted))
