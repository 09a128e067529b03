"""Rows and changes as a history holds them, made in a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from faults.history import Change, Commit

BASE = 1_800_000_000.0
KEYS = {
    "runs": ("run_id",),
    "jobs": ("job_id",),
    "timers": ("job_id",),
    "live": ("shard", "job_id", "run_id"),
    "shards": ("id",),
    "shard_log": ("seq",),
    "tenures": ("id",),
    "term": ("one",),
    "incarnations": ("id",),
    "audit": ("seq",),
}


def stamp(at: float) -> str:
    """An instant of the story as PostgreSQL prints it."""
    return datetime.fromtimestamp(BASE + at, UTC).isoformat(sep=" ")


def insert(table: str, row: Mapping[str, str | None]) -> Change:
    """A new row."""
    return Change(table, "insert", row)


def update(table: str, row: Mapping[str, str | None]) -> Change:
    """A row as it is now."""
    return Change(table, "update", row)


def delete(table: str, key: Mapping[str, str | None]) -> Change:
    """A row that is no more."""
    return Change(table, "delete", {}, key)


def final(commits: Iterable[Commit], table: str) -> Iterable[Mapping[str, str | None]]:
    """Return the rows of a table after all commits."""
    rows: dict[tuple[str | None, ...], Mapping[str, str | None]] = {}
    for commit in commits:
        for change in commit.changes:
            if change.table == table:
                key = tuple((change.key or change.row)[column] for column in KEYS[table])
                if change.op == "delete":
                    rows.pop(key, None)
                else:
                    rows[key] = change.row
    return rows.values()
