"""Random damage to a correct history is found, or it is provably harmless.

Each corruption is one that a broken product, or a broken recorder, would leave. What makes one
harmless is said beside it; everything else must break an invariant. TEETH_EXAMPLES=30 tries more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from faults.checker import check
from faults.checker.results import digest
from faults.history import Change, Commit, History, ProbeEvent
from support.story import BASE, leader_killed, no_faults

EXAMPLES = int(os.environ.get("TEETH_EXAMPLES", "10"))
ON_TIME = 1.0
CLOCKS = 0.1
STATES = ("PENDING", "RUNNING", "RETRYING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED", "MISSED")
FIELDS = ("state", "token", "worker", "digest", "fired_by", "scheduled_at", "generation")
UNJUDGED = ("timers", "live")
"""Timers are damaged by a test of their own; `live` is judged by what it ends as."""
Corrupt = Callable[[History], tuple[History, bool]]
"""Gives the damaged history, and whether the damage is harmless."""

positions = st.integers(0, 10_000)


@cache
def correct() -> History:
    return leader_killed().history()


@cache
def quiet() -> History:
    return no_faults().history()


def found(history: History) -> frozenset[str]:
    return check(history).broken


def starts(history: History) -> list[ProbeEvent]:
    return [probe for probe in history.probes if probe.event == "start"]


def with_probes(history: History, old: ProbeEvent, *new: ProbeEvent) -> History:
    kept = [probe for probe in history.probes if probe is not old]
    return replace(history, probes=tuple(sorted([*kept, *new], key=lambda probe: probe.at)))


@settings(deadline=None, max_examples=EXAMPLES)
@given(positions)
def test_a_missing_probe_line_is_detected(position: int) -> None:
    history = correct()
    lost = history.probes[position % len(history.probes)]
    assert found(with_probes(history, lost)) & {"L2", "S1", "N1"}


@settings(deadline=None, max_examples=EXAMPLES)
@given(positions, st.sampled_from(["w1", "w2"]), st.floats(0, 100))
def test_an_added_duplicate_start_breaks_l5(position: int, worker: str, later: float) -> None:
    history = correct()
    first = starts(history)[position % len(starts(history))]
    again = replace(first, worker=worker, at=first.at + later)
    assert "L5" in found(with_probes(history, first, first, again))


@settings(deadline=None, max_examples=EXAMPLES)
@given(positions, st.floats(-3, 3) | st.floats(-0.3, 0.3))
def test_a_moved_start_is_detected_unless_harmless(position: int, shift: float) -> None:
    history = quiet()
    start = starts(history)[position % len(starts(history))]
    end = next(p for p in history.probes if p.event == "end" and p.run == start.run)
    moved = replace(start, at=start.at + shift)
    lateness = moved.at - start.instant
    harmless = -CLOCKS <= lateness <= ON_TIME and moved.at <= end.at
    assert bool(found(with_probes(history, start, moved))) is not harmless


def runs_changes(commit: Commit) -> list[Change]:
    return [change for change in commit.changes if change.table == "runs"]


def judged(history: History) -> list[int]:
    """The commits that say something about a run or the cluster."""
    return [
        number
        for number, commit in enumerate(history.commits)
        if any(change.table not in (*UNJUDGED, "jobs") for change in commit.changes)
    ]


def with_commits(history: History, commits: tuple[Commit, ...]) -> History:
    """The history with these commits, and with the final rows that they add up to."""
    rows: dict[str | None, dict[str, str | None]] = {}
    for commit in commits:
        for change in runs_changes(commit):
            rows[change.row["run_id"]] = dict(change.row)
    return replace(history, commits=commits, database={"runs": tuple(rows.values())})


@settings(deadline=None, max_examples=EXAMPLES)
@given(positions)
def test_a_missing_commit_is_detected_unless_harmless(position: int) -> None:
    history = quiet()
    number = judged(history)[position % len(judged(history))]
    lost = history.commits[number]
    kept = history.commits[:number] + history.commits[number + 1 :]
    # a term, a worker, the other shard: nothing else contradicts their absence
    first = lost.changes[0]
    other = first.table != "tenures" and (first.table != "shards" or first.row["id"] != "0")
    unused = lost.at < BASE + 0.2 and other
    # at the end a result may still be under way
    last = lost.at > BASE + 235 and runs_changes(lost)[0].row["state"] == "SUCCEEDED"
    assert found(with_commits(history, kept)) or unused or last


@settings(deadline=None, max_examples=EXAMPLES)
@given(positions)
def test_a_missing_change_of_a_timer_is_detected(position: int) -> None:
    history = correct()
    numbers = [
        n for n, c in enumerate(history.commits) if any(x.table == "timers" for x in c.changes)
    ]
    number = numbers[position % len(numbers)]
    commit = history.commits[number]
    kept = tuple(change for change in commit.changes if change.table != "timers")
    commits = (
        *history.commits[:number],
        replace(commit, changes=kept),
        *history.commits[number + 1 :],
    )
    assert found(replace(history, commits=commits)) & {"S5", "S8"}


@settings(deadline=None, max_examples=EXAMPLES)
@given(positions)
def test_a_duplicated_final_row_is_detected(position: int) -> None:
    history = correct()
    rows = history.database["runs"]
    again = rows[position % len(rows)]
    assert {"S5", "S11"} <= found(replace(history, database={"runs": (*rows, again)}))


@settings(deadline=None, max_examples=EXAMPLES)
@given(positions, st.integers(1, 50))
def test_a_delayed_commit_is_detected_unless_harmless(position: int, later: int) -> None:
    """A commit takes effect only after `later` others. Harmless where those are of other rows."""
    history = quiet()
    commits = list(history.commits)
    numbers = [n for n in judged(history) if n + later < len(commits) and runs_changes(commits[n])]
    number = numbers[position % len(numbers)]
    moved = commits.pop(number)
    commits.insert(number + later, moved)
    mine = {change.row["run_id"] for change in runs_changes(moved)}
    passed = commits[number : number + later]
    own = any(mine & {c.row["run_id"] for c in runs_changes(each)} for each in passed)
    assert found(with_commits(history, tuple(commits))) or not own


@settings(deadline=None, max_examples=2 * EXAMPLES)
@given(positions, st.sampled_from(FIELDS), st.data())
def test_a_changed_field_is_detected_unless_harmless(
    position: int, field: str, data: st.DataObject
) -> None:
    history = correct()
    numbers = [n for n in judged(history) if runs_changes(history.commits[n])]
    number = numbers[position % len(numbers)]
    commit = history.commits[number]
    old = runs_changes(commit)[0]
    value = data.draw(values(field, old), label=field)
    new = replace(old, row={**old.row, field: value})
    changes = tuple(new if change is old else change for change in commit.changes)
    commits = (
        *history.commits[:number],
        replace(commit, changes=changes),
        *history.commits[number + 1 :],
    )
    ended = old.row["state"] not in ("PENDING", "RUNNING", "RETRYING")
    harmless = (
        value == old.row[field]
        # a merged row says what it is by its policy's words
        or (old.row["state"] == "COALESCED" and field in ("token", "worker", "digest"))
        # what has no token runs nowhere, and what runs has no digest yet
        or (field == "worker" and old.row["token"] == "0")
        or (field == "digest" and not ended)
        # an end under a fence that moved on is the accept's, not the owner's
        or (field == "fired_by" and value is None)
    )
    assert found(with_commits(history, commits)) or harmless


def values(field: str, old: Change) -> st.SearchStrategy[str | None]:
    row = old.row
    token = int(row["token"] or 0)
    strategies: dict[str, st.SearchStrategy[str | None]] = {
        "state": st.sampled_from(STATES),
        "token": st.sampled_from([str(token + 1), str(max(0, token - 1)), "7"]),
        "worker": st.sampled_from(["w1", "w2", "w9"]),
        "digest": st.sampled_from(["\\x00", "\\x" + digest(str(row["run_id"]), token + 1, 0)]),
        "fired_by": st.sampled_from(["m1", "m2", "m1'", None]),
        "scheduled_at": st.sampled_from(
            ["2027-01-15 08:00:00.5+00:00", "2027-01-15 08:00:07+00:00"]
        ),
        "generation": st.sampled_from(["0", "1", "2", "9"]),
    }
    return strategies[field]


def test_the_correct_histories_are_correct() -> None:
    assert not found(correct())
    assert not found(quiet())
