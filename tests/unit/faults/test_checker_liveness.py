"""L3, L4, L5, L6: the cluster comes back, whole, and every extra start has its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from faults.checker import check
from faults.checker.verdict import Figures
from faults.history import Leftovers, Nemesis
from support.story import BASE, Story, broken, delete, insert, leader_killed, live_row, no_faults

NONE: frozenset[str] = frozenset()


def cut() -> Story:
    """Return a fault that changes nothing on its own: from 90 to 112, with F until 118."""
    story = no_faults()
    story.fault("cut", "m2", 90, 112)
    return story


# -- L3


def test_a_shard_without_an_owner_breaks_l3() -> None:
    story = cut()
    story.take(1, None, 110, epoch=100)
    story.take(1, "m1", 121)
    assert broken(story) == {"L3"}


def test_a_shard_of_a_dead_owner_breaks_l3() -> None:
    story = no_faults()
    story.fault("kill", "m2", 90, 112)
    story.tenure("m3", 0.02)
    story.fence("m2", 120)
    story.take(1, "m3", 120.1)
    verdict = check(story.history())
    assert verdict.broken == {"L3"}
    assert "no living owner" in verdict.violations[0].what


def test_a_shard_taken_in_time_breaks_nothing() -> None:
    story = cut()
    story.take(1, None, 110, epoch=100)
    story.take(1, "m1", 117)
    assert broken(story) == NONE


def test_a_leader_elected_too_late_breaks_l3() -> None:
    story = cut()
    story.term(2, "m2", 121)
    assert broken(story) == {"L3"}


def test_no_leader_breaks_l3() -> None:
    story = cut()
    story.term(2, "m9", 110)
    story.commit(
        111, insert("tenures", {"id": "m9", "member": "m9", "fenced_at": "2027-01-15 08:02:00+00"})
    )
    assert broken(story) == {"L3"}


def test_a_leader_in_time_breaks_nothing() -> None:
    story = cut()
    story.term(2, "m2", 117)
    assert broken(story) == NONE


def test_a_leader_that_hands_over_breaks_nothing() -> None:
    story = cut()
    story.call("transfer-leader", 119)
    story.term(2, "m2", 119.05)
    assert broken(story) == NONE


def test_a_worker_that_attaches_too_late_breaks_l3() -> None:
    story = no_faults()
    story.fault("kill", "w2", 90, 112)
    story.lose("w2/0.1", 103)
    story.attach("w2", 123)
    assert broken(story) == {"L3"}


def test_a_worker_that_was_dead_and_not_yet_lost_breaks_l3() -> None:
    story = no_faults()
    story.fault("kill", "w2", 90, 112)
    story.lose("w2/0.1", 124)
    assert broken(story) == {"L3"}


def test_a_worker_in_time_breaks_nothing() -> None:
    story = no_faults()
    story.fault("kill", "w2", 90, 112)
    story.lose("w2/0.1", 103)
    story.attach("w2", 115)
    assert broken(story) == NONE


def test_a_verdict_waits_for_the_next_fault() -> None:
    story = cut()
    story.take(1, None, 110, epoch=100)
    story.fault("cut", "m1", 116, 140)
    story.take(1, "m1", 135)
    assert broken(story) == NONE


def test_rows_from_before_the_first_commit_count() -> None:
    story = cut()
    before = [change for at, changes in story.transactions if at < 0.2 for change in changes]
    story.transactions = [one for one in story.transactions if one[0] >= 0.2]
    tables = {change.table for change in before}
    initial = {name: tuple(c.row for c in before if c.table == name) for name in tables}
    history = replace(story.history(), initial=initial)
    assert check(history).broken == NONE
    assert check(replace(history, initial={})).broken == {"N1"}


# -- L4


def test_a_run_that_no_worker_takes_breaks_l4() -> None:
    story = leader_killed(without={150})
    story.fire(150)
    verdict = check(story.history())
    assert verdict.broken == {"L2", "L4"}
    assert any("no owner dispatches it" in each.what for each in verdict.violations)


def test_a_run_of_a_lost_worker_that_stays_running_breaks_l4() -> None:
    story = leader_killed(without={150}, overlap="allow")
    run = story.fire(150)
    story.assign(run, 150.05, "w2")
    story.write("start", run, 150.07)
    story.lose("w2/0.1", 153)
    story.attach("w2", 154)
    assert broken(story) == {"L4"}


def test_a_run_that_never_started_and_stays_running_breaks_l4() -> None:
    story = leader_killed(without={150}, overlap="allow")
    story.assign(story.fire(150), 150.05, "w2")
    assert broken(story) == {"L2", "L4"}


def test_a_run_past_its_timeout_breaks_l4() -> None:
    story = leader_killed(without={150}, overlap="allow", timeout=20.0)
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    assert broken(story) == {"L4"}


def test_a_run_under_way_at_the_end_breaks_nothing() -> None:
    story = leader_killed(without={150, 245}, overlap="allow", timeout=200.0)
    for at in (150, 245):
        run = story.fire(at)
        story.assign(run, at + 0.05)
        story.write("start", run, at + 0.07)
    assert broken(story) == NONE


@pytest.mark.parametrize("kind", ["processes", "etcd_keys", "spool_files", "cgroups"])
def test_a_leftover_breaks_l4(kind: str) -> None:
    story = no_faults()
    story.leftovers = Leftovers(**{kind: ("something",)})
    assert broken(story) == {"L4"}


def test_a_row_of_live_that_remains_after_its_run_breaks_l4() -> None:
    story = no_faults()
    run = story.new(150)
    story.commit(151, insert("live", live_row(run)))
    assert broken(story) == {"L4"}


def test_a_run_that_no_row_of_live_shows_breaks_l4() -> None:
    story = leader_killed(without={249})
    run = story.fire(249)
    story.commit(249.1, delete("live", live_row(run)))
    assert broken(story) == {"L4"}


# -- L5


def test_two_starts_under_one_token_break_l5() -> None:
    story = leader_killed(without={150})
    run = story.play(story.fire(150), 150.05)
    story.write("start", run, 150.2, worker="w2")
    verdict = check(story.history())
    assert verdict.broken == {"L5"}
    assert (verdict.figures.doubled, verdict.figures.explained) == (1, 0)


def test_a_start_under_a_token_that_was_never_committed_breaks_l5() -> None:
    story = leader_killed()
    run = story.new(150)
    story.write("start", run, 150.5, token=100 << 32 | 150_300)
    assert broken(story) == {"L5"}


def test_a_start_of_a_run_that_no_commit_made_breaks_l5() -> None:
    story = leader_killed()
    run = story.new(150, run_id="phantom")
    story.write("start", run, 150.5, token=100 << 32 | 150_300)
    assert broken(story) == {"L5"}


def test_a_start_on_another_worker_breaks_l5() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07, worker="w2")
    story.write("end", run, 150.1, 0, worker="w2")
    story.accept(run, 150.15)
    assert broken(story) == {"L5"}


def test_a_rerun_of_an_at_most_once_job_breaks_l5() -> None:
    story = leader_killed(without={150}, delivery="at_most_once")
    run = story.fire(150)
    story.assign(run, 150.05, "w2")
    story.write("start", run, 150.07)
    story.rescue(run, 150.2)
    story.play(run, 150.3)
    assert broken(story) == {"L5"}


def test_a_run_handed_back_by_a_drain_runs_again_unless_at_most_once() -> None:
    for delivery, expected in (("at_least_once", NONE), ("at_most_once", {"L5"})):
        story = leader_killed(without={150}, delivery=delivery)
        run = story.fire(150)
        story.assign(run, 150.05, "w2")
        story.write("start", run, 150.07)
        returned = {"state": "PENDING", "reason": None, "attempt": "0", "exit_code": None}
        story.accept(run, 150.2, 1, digest="\\x01", **returned)
        story.play(run, 150.3)
        assert broken(story) == expected, delivery


def test_a_retry_of_an_at_most_once_job_breaks_nothing() -> None:
    story = leader_killed(without={150}, delivery="at_most_once", attempts=2)
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 3)
    story.accept(run, 150.15, 3, state="RETRYING", reason="EXIT_CODE")
    story.play(run, 150.3)
    assert broken(story) == NONE


def test_a_late_start_under_the_older_token_of_a_lost_worker_is_explained() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    token = story.assign(run, 150.05, "w2")
    story.rescue(run, 150.2)
    story.play(run, 150.3)
    story.write("start", run, 150.6, token=token, worker="w2")
    story.refuse(run, token, 150.8, "w2/0.1")
    verdict = check(story.history())
    assert verdict.broken == NONE
    assert verdict.figures.explained == 1


def test_misses_and_duplicates_are_reported_per_10_000() -> None:
    figures = Figures(judged=4000, lost=2, doubled=1, explained=3)
    assert (figures.misses_per_10_000, figures.duplicates_per_10_000) == (5.0, 10.0)


def test_a_daemon_that_ends_unexpectedly_breaks_l4() -> None:
    story = no_faults()
    story.leftovers = Leftovers(restarts=("m1",))
    verdict = check(story.history())
    assert verdict.broken == {"L4"}
    assert verdict.violations[0].what == "m1 ended on its own 1 times and was started again"


def test_a_daemon_that_a_failpoint_killed_is_started_again_once() -> None:
    story = no_faults()
    fault = Nemesis(BASE + 50, 1, "kill -9 at fire.after_commit", "a member", "took_effect")
    story.nemesis.append(replace(fault, detail={"member": "m1"}))
    story.leftovers = Leftovers(restarts=("m1",))
    assert "L4" not in check(story.history()).broken
    story.leftovers = Leftovers(restarts=("m1", "m1"))
    assert "L4" in check(story.history()).broken


# -- L6


@pytest.mark.parametrize(
    ("field", "leaked"),
    [
        ("rss_kib", 300_000),
        ("fds", 400),
        ("threads", 90),
        ("connections", 40),
        ("spool_bytes", 10_000_000),
        ("heap_bytes", 50_000_000),
        ("dead_rows", 5_000),
    ],
)
def test_a_service_that_doesnt_recover_breaks_l6(field: str, leaked: int) -> None:
    story, held = no_faults(), cast("dict[str, Any]", {field: leaked})
    few = {"heap_bytes": 100_000, "dead_rows": 0}
    story.resources = [replace(sample, **few) for sample in story.resources]
    story.resources = [
        replace(sample, **held) if (sample.who, sample.phase) == ("w1", "after") else sample
        for sample in story.resources
    ]
    verdict = check(story.history())
    assert verdict.broken == {"L6"}
    assert verdict.violations[0].what.startswith("w1 holds")


def test_a_resource_held_meanwhile_breaks_nothing() -> None:
    story = no_faults()
    story.resources = [
        replace(sample, rss_kib=900_000, fds=900)
        if sample.phase == "during"
        else replace(sample, rss_kib=sample.rss_kib + int((sample.at - BASE) * 40))
        for sample in story.resources
    ]
    assert broken(story) == NONE
