"""S3 by the epoch log: each taking of a shard stands in it once, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from faults.checker import check
from faults.history import Change, History
from support.story import leader_killed

LOG = "shard_log"


def broken(history: History) -> frozenset[str]:
    return frozenset(each.invariant for each in check(history).violations)


def rewritten(history: History, change: Callable[[Change], list[Change]]) -> History:
    """The history with its last line of the epoch log made into these."""
    at = max(n for n, one in enumerate(history.commits) if any(c.table == LOG for c in one.changes))
    commit = history.commits[at]
    changes: list[Change] = []
    for each in commit.changes:
        changes += change(each) if each.table == LOG else [each]
    fresh = replace(commit, changes=tuple(changes))
    return replace(history, commits=(*history.commits[:at], fresh, *history.commits[at + 1 :]))


def lowered(line: Change) -> list[Change]:
    return [replace(line, row={**line.row, "epoch": "3"})]


def no_changes(_line: Change) -> list[Change]:
    return []


def twice(line: Change) -> list[Change]:
    return [line, replace(line, row={**line.row, "seq": "99"})]


def another_tenure(line: Change) -> list[Change]:
    return [replace(line, row={**line.row, "tenure": "m9"})]


@pytest.mark.parametrize("change", [lowered, no_changes, twice, another_tenure])
def test_a_log_that_differs_from_the_takeovers_breaks_s3(
    change: Callable[[Change], list[Change]],
) -> None:
    assert broken(leader_killed().history()) == frozenset()
    assert "S3" in broken(rewritten(leader_killed().history(), change))


def test_a_line_that_is_rewritten_later_breaks_s3() -> None:
    history = leader_killed().history()
    line = next(c for one in history.commits for c in one.changes if c.table == LOG)
    later = replace(line, op="update", row={**line.row, "tenure": "m9"})
    last = history.commits[-1]
    fresh = replace(last, changes=(*last.changes, later))
    assert "S3" in broken(replace(history, commits=(*history.commits[:-1], fresh)))


def test_a_line_that_the_database_lost_breaks_s3() -> None:
    history = leader_killed().history()
    lines = [c.row for one in history.commits for c in one.changes if c.table == LOG]
    assert broken(replace(history, database={**history.database, LOG: tuple(lines)})) == frozenset()
    assert "S3" in broken(replace(history, database={**history.database, LOG: tuple(lines[:-1])}))
