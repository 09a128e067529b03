"""The output of `test_decoding` of a real PostgreSQL 15 is parsed correctly."""

from __future__ import annotations

import pytest

from faults.decoding import Line, Undecodable, change_of, commits
from faults.history import Change


def transaction(*data: str, xid: int = 725) -> list[Line]:
    """Return the lines of the slot for one transaction."""
    end = f"COMMIT {xid} (at 2026-11-21 12:35:11.5+00)"
    return [("0/1532778", xid, line) for line in (f"BEGIN {xid}", *data, end)]


def test_every_kind_of_value_is_read() -> None:
    change = change_of(
        "table public.t: INSERT: id[integer]:1 "
        "\"Weird Name\"[text]:'it''s [x]: \\ old-key: new-tuple: null' a[text[]]:'{a,\"b c\"}' "
        "b[bytea]:'\\x00ff' at[timestamp with time zone]:'2026-11-21 12:00:00.25+00' "
        "ok[boolean]:true f[double precision]:-1.5 none[text]:null two[text]:'two\nlines' "
        "bits[bit]:B'101'"
    )
    assert change == Change(
        "t",
        "insert",
        {
            "id": "1",
            "Weird Name": "it's [x]: \\ old-key: new-tuple: null",
            "a": '{a,"b c"}',
            "b": "\\x00ff",
            "at": "2026-11-21 12:00:00.25+00",
            "ok": "true",
            "f": "-1.5",
            "none": None,
            "two": "two\nlines",
            "bits": "101",
        },
    )


def test_an_update_of_the_key_has_the_old_one() -> None:
    change = change_of(
        "table public.t: UPDATE: old-key: id[integer]:1 name[text]:'a b' "
        "new-tuple: id[integer]:5 name[text]:'new-tuple: '"
    )
    row = {"id": "5", "name": "new-tuple: "}
    assert change == Change("t", "update", row, {"id": "1", "name": "a b"})


def test_a_delete_has_only_its_key() -> None:
    change = change_of("table public.live: DELETE: shard[integer]:3 run_id[uuid]:'r'")
    assert change == Change("live", "delete", {}, {"shard": "3", "run_id": "r"})


def test_a_column_that_is_not_printed_is_missing() -> None:
    change = change_of(
        "table public.jobs: UPDATE: id[integer]:1 spec[bytea]:unchanged-toast-datum n[text]:'x'"
    )
    assert change is not None
    assert change.row == {"id": "1", "n": "x"}


@pytest.mark.parametrize("day", ["runs_default", "runs_20261121", "runs_p20261121"])
def test_every_day_of_runs_is_runs(day: str) -> None:
    change = change_of(f"table public.{day}: INSERT: run_id[uuid]:'r'")
    assert change is not None
    assert change.table == "runs"


def test_names_may_be_quoted() -> None:
    change = change_of('table "My"."t t": INSERT: "a ""b"""[integer]:-3')
    assert change == Change("t t", "insert", {'a "b"': "-3"})


def test_transactions_have_their_time_and_the_position_of_their_end() -> None:
    lines = transaction("table public.live: DELETE: shard[integer]:3", xid=740)
    (commit,) = commits(lines)
    assert (commit.lsn, commit.xid, commit.at) == ("0/1532778", 740, 1795264511.5)
    assert [change.table for change in commit.changes] == ["live"]


def test_a_transaction_without_a_table_of_interest_is_left_out() -> None:
    lines = transaction() + transaction(
        "table public.outputs: INSERT: pieces[bytea]:'\\x00'",
        "table public.live: TRUNCATE: (no-flags)",
        xid=741,
    )
    assert not list(commits(lines, without=("outputs",)))


@pytest.mark.parametrize(
    "lines",
    [
        transaction("table public.t: INSERT: id[integer]"),
        transaction("message: transactional: 1 prefix: x"),
        transaction("table public.t: UPDATE: old-key: id[integer]:1"),
        transaction()[:-1],
        transaction()[1:],
        transaction()[:-1] + transaction(xid=741),
        [("0/1", 7, "BEGIN 7"), ("0/1", 7, "COMMIT 7")],
    ],
    ids=["value", "no-table", "no-new-row", "no-end", "no-begin", "mixed", "no-time"],
)
def test_an_unknown_line_is_an_error(lines: list[Line]) -> None:
    with pytest.raises(Undecodable):
        list(commits(lines))
