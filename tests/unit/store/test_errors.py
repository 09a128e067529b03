"""What a failure means: by its code, and by whether COMMIT had been sent."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from schedd.store.errors import BrokenData, Remedy, SchemaMismatch, judge
from schedkit.errors import Fault, Misconfigured, OutcomeUnknown, TookTooLong, Unavailable


class Told(Exception):
    """A driver's error, as far as it is looked at."""

    def __init__(self, code: str | None, words: str = "something") -> None:
        super().__init__(words)
        self.pgcode = code


def failed(code: str | None, words: str = "something", *, lost: bool = False) -> DBAPIError:
    return OperationalError("SELECT 1", {}, Told(code, words), connection_invalidated=lost)


@pytest.mark.parametrize("committing", [False, True])
@pytest.mark.parametrize("code", ["40P01", "40001"])
def test_what_the_server_rolled_back_is_tried_again_even_at_commit(
    code: str, committing: bool
) -> None:
    """P1.6: by its own word nothing stands."""
    error, remedy = judge(failed(code), committing=committing)
    assert (type(error), remedy) == (Unavailable, Remedy.AT_ONCE)


@pytest.mark.parametrize("code", ["08006", "57P01", "25P03", "53300", None])
def test_a_lost_server_is_tried_again_before_commit_and_unknown_after(code: str | None) -> None:
    before, remedy = judge(failed(code, lost=True), committing=False)
    after, none = judge(failed(code, lost=True), committing=True)

    assert (type(before), remedy) == (Unavailable, Remedy.AT_ONCE)
    assert (type(after), none) == (OutcomeUnknown, Remedy.NONE)


@pytest.mark.parametrize("code", ["55P03", "57014"])
def test_a_long_wait_is_tried_once_more(code: str) -> None:
    """P1.6: and at COMMIT it isn't: there it may stand."""
    assert judge(failed(code), committing=False)[1] is Remedy.ONCE_MORE
    assert isinstance(judge(failed(code), committing=True)[0], OutcomeUnknown)


def test_what_took_too_long_is_told_from_a_server_that_is_away() -> None:
    assert type(judge(failed("57014"), committing=False)[0]) is TookTooLong
    assert type(judge(failed("55P03"), committing=False)[0]) is Unavailable


@pytest.mark.parametrize("code", ["22003", "22P02", "23514", "54000"])
def test_a_value_that_is_refused_is_broken_data(code: str) -> None:
    error, remedy = judge(failed(code), committing=False)
    assert (type(error), remedy) == (BrokenData, Remedy.NONE)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("42P01", SchemaMismatch),
        ("42501", Misconfigured),
        ("28P01", Misconfigured),
        ("42601", Fault),
    ],
)
def test_whose_fault_it_is(code: str, kind: type[Exception]) -> None:
    assert type(judge(failed(code), committing=False)[0]) is kind


def test_a_refusal_at_the_door_is_the_operators() -> None:
    error, remedy = judge(failed(None, 'FATAL:  database "x" does not exist'), committing=False)
    assert (type(error), remedy) == (Misconfigured, Remedy.NONE)


REFUSED = 'connection to server at "a", port 5432 failed: FATAL:  database "x" does not exist'
AWAY = 'connection to server at "b", port 5432 failed: Connection refused\n\tIs it running there?'
LOST = 'could not translate host name "b" to address: Name or service not known'


@pytest.mark.parametrize("other", [AWAY, LOST])
def test_of_two_servers_one_that_is_away_may_be_the_one_that_counts(other: str) -> None:
    """Else a member would end for good in the second in which its primary restarts."""
    for words in (f"{REFUSED}\n{other}", f"{other}\n{REFUSED}"):
        error, remedy = judge(failed(None, words), committing=False)
        assert (type(error), remedy) == (Unavailable, Remedy.AT_ONCE)
    twice = f'{REFUSED}\n{REFUSED}\npassword retrieved from file "x"'
    assert type(judge(failed(None, twice), committing=False)[0]) is Misconfigured


def test_only_the_first_line_is_told() -> None:
    error, _ = judge(failed("40001", "could not serialize\nDETAIL: rows"), committing=False)
    assert str(error) == "PostgreSQL: could not serialize"
