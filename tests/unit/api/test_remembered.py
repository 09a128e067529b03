"""What is remembered of tokens: looks and revocations in whatever order they end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from schedd.api.auth.token_cache import MOST, TokenCache
from schedd.core.auth.access_tokens import AccessTokenRecord
from schedd.core.auth.rights import Role
from schedd.core.ids import AccessTokenId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER, THEN, LATER = 1.0, 2.0, 3.0


def token(*makers: AccessTokenRecord) -> AccessTokenRecord:
    over = tuple(each.id for each in makers)
    given = "alice", Role.VIEWER, ("*",), NOW, "root", NOW + timedelta(days=1)
    return AccessTokenRecord(AccessTokenId(uuid4()), b"", *given, makers=over)


def remembering(*rows: AccessTokenRecord, asked: float = EARLIER) -> TokenCache:
    rows_ = TokenCache()
    rows_.store_rows(asked, {row.id: row for row in rows})
    return rows_


def good(rows: TokenCache, row: AccessTokenRecord) -> bool:
    found = rows.row(row.id)
    return found is not None and not found.revoked and rows.known(row.id, 0.0)


def test_a_look_that_was_asked_for_before_a_revocation_here_says_nothing_against_it() -> None:
    first = token()
    made, another = token(first), token()
    rows = TokenCache()
    rows.revoked(first.id, THEN)
    rows.store_rows(EARLIER, {row.id: row for row in (first, made, another)})
    assert [good(rows, row) for row in (first, made, another)] == [False, False, True]


def test_a_look_that_was_asked_for_after_it_counts() -> None:
    """It may not have been done after all."""
    row = token()
    rows = remembering(row)
    rows.revoked(row.id, THEN)
    assert not good(rows, row)
    rows.store_rows(LATER, {row.id: row})
    assert good(rows, row)


def test_a_revocation_leaves_another_good_that_is_being_looked_up() -> None:
    first, another = token(), token()
    rows = remembering(first, another)
    rows.revoked(first.id, THEN)
    rows.store_rows(EARLIER, {another.id: another})
    assert good(rows, another)
    assert not rows.fresh(another.id, 0.0), "it is looked up anew while that can be"


def test_what_was_made_by_one_that_is_read_as_revoked_isnt_good_any_more() -> None:
    first = token()
    made, another = token(first), token()
    rows = remembering(first, made, another)
    rows.store_rows(THEN, {first.id: replace(first, revoked_at=NOW)})
    assert [good(rows, row) for row in (first, made, another)] == [False, False, True]


def test_of_two_looks_the_later_counts_whichever_ends_last() -> None:
    row = token()
    rows = remembering(replace(row, revoked_at=NOW), asked=THEN)
    rows.store_rows(EARLIER, {row.id: row})
    assert not good(rows, row)


def test_ids_that_somebody_makes_up_drive_nobody_out() -> None:
    row = token()
    rows = remembering(row)
    for _ in range(MOST + 5):
        rows.store_rows(THEN, {AccessTokenId(uuid4()): None})
    assert len(rows) == MOST
    assert good(rows, row)
    many = [token() for _ in range(MOST)]
    rows.store_rows(LATER, {each.id: each for each in many})
    assert len(rows) == MOST
    assert row.id not in rows
    assert all(good(rows, each) for each in many)
