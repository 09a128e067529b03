"""The token cache: lookups and revocations that end in any order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from schedd.api.auth.authentication import MOST, TokenCache
from schedd.core.auth.rights import AccessTokenRecord, Role
from schedd.core.ids import AccessTokenId, new_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER, THEN, LATER = 1.0, 2.0, 3.0


def token(*makers: AccessTokenRecord) -> AccessTokenRecord:
    over = tuple(each.id for each in makers)
    given = "alice", Role.VIEWER, ("*",), NOW, "root", NOW + timedelta(days=1)
    return AccessTokenRecord(AccessTokenId(new_id()), b"", *given, makers=over)


def remembering(*rows: AccessTokenRecord, asked: float = EARLIER) -> TokenCache:
    rows_ = TokenCache()
    rows_.store_rows(asked, {row.id: row for row in rows})
    return rows_


def good(rows: TokenCache, row: AccessTokenRecord) -> bool:
    found = rows.row(row.id)
    return found is not None and not found.revoked and rows.known(row.id, 0.0)


def test_a_lookup_requested_before_a_local_revocation_does_not_undo_it() -> None:
    first = token()
    made, another = token(first), token()
    rows = TokenCache()
    rows.revoked(first.id, THEN)
    rows.store_rows(EARLIER, {row.id: row for row in (first, made, another)})
    assert [good(rows, row) for row in (first, made, another)] == [False, False, True]


def test_a_lookup_requested_after_a_revocation_counts() -> None:
    """The revocation may not have been committed."""
    row = token()
    rows = remembering(row)
    rows.revoked(row.id, THEN)
    assert not good(rows, row)
    rows.store_rows(LATER, {row.id: row})
    assert good(rows, row)


def test_a_revocation_keeps_another_token_that_is_being_looked_up() -> None:
    first, another = token(), token()
    rows = remembering(first, another)
    rows.revoked(first.id, THEN)
    rows.store_rows(EARLIER, {another.id: another})
    assert good(rows, another)
    assert not rows.fresh(another.id, 0.0), "looked up again while that is possible"


def test_tokens_created_by_a_token_that_is_read_as_revoked_are_refused() -> None:
    first = token()
    made, another = token(first), token()
    rows = remembering(first, made, another)
    rows.store_rows(THEN, {first.id: replace(first, revoked_at=NOW)})
    assert [good(rows, row) for row in (first, made, another)] == [False, False, True]


def test_the_later_of_two_lookups_counts_in_any_order_of_ends() -> None:
    row = token()
    rows = remembering(replace(row, revoked_at=NOW), asked=THEN)
    rows.store_rows(EARLIER, {row.id: row})
    assert not good(rows, row)


def test_invented_ids_evict_no_known_token() -> None:
    row = token()
    rows = remembering(row)
    for _ in range(MOST + 5):
        rows.store_rows(THEN, {AccessTokenId(new_id()): None})
    assert len(rows) == MOST
    assert good(rows, row)
    many = [token() for _ in range(MOST)]
    rows.store_rows(LATER, {each.id: each for each in many})
    assert len(rows) == MOST
    assert row.id not in rows
    assert all(good(rows, each) for each in many)
