"""Parser of the output of PostgreSQL's `test_decoding`: from lines to commits.

    BEGIN 740
    table public.runs_20261121: INSERT: run_id[uuid]:'…' count[integer]:1 reason[text]:null
    COMMIT 740 (at 2026-11-21 12:00:00.5+00)

The rows come from

    SELECT lsn, xid, data FROM pg_logical_slot_get_changes(SLOT, NULL, NULL,
        'include-xids', '1', 'include-timestamp', '1')

in commit order, transactions never mixed. A value is text as its type prints itself, None for NULL.
A column that an update left alone in the overflow table isn't printed by the server ("unchanged
toast"): it is missing in the row. Days of `runs` are tables of their own to the server; here they
are all called `runs`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Literal

from faults.history import Change, Commit

Line = tuple[str, str | int, str]
"""Row of the slot: lsn, xid, data."""

PARTITION = re.compile(r"^runs_(default|p?\d+)$")
BEGIN = re.compile(r"^BEGIN (\d+)$")
COMMIT = re.compile(r"^COMMIT (\d+) \(at (.+)\)$")
CHANGE = re.compile(
    r'^table (?P<schema>"(?:[^"]|"")+"|[^.\s]+)\.(?P<table>"(?:[^"]|"")+"|[^:\s]+): '
    r"(?P<op>INSERT|UPDATE|DELETE|TRUNCATE): ?"
)
VALUE = re.compile(r"'(?:[^']|'')*'|B'[01]*'|[^\s]+")
OLD_KEY = "old-key: "
NEW_TUPLE = "new-tuple: "
UNCHANGED = "unchanged-toast-datum"

_OPERATIONS: dict[str, Literal["insert", "update", "delete"]] = {
    "INSERT": "insert",
    "UPDATE": "update",
    "DELETE": "delete",
}


class Undecodable(Exception):
    """A line that isn't what `test_decoding` prints; the message quotes it."""


def commits(lines: Iterable[Line], *, without: Collection[str] = ()) -> Iterator[Commit]:
    """The transactions in commit order; those that changed no table are left out.

    Changes of the tables `without` are dropped (large ones that no check looks at). Raises
    `Undecodable`, also for a transaction without its end or without its time.
    """
    xid: int | None = None
    changes: list[Change] = []
    for lsn, _, data in lines:
        if begin := BEGIN.match(data):
            if xid is not None:
                raise Undecodable(f"transaction {xid} has no end before {data!r}")
            xid, changes = int(begin[1]), []
        elif commit := COMMIT.match(data):
            if xid != int(commit[1]):
                raise Undecodable(f"{data!r} ends no transaction that began")
            if changes:
                at = datetime.fromisoformat(commit[2]).timestamp()
                yield Commit(str(lsn), xid, at, tuple(changes))
            xid = None
        elif xid is None:
            raise Undecodable(f"outside of a transaction (or its COMMIT has no time): {data!r}")
        else:
            change = change_of(data)
            if change is not None and change.table not in without:
                changes.append(change)
    if xid is not None:
        raise Undecodable(f"transaction {xid} has no end")


def change_of(data: str) -> Change | None:
    """Parse a line `table …`; None for a truncation, and for a delete without a key."""
    head = CHANGE.match(data)
    if head is None:
        raise Undecodable(f"no change: {data[:200]!r}")
    if head["op"] == "TRUNCATE":
        return None
    table = _name(head["table"])
    table = "runs" if PARTITION.match(table) else table
    rest = data[head.end() :]
    if rest == "(no-tuple-data)":
        return None
    if head["op"] == "DELETE":
        return Change(table, "delete", {}, _columns(rest))
    key: dict[str, str | None] | None = None
    if rest.startswith(OLD_KEY):
        key, rest = _split_key(rest[len(OLD_KEY) :])
    return Change(table, _OPERATIONS[head["op"]], _columns(rest), key)


def _split_key(text: str) -> tuple[dict[str, str | None], str]:
    """The old key, and the text of the new row behind it."""
    key: dict[str, str | None] = {}
    position = 0
    while not text.startswith(NEW_TUPLE, position):
        if position >= len(text):
            raise Undecodable(f"an old key without a new row: {text[:200]!r}")
        position = _column(text, position, key)
    return key, text[position + len(NEW_TUPLE) :]


def _columns(text: str) -> dict[str, str | None]:
    row: dict[str, str | None] = {}
    position = 0
    while position < len(text):
        position = _column(text, position, row)
    return row


def _column(text: str, position: int, row: dict[str, str | None]) -> int:
    """Read `name[type]:value` at `position` into `row`; gives where the next one begins."""
    begin = text.find("[", position)
    end = text.find("]:", begin)
    value = VALUE.match(text, end + 2) if 0 <= begin < end else None
    if value is None:
        raise Undecodable(f"no column at {text[position : position + 200]!r}")
    printed = value.group()
    if printed != UNCHANGED:
        row[_name(text[position:begin])] = _plain(printed)
    return value.end() + 1


def _plain(printed: str) -> str | None:
    if printed == "null":
        return None
    if printed.startswith("B'"):
        return printed[2:-1]
    if printed.startswith("'"):
        return printed[1:-1].replace("''", "'")
    return printed


def _name(printed: str) -> str:
    return printed[1:-1].replace('""', '"') if printed.startswith('"') else printed
