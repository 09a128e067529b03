"""Runs that a keeper kills because its worker's lease is lost, and when."""

from __future__ import annotations

from workerd.core.lease_trust import SLACK, KillEntry, LeaseKillList

FAST, SLOW = KillEntry(10, 111, 1.0, "fast", 1), KillEntry(20, 222, 10.0, "slow", 2)


def test_each_run_is_due_its_own_kill_after_past_the_end_of_trust() -> None:
    doom = LeaseKillList()
    doom.passed(100.0, [FAST, SLOW])
    assert doom.due(100.9 + SLACK) == []
    assert doom.due(101.0 + SLACK) == [FAST]
    assert doom.due(110.0 + SLACK) == [FAST, SLOW]


def test_a_listed_run_stays_listed_when_trust_returns_and_ends_again() -> None:
    doom = LeaseKillList()
    doom.passed(100.0, [SLOW])
    doom.passed(105.0, [SLOW, FAST])
    assert doom.due(110.0 + SLACK) == [SLOW, FAST]


def test_an_ended_run_is_never_killed() -> None:
    doom = LeaseKillList()
    doom.passed(100.0, [FAST, SLOW])
    doom.retain_only([SLOW])
    assert doom.due(200.0) == [SLOW]


def test_a_killed_run_is_killed_once_while_it_is_still_listed() -> None:
    doom = LeaseKillList()
    doom.passed(100.0, [FAST])
    doom.killed(FAST)
    doom.passed(105.0, [FAST])
    assert doom.due(200.0) == []
