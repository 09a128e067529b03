"""Access tokens: made, found, revoked, and forgotten a while after they have ended."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    Connection,
    Row,
    Select,
    Uuid,
    any_,
    func,
    literal,
    select,
    tuple_,
)

from schedd.core.access_tokens import AccessToken
from schedd.core.ids import AccessTokenId
from schedd.core.model import AuditEntry
from schedd.core.rights import Role
from schedd.store import audit
from schedd.store.arrays import clean, ids
from schedd.store.database import Database
from schedd.store.schema import access_tokens as tokens
from schedkit.records import dataclass, replace

KEPT: Final = timedelta(days=30)
"""After its end: so long a list says that it was there."""

_parents: Final = tokens.alias("parents")


def create(connection: Connection, token: AccessToken, entry: AuditEntry) -> None:
    """Store a new one."""
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
        "parent": token.parent,
    }
    connection.execute(tokens.insert().values(row))
    audit.write_all(connection, [entry])


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
    noted: Callable[[AccessToken], str],
) -> AccessToken | None:
    """It ends now; the first time stays. `noted`: what the audit has of what went."""
    mine = tokens.c.token_id == token
    ends = {"revoked_at": func.clock_timestamp(), "revoked_by": clean(by)}
    changed = tokens.update().where(mine, tokens.c.revoked_at.is_(None)).values(ends)
    ended = connection.execute(changed).rowcount
    found = find(connection, token)
    if ended and found is not None:
        audit.write_all(connection, [replace(entry, before=noted(found))])
    return found


def forget_ended(connection: Connection) -> None:
    """Delete those that ended long ago, with their logins; logins as soon as they have ended."""
    now = func.clock_timestamp()
    connection.execute(tokens.delete().where(tokens.c.expires_at < now - KEPT))
    logins = tokens.c.parent.isnot(None)
    connection.execute(tokens.delete().where(tokens.c.expires_at < now, logins))


def _all() -> Select[Any]:
    both = tokens.outerjoin(_parents, _parents.c.token_id == tokens.c.parent)
    return select(tokens, _parents.c.revoked_at.label("parent_revoked_at")).select_from(both)


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
        None if row.parent is None else AccessTokenId(row.parent),
        row.parent_revoked_at,
    )


@dataclass(frozen=True, slots=True)
class PostgresAccessTokenStore:
    """`schedd.ports.AccessTokenStore` over PostgreSQL."""

    database: Database

    async def create(self, token: AccessToken, audit: AuditEntry) -> None:
        """Store a new one."""
        await self.database.call(lambda c: create(c, token, audit))

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
        noted: Callable[[AccessToken], str],
    ) -> AccessToken | None:
        """It ends now; None: there is none."""
        return await self.database.call(lambda c: revoke(c, token, by, audit, noted))
