"""N1: a run that could not have failed proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.checker import Status, check
from faults.history import Damaged, Row
from support.story import BASE, broken, final, leader_killed, no_faults

ONLY_N1 = {"N1"}


def test_a_fault_that_did_not_take_effect_proves_nothing() -> None:
    story = no_faults()
    story.fault("cut", "m2", 90, 112, took=False)
    verdict = check(story.history())
    assert verdict.broken == ONLY_N1
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.status.exit_code == 2


def test_a_fault_that_too_few_instants_felt_proves_nothing() -> None:
    story = no_faults()
    story.fault("cut", "m2", 100, 118)
    assert broken(story) == ONLY_N1


def test_too_few_instants_prove_nothing() -> None:
    assert broken(no_faults(seconds=150)) == ONLY_N1


def test_no_fault_at_all_proves_nothing_unless_it_was_meant() -> None:
    story = no_faults()
    story.meta = replace(story.meta, scenario="leader-kill")
    assert broken(story) == ONLY_N1


def test_quiet_calls_that_fail_prove_nothing() -> None:
    story = leader_killed()
    for at in (200, 202):
        story.call("list", at, "unknown")
    assert broken(story) == ONLY_N1


def test_calls_that_fail_in_the_fault_count_nothing() -> None:
    story = leader_killed()
    for at in range(101, 110):
        story.call("list", at, "unknown")
    assert broken(story) == frozenset()


def test_no_quiet_call_proves_nothing() -> None:
    story = leader_killed()
    story.clients.clear()
    story.definitions = [replace(each, op=None) for each in story.definitions]
    assert broken(story) == ONLY_N1


def test_a_record_with_holes_proves_nothing() -> None:
    history = leader_killed().history()
    holes = [
        replace(history, damaged=(Damaged("nemesis.jsonl", 3, "cut"),)),
        replace(history, leftovers=None),
        replace(history, resources=()),
        replace(history, database={}),
        replace(history, resources=tuple(r for r in history.resources if r.phase != "after")),
    ]
    for hole in holes:
        assert check(hole).broken == ONLY_N1


def test_an_end_without_its_start_or_before_it_proves_nothing() -> None:
    for moved in (None, 150.5):
        story = leader_killed()
        start = next(p for p in story.probes if p.instant == BASE + 150 and p.event == "start")
        story.probes.remove(start)
        if moved is not None:
            story.probes.append(replace(start, at=BASE + moved))
        assert "N1" in broken(story)


def test_no_probes_prove_nothing() -> None:
    history = replace(leader_killed().history(), probes=())
    assert "N1" in check(history).broken


def test_no_commits_prove_nothing() -> None:
    history = replace(leader_killed().history(), commits=())
    assert check(history).broken == ONLY_N1


def test_final_rows_that_no_commit_made_prove_nothing() -> None:
    history = leader_killed().history()
    rows = history.database["runs"]
    more = (*rows, {**rows[0], "run_id": "stranger", "trigger": "MANUAL"})
    assert check(replace(history, database={"runs": more})).broken == ONLY_N1


def test_changes_of_runs_that_no_commit_made_prove_nothing() -> None:
    history = no_faults().history()
    inserted = next(
        n for n, c in enumerate(history.commits) if any(x.table == "runs" for x in c.changes)
    )
    kept = history.commits[:inserted] + history.commits[inserted + 1 :]
    assert "N1" in check(replace(history, commits=kept)).broken


def test_a_day_under_a_clock_that_the_database_did_not_follow_proves_nothing() -> None:
    history = no_faults().history()
    day = replace(history.meta, scenario="a day", legs=((BASE - 1e9, 0.0),))
    assert check(replace(history, meta=day)).broken == frozenset()
    late = replace(history.commits[-1], at=history.meta.ended + 3600)
    astray = check(replace(history, meta=day, commits=(*history.commits[:-1], late)))
    assert astray.broken == ONLY_N1
    assert "isn't the database's" in astray.doubts[0].what


@pytest.mark.parametrize("table", ["tenures", "incarnations"])
def test_members_and_workers_that_no_commit_made_prove_nothing(table: str) -> None:
    history = no_faults().history()
    rows: tuple[Row, ...] = (*final(history.commits, table), {"id": "stranger"})
    assert check(replace(history, database={**history.database, table: rows})).broken == ONLY_N1
