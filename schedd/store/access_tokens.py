"""Access tokens: made, found, revoked, and forgotten a while after they have ended.

Of who made one the row of a login says `parent`, that of any other token `maker`: by this they are
told apart.

Invariants
- What is revoked takes along all that was made by it, at any depth, in one transaction. Nothing is
  made meanwhile: one lock, which makers share and who revokes has alone.
- Nothing is made by what was revoked, however lately.
- A row outlives those of what was made by it: with it they would be forgotten, too.
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
    or_,
    select,
    tuple_,
)

from schedd.core.access_tokens import AccessToken
from schedd.core.ids import AccessTokenId
from schedd.core.model import AuditEntry
from schedd.core.rights import Role
from schedd.ports.access_tokens import Noted, Revoked
from schedd.store import audit
from schedd.store.arrays import clean, ids
from schedd.store.database import Database
from schedd.store.schema import access_tokens as tokens
from schedkit.records import dataclass, replace

KEPT: Final = timedelta(days=30)
"""After its end: so long a list says that it was there."""

_LOCK: Final = "hashtext('schedd access tokens')"

_made: Final = tokens.alias("made")
_makers: Final = tokens.alias("makers")
_MAKER: Final = func.coalesce(tokens.c.maker, tokens.c.parent)


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
    connection.execute(tokens.insert().values(row))
    audit.write_all(connection, [entry])
    return True


def find(connection: Connection, token: AccessTokenId) -> AccessToken | None:
    """It, as it stands."""
    row = connection.execute(_all().where(tokens.c.token_id == token)).first()
    return None if row is None else _token_of(row)


def find_all(connection: Connection, wanted: Collection[AccessTokenId]) -> list[AccessToken]:
    """Those of these that there are."""
    these = any_(literal(ids(wanted)).cast(ARRAY(Uuid)))
    return [_token_of(row) for row in connection.execute(_all().where(tokens.c.token_id == these))]


def list_tokens(
    connection: Connection, after: tuple[datetime, AccessTokenId] | None, limit: int
) -> list[AccessToken]:
    """Newest first; logins left out."""
    at = tuple_(tokens.c.created_at, tokens.c.token_id)
    query = _all().where(tokens.c.parent.is_(None)).order_by(at.desc()).limit(limit)
    if after is not None:
        query = query.where(at < after)
    return [_token_of(row) for row in connection.execute(query)]


def revoke(
    connection: Connection,
    token: AccessTokenId,
    by: str,
    entry: AuditEntry,
    noted: Noted,
) -> Revoked | None:
    """It ends now, with all that was made by it; the first time stays."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    ends = {"revoked_at": func.clock_timestamp(), "revoked_by": clean(by)}
    changed = (
        tokens.update()
        .where(tokens.c.token_id.in_(_with_theirs(token)), tokens.c.revoked_at.is_(None))
        .where(or_(tokens.c.token_id == token, tokens.c.expires_at > func.clock_timestamp()))
        .values(ends)
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


def forget_ended(connection: Connection) -> None:
    """Delete those that ended long ago; logins as soon as they have ended, if nothing is there any
    more that was made by them.
    """
    now = func.clock_timestamp()
    connection.execute(tokens.delete().where(tokens.c.expires_at < now - KEPT))
    logins = tokens.c.parent.isnot(None)
    made = select(_made.c.token_id).where(_by(_made, tokens.c.token_id))
    connection.execute(tokens.delete().where(tokens.c.expires_at < now, logins, ~made.exists()))


def _with_theirs(token: AccessTokenId) -> Select[Any]:
    """The ids of it, and of all that was made by it, at any depth."""
    first = select(literal(token, Uuid).label("token_id")).cte("theirs", recursive=True)
    next_ = select(_made.c.token_id).select_from(_made).where(_by(_made, first.c.token_id))
    return select(first.union(next_).c.token_id)


def _by(made: FromClause, maker: ColumnElement[UUID]) -> ColumnElement[bool]:
    """Whether it was made by that one: each half has an index of its own."""
    return or_(made.c.maker == maker, made.c.parent == maker)


def _all() -> Select[Any]:
    both = tokens.outerjoin(_makers, _makers.c.token_id == _MAKER)
    return select(
        tokens, _MAKER.label("made_by"), _makers.c.revoked_at.label("maker_revoked_at")
    ).select_from(both)


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
