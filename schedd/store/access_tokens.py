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

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection

from schedd.core.auth.rights import AccessTokenRecord, Role
from schedd.core.ids import AccessTokenId, Id
from schedd.core.runs.model import AuditRecord
from schedd.store import audit
from schedd.store.connection.database import Database, in_transaction
from schedd.store.statements.arrays import clean, ids, texts
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
ALL: Final = f"""
SELECT *, COALESCE(maker, parent) AS made_by, {_UP.format("min(revoked_at)")} AS maker_revoked_at,
    {_UP.format("array_agg(id::text)")} AS makers
FROM access_tokens WHERE
"""

CREATE: Final = """
INSERT INTO access_tokens (token_id, digest, name, role, namespaces, created_at, created_by,
    expires_at, revoked_by, parent, maker)
VALUES (%(id)s, %(digest)s, %(name)s, %(role)s, %(namespaces)s::text[], %(at)s, %(by)s,
    %(expires_at)s, '', %(parent)s, %(maker)s)
"""

END_OLDEST_LOGINS: Final = """
WITH free AS (
    SELECT token_id FROM access_tokens WHERE token_id IN (
        SELECT token_id FROM access_tokens
        WHERE parent = %(parent)s AND revoked_at IS NULL AND expires_at > statement_timestamp()
        ORDER BY created_at DESC OFFSET %(most)s - 1 LIMIT %(most)s
    ) AND parent = %(parent)s AND revoked_at IS NULL FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE access_tokens SET revoked_at = clock_timestamp(), revoked_by = %(by)s
WHERE token_id IN (SELECT token_id FROM free) RETURNING token_id
"""
"""Rows that another transaction has locked are skipped: it ends them."""

REVOKE: Final = """
WITH RECURSIVE living (token_id) AS (
    SELECT %(token)s::uuid
  UNION ALL
    SELECT m.token_id FROM living l JOIN access_tokens m
      ON (m.maker = l.token_id OR m.parent = l.token_id)
      AND m.revoked_at IS NULL AND m.expires_at > clock_timestamp()
), theirs AS (SELECT token_id FROM living LIMIT %(most)s)
UPDATE access_tokens SET revoked_at = clock_timestamp(), revoked_by = %(by)s
WHERE token_id IN (SELECT token_id FROM theirs) AND revoked_at IS NULL RETURNING token_id
"""
"""The token and the valid tokens created with it, at any depth, nearest first. Ended tokens are
skipped with everything created with them: that has ended, too. `clock_timestamp` is volatile, so
the index of makers is used and not that of `expires_at`, which has all tokens.
"""

FORGET: Final = """
WITH old AS (
    SELECT token_id FROM access_tokens t
    WHERE expires_at < statement_timestamp()
      AND (parent IS NOT NULL OR expires_at < statement_timestamp() - %(kept)s::interval)
      AND NOT EXISTS (SELECT FROM access_tokens m
                      WHERE m.maker = t.token_id OR m.parent = t.token_id)
    ORDER BY expires_at LIMIT %(limit)s
)
DELETE FROM access_tokens WHERE token_id IN (SELECT token_id FROM old)
"""


@dataclass(frozen=True, slots=True)
class Revoked:
    """A revoked token and the tokens that ended with it: the first MOST_MARKED, nearest first."""

    token: AccessTokenRecord
    with_it: Sequence[AccessTokenId]


def create(connection: Connection, token: AccessTokenRecord, entry: AuditRecord) -> bool:
    """Store a new token. Returns False if its maker doesn't exist or is revoked. A login beyond
    MOST_LOGINS ends the oldest ones.
    """
    if token.maker is not None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({_LOCK})")
        maker = find(connection, token.maker)
        if maker is None or maker.revoked:
            return False
    values = {
        "id": token.id,
        "digest": token.digest,
        "name": clean(token.name),
        "role": token.role.name,
        "namespaces": texts(token.namespaces),
        "at": token.created_at,
        "by": clean(token.created_by),
        "expires_at": token.expires_at,
        "parent": token.maker if token.login else None,
        "maker": None if token.login else token.maker,
        "most": MOST_LOGINS,
    }
    ended: Sequence[AccessTokenId] = ()
    if token.login and token.maker is not None:
        ended = connection.exec_driver_sql(END_OLDEST_LOGINS, values).scalars().all()
    connection.exec_driver_sql(CREATE, values)
    of_ended = [
        replace(entry, action="logout", object=f"token/{each}", before="", after="")
        for each in ended
    ]
    audit.write_all(connection, [*of_ended, entry])
    return True


def find(connection: Connection, token: AccessTokenId) -> AccessTokenRecord | None:
    row = connection.exec_driver_sql(f"{ALL} token_id = %s", (token,)).first()
    return None if row is None else _token_of(row)


def find_all(connection: Connection, wanted: Collection[AccessTokenId]) -> list[AccessTokenRecord]:
    """Return these tokens, except missing ones."""
    connection.exec_driver_sql(_NO_JIT)
    found = connection.exec_driver_sql(f"{ALL} token_id = ANY (%s::uuid[])", (ids(wanted),))
    return decoded("access_tokens", found, _token_of)


def list_tokens(
    connection: Connection, after: tuple[datetime, AccessTokenId] | None, limit: int
) -> list[AccessTokenRecord]:
    """Return tokens without logins, newest first."""
    connection.exec_driver_sql(_NO_JIT)
    place = "AND (created_at, token_id) < (%(at)s, %(id)s::uuid)" if after else ""
    at, id_ = after or (None, None)
    found = connection.exec_driver_sql(
        f"{ALL} parent IS NULL {place} ORDER BY created_at DESC, token_id DESC LIMIT %(limit)s",
        {"at": at, "id": id_, "limit": limit},
    )
    return decoded("access_tokens", found, _token_of)


def revoke(
    connection: Connection, token: AccessTokenId, by: str, entry: AuditRecord, noted: Noted
) -> Revoked | None:
    """Revoke the token and all tokens created with it. An earlier revocation keeps its time."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    connection.exec_driver_sql(_BY_INDEX)
    values = {"token": token, "by": clean(by), "most": MOST_MARKED + 1}
    ended = set(connection.exec_driver_sql(REVOKE, values).scalars())
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
    return connection.exec_driver_sql(FORGET, {"kept": KEPT, "limit": limit}).rowcount


def _token_of(row: Any) -> AccessTokenRecord:
    return record_of(
        AccessTokenRecord,
        row,
        id=row.token_id,
        digest=bytes(row.digest),
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
