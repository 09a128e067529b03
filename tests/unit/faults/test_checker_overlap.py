"""S9, S10: how many at once, and one attempt after the other."""

from __future__ import annotations

from typing import Any

import pytest

from faults.checker import check
from support.story import broken, leader_killed, no_faults, update

NONE: frozenset[str] = frozenset()


# -- S9


def test_two_admitted_runs_of_a_job_that_skips_break_s9() -> None:
    story = leader_killed(without={150, 151})
    story.play(story.fire(150), 150.05, lasts=1.5)
    story.play(story.fire(151), 151.05)
    assert "S9" in broken(story)


def test_a_run_that_waits_for_its_retry_counts_as_admitted() -> None:
    story = leader_killed(without={150, 151})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 3)
    story.accept(run, 150.15, 3, state="RETRYING", reason="EXIT_CODE")
    story.play(story.fire(151), 151.05)
    story.play(run, 151.5)
    assert "S9" in broken(story)


def test_a_pre_dispatched_run_that_was_returned_no_longer_counts() -> None:
    story = leader_killed(without={150, 151})
    pre_dispatched = story.fire(151, on=149.8)
    story.assign(pre_dispatched, 149.9)
    story.give_back(pre_dispatched, 150.1)
    story.play(story.fire(150), 150.3, lasts=0.5)
    story.play(pre_dispatched, 151.1)
    assert broken(story) == NONE


def test_a_pre_dispatched_run_that_was_returned_is_admitted_again() -> None:
    story = leader_killed(without={150, 151})
    pre_dispatched = story.fire(151, on=149.8)
    story.assign(pre_dispatched, 149.9)
    story.give_back(pre_dispatched, 150.1)
    story.play(story.fire(150), 150.3, lasts=1.5)
    story.play(pre_dispatched, 151.1)
    assert "S9" in broken(story)


def test_more_runs_than_allowed_break_s9() -> None:
    story = no_faults(without={150, 151, 152}, overlap="allow:2")
    for at in (150, 151, 152):
        story.play(story.fire(at), at + 0.05, lasts=4)
    assert broken(story) == {"S9"}


def test_two_starts_at_once_without_a_lost_lease_break_s9() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.accept(run, 150.5, 1, exit_code=None, reason="TIMEOUT")
    story.write("end", run, 151.5, None)
    assert broken(story) == {"S9"}


def test_two_starts_at_once_after_a_lost_lease_are_counted() -> None:
    story = leader_killed(without={150}, delivery="at_most_once")
    run = story.fire(150)
    story.assign(run, 150.05, "w2")
    story.write("start", run, 150.07)
    story.rescue(run, 150.5, state="FAILED")
    story.write("end", run, 151.5, 0)
    assert broken(story) == NONE
    assert check(story.history()).figures.overlaps == 1


@pytest.mark.parametrize("lost", [True, False])
def test_the_run_dispatched_first_may_start_last_once_its_lease_was_lost(lost: bool) -> None:
    """Its worker stood still between its look at the lease and the start."""
    story = leader_killed(without={150, 151}, delivery="at_most_once")
    first = story.fire(150)
    story.assign(first, 150.05, "w2")
    if lost:
        story.rescue(first, 150.5, state="FAILED")
    else:
        story.accept(first, 150.5, 1, exit_code=None, reason="TIMEOUT")
    second = story.fire(151)
    story.assign(second, 151.05, "w1")
    story.write("start", second, 151.07)
    story.write("start", first, 151.1)
    story.write("end", first, 151.3, 0)
    story.accept(second, 151.4)
    story.write("end", second, 151.35, 0)
    assert ("S9" in broken(story)) is not lost
    assert check(story.history()).figures.overlaps == int(lost)


def test_a_run_skipped_for_overlap_breaks_nothing() -> None:
    story = leader_killed(without={150, 151})
    story.play(story.fire(150), 150.05, lasts=1.5)
    story.update_run(story.fire(151), 151.05, state="SKIPPED", reason="OVERLAP")
    assert broken(story) == NONE


def test_as_many_runs_as_overlap_allows_break_nothing() -> None:
    story = no_faults(without={150, 151}, overlap="allow:2")
    story.play(story.fire(150), 150.05, lasts=1.5)
    story.play(story.fire(151), 151.05)
    assert broken(story) == NONE


# -- S10


def test_another_token_while_it_runs_breaks_s10() -> None:
    story = leader_killed(without={150}, attempts=2)
    run = story.fire(150)
    story.assign(run, 150.05)
    story.play(run, 150.2)
    assert broken(story) == {"S10"}


def test_a_run_that_changes_hands_under_its_token_breaks_s10() -> None:
    changes: list[dict[str, Any]] = [
        {"worker": "w2"},
        {"incarnation": "w2/0.1"},
        {"generation": "2"},
    ]
    for change in changes:
        story = leader_killed(without={150})
        run = story.fire(150)
        story.assign(run, 150.05)
        story.write("start", run, 150.07)
        story.write("end", run, 150.1, 0)
        story.accept(run, 150.15, **change)
        assert broken(story) == {"S10"}, change


def test_a_run_declared_lost_while_its_worker_runs_breaks_s10() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    run.row |= {"state": "RETRYING", "attempt": "0", "losses": "1", "reason": "WORKER_LOST"}
    story.commit(150.1, update("runs", dict(run.row)))
    story.play(run, 150.2)
    assert broken(story) == {"S10"}


def test_a_run_given_back_though_it_started_breaks_s10() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.give_back(run, 150.1)
    story.play(run, 150.2)
    assert broken(story) == {"S10", "L5"}


def test_a_start_while_the_attempt_before_runs_breaks_s10() -> None:
    story = leader_killed(without={150}, attempts=2)
    run = story.fire(150)
    token = story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.accept(run, 150.2, 3, state="RETRYING", reason="TIMEOUT", exit_code=None)
    story.play(run, 150.3)
    story.write("end", run, 150.6, None, token=token)
    assert broken(story) == {"S10"}


def test_a_rerun_after_a_lost_lease_breaks_nothing() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    token = story.assign(run, 150.05, "w2")
    story.write("start", run, 150.07)
    story.rescue(run, 150.2)
    story.play(run, 150.3)
    story.write("end", run, 150.6, 0, token=token, worker="w2")
    assert broken(story) == NONE


def test_a_run_that_never_started_is_given_back() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.give_back(run, 150.1)
    story.play(run, 150.2)
    assert broken(story) == NONE


def test_a_stalled_worker_that_started_a_returned_run_is_excused() -> None:
    story = no_faults(without=set(range(95, 120)))
    story.fault("SIGSTOP", "w2", 95.0, 112.0)
    run = story.fire(95)
    token = story.assign(run, 95.05, "w2")
    story.give_back(run, 102)
    story.play(run, 103)
    story.write("start", run, 112.1, token=token, worker="w2")
    story.write("end", run, 112.2, 0, token=token, worker="w2")
    story.refuse(run, token, 112.3, "w2/0.1")
    for at in range(96, 103):
        story.update_run(story.fire(at), at + 0.1, state="SKIPPED", reason="OVERLAP")
    story.tick(range(103, 120))
    assert "S10" not in broken(story)
    assert "L5" not in broken(story)
    story.nemesis.clear()
    assert {"S10", "L5"} <= broken(story)
