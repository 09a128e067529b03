"""Create, find, revoke and delete access tokens.

A login's row names its creator in `parent`, any other token's row in `maker`.

Invariants
- Revoking a token also revokes the tokens created with it, at any depth, by one mark: every read of
  a row reads its makers up to the root. So the cost doesn't depend on the number of tokens. The
  nearest ones are marked, too, for lists and for the answer; correctness doesn't need it.
- A revoked token creates no token: one advisory lock, shared for creating and exclusive for
  revoking. It is held for MOST_MARKED rows at most.
- A token has at most MOST_LOGINS logins. A login that a newer one ended has its own mark.
- A row is deleted after the rows of the tokens created with it: deleting it first would cascade to
  them. Each deletion has a limit.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

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

from schedd.core.auth.rights import AccessTokenRecord, Role
from schedd.core.ids import AccessTokenId, Id
from schedd.core.runs.model import AuditRecord
from schedd.store import audit
from schedd.store.connection.database import Database, in_transaction
from schedd.store.schema.tables import access_tokens as tokens
from schedd.store.statements.arrays import clean, ids
from schedd.store.statements.rows import decoded, record_of
from schedkit.records import dataclass, replace

KEPT: Final = timedelta(days=30)
"""How long lists show a token after its end."""

MOST_LOGINS: Final = 100
"""Logins of one token at a time. A new login ends the oldest."""

MOST_MARKED: Final = 1_000
"""Limit on the listed tokens that end with a revoked token."""

Noted: TypeAlias = Callable[[AccessTokenRecord, Sequence[AccessTokenId]], tuple[str, str]]
"""Returns the audit's `before` and `after` for a revoked token and the tokens that end with it."""

_LOCK: Final = "hashtext('schedd access tokens')"

_BY_INDEX: Final = "; ".join(
    f"SET LOCAL {name} = off"
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
)
"""If one token created nearly all tokens, the planner's statistics expect that of each token."""

_NO_JIT: Final = "SET LOCAL jit = off"
"""The planner would compile the lookups up to the root: their estimated cost is too high."""

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
"""All makers of a token, up to the root. `schedd.api` limits the depth."""
_ALL: Final = select(
    tokens,
    _MAKER.label("made_by"),
    literal_column(_UP.format("min(revoked_at)")).label("maker_revoked_at"),
    literal_column(_UP.format("array_agg(id::text)")).label("makers"),
)


@dataclass(frozen=True, slots=True)
class Revoked:
    """A revoked token and the tokens that ended with it: the first MOST_MARKED, nearest first."""

    token: AccessTokenRecord
    with_it: Sequence[AccessTokenId]


def create(connection: Connection, token: AccessTokenRecord, entry: AuditRecord) -> bool:
    """Store a new token. Returns False if its maker doesn't exist or is revoked."""
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


def find(connection: Connection, token: AccessTokenId) -> AccessTokenRecord | None:
    """Return the token, None if it doesn't exist."""
    row = connection.execute(_ALL.where(tokens.c.token_id == token)).first()
    return None if row is None else _token_of(row)


def find_all(connection: Connection, wanted: Collection[AccessTokenId]) -> list[AccessTokenRecord]:
    """Return these tokens, except missing ones."""
    connection.exec_driver_sql(_NO_JIT)
    these = any_(literal(ids(wanted)).cast(ARRAY(Uuid)))
    found = connection.execute(_ALL.where(tokens.c.token_id == these))
    return decoded("access_tokens", found, _token_of)


def list_tokens(
    connection: Connection, after: tuple[datetime, AccessTokenId] | None, limit: int
) -> list[AccessTokenRecord]:
    """Return tokens without logins, newest first."""
    connection.exec_driver_sql(_NO_JIT)
    at = tuple_(tokens.c.created_at, tokens.c.token_id)
    query = _ALL.where(tokens.c.parent.is_(None)).order_by(at.desc()).limit(limit)
    if after is not None:
        query = query.where(at < after)
    return decoded("access_tokens", connection.execute(query), _token_of)


def revoke(
    connection: Connection, token: AccessTokenId, by: str, entry: AuditRecord, noted: Noted
) -> Revoked | None:
    """Revoke the token and all tokens created with it. An earlier revocation keeps its time."""
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
    """Delete tokens that ended `KEPT` ago and logins that ended, unless a token created with them
    still exists. At most `limit`; returns how many.
    """
    connection.exec_driver_sql(_BY_INDEX)
    now = func.statement_timestamp()
    made = select(_made.c.token_id).where(_created_by(_made, tokens.c.token_id))
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
    """Select the ids of the token and of the valid tokens created with it, at any depth, nearest
    first. Ended tokens are skipped with everything created with them: that has ended, too.
    """
    first = select(literal(token, Uuid).label("token_id")).cte("living", recursive=True)
    next_ = (
        select(_made.c.token_id)
        .where(_created_by(_made, first.c.token_id), _made.c.revoked_at.is_(None))
        # volatile, so that the index of makers is used and not that of `expires_at`, which has all
        .where(_made.c.expires_at > func.clock_timestamp())
    )
    return select(first.union_all(next_).c.token_id)


def _outdated(connection: Connection, token: AccessTokenRecord) -> builtins.list[AccessTokenId]:
    """End the oldest logins of a token that is about to get another one. Returns their ids. Rows
    that another transaction has locked are skipped: it ends them.
    """
    living = (tokens.c.parent == token.maker, tokens.c.revoked_at.is_(None))
    beyond = (
        select(tokens.c.token_id)
        .where(*living, tokens.c.expires_at > func.statement_timestamp())
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


def _created_by(made: FromClause, maker: ColumnElement[Id]) -> ColumnElement[bool]:
    """Return the condition that `maker` created the token. Each half has its own index."""
    return or_(made.c.maker == maker, made.c.parent == maker)


def _token_of(row: Row[Any]) -> AccessTokenRecord:
    return record_of(
        AccessTokenRecord,
        row,
        id=AccessTokenId(row.token_id),
        role=Role[row.role],
        namespaces=tuple(row.namespaces),
        maker=row.made_by,
        login=row.parent is not None,
        makers=tuple(AccessTokenId(Id.parse(each)) for each in row.makers or ()),
    )


@dataclass(frozen=True, slots=True)
class AccessTokenStore:
    """Access tokens. Each writing call is one transaction with its audit entry."""

    database: Database

    create = in_transaction(create)
    find = in_transaction(find)
    find_all = in_transaction(find_all)
    list = in_transaction(list_tokens)
    revoke = in_transaction(revoke)
