"""Runs that are created and pre-dispatched before they are due."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.priority_order import rank_of
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import JobId, RunId, Token, scheduled_run_id
from schedd.core.jobs.definition import Definition, Delivery, Overlap, Placement, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.runs.pools import PoolKey
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.calendars.rules import Exclude
from schedd.core.timers.pre_dispatch import (
    EarlyRuns,
    Lookahead,
    early_rank,
    edited_away,
    may_be_pre_dispatched,
    may_go_early,
    start_not_before,
)
from support.runs import NOW, run, running, worker

JOB = JobId(run(1).job_id)
PLAIN = Definition(2, "default", action="shell", overlap=Overlap.SKIP)
EVERY = compiled_schedule.compile(
    compiled_schedule.EverySchedule(timedelta(seconds=10)), "default/j", JOB
)
NARROW, WIDE = Need("shell"), Need("shell", slots=3)


def second(number: float) -> timedelta:
    return timedelta(seconds=number)


def due(number: int, after: float, **changes: Any) -> LiveRun:
    at = NOW + second(after)
    return run(number, due_at=at, ready_at=at, **changes)


def of_instant(at: datetime, **changes: Any) -> LiveRun:
    key = RunKey(at, scheduled_run_id(JOB, at))
    return run(1, key=key, due_at=at, ready_at=at, **{"generation": 1, **changes})


@pytest.mark.parametrize(
    ("fire", "dispatch"), [(1.0, 2.0), (-1.0, -2.0), (31.0, 1.0), (1.0, -1.0)], ids=str
)
def test_no_run_is_dispatched_before_its_creation_or_created_beyond_the_database_guard(
    fire: float, dispatch: float
) -> None:
    with pytest.raises(ValueError, match="at most 30 s"):
        Lookahead(second(fire), second(dispatch))


@pytest.mark.parametrize(("fire", "guard"), [(0.0, 5.0), (2.5, 5.0), (4.5, 7.0), (30.0, 32.5)])
def test_the_database_guard_is_beyond_any_lookahead(fire: float, guard: float) -> None:
    assert Lookahead(second(fire)).guard == second(guard)


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"state": State.RETRYING}, False),
        ({"token": Token(3)}, False),
        ({"parent": RunId(JOB)}, False),
        ({"ready_at": NOW + second(60)}, False),
    ],
    ids=["fresh", "retrying", "given back", "a child", "late, or in its back-off"],
)
def test_a_run_that_waits_only_for_its_due_time_may_be_dispatched_early(
    changes: dict[str, Any], may: bool
) -> None:
    assert may_go_early(replace(due(1, 5), **changes)) is may


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"overlap": Overlap.ALLOW}, True),
        ({"pause_after_failures": 3}, True),
        ({"overlap": Overlap.ALLOW, "pause_after_failures": 3}, False),
        ({"overlap": Overlap.BUFFER_ONE}, False),
        ({"overlap": Overlap.BUFFER_ALL}, False),
        ({"overlap": Overlap.CANCEL_OTHER}, False),
        ({"overlap": Overlap.TERMINATE_OTHER}, False),
        ({"pool": PoolKey("default/p")}, False),
        ({"placement": Placement.BROADCAST}, False),
        ({"placement": Placement.STICKY}, True),
        ({"delivery": Delivery.AT_MOST_ONCE}, False),
    ],
    ids=str,
)
def test_a_run_that_may_still_be_forbidden_isnt_pre_dispatched(
    changes: dict[str, Any], may: bool
) -> None:
    assert may_be_pre_dispatched(of_instant(NOW), replace(PLAIN, **changes), EVERY) is may


def test_a_run_of_an_old_definition_is_pre_dispatched_if_the_newest_has_its_time() -> None:
    assert may_be_pre_dispatched(of_instant(NOW), PLAIN, EVERY)
    between = NOW + second(3)
    assert not may_be_pre_dispatched(of_instant(between), PLAIN, EVERY)
    assert may_be_pre_dispatched(of_instant(between, generation=2), PLAIN, EVERY), (
        "it was made by this one"
    )


def test_a_run_dispatched_before_its_ready_time_reports_when_it_starts() -> None:
    pre_dispatched = replace(running(1, worker()), ready_at=NOW, start_by=NOW + second(5))
    assert start_not_before(pre_dispatched) == NOW
    assert start_not_before(replace(pre_dispatched, start_by=NOW + second(5.000001))) is None
    assert start_not_before(run(1)) is None


@pytest.mark.parametrize(
    ("at", "edited", "generation", "away"),
    [
        (3, 2, 1, True),
        (3, 4, 1, False),
        (10, 2, 1, False),
        (3, 2, 2, False),
    ],
    ids=["taken out before", "was due before the edit", "still an instant", "of this definition"],
)
def test_a_time_removed_before_its_due_time_is_edited_away(
    at: float, edited: float, generation: int, away: bool
) -> None:
    one = of_instant(NOW + second(at), generation=generation)
    assert edited_away(one, PLAIN, EVERY, NOW + second(edited)) is away


def test_a_time_excluded_by_an_edit_is_edited_away_and_not_pre_dispatched() -> None:
    """The run was created early, so its time was not excluded then."""
    every = compiled_schedule.EverySchedule(timedelta(seconds=10))
    noons = Exclude(cron=("0 12 * * *",))
    excluding = compiled_schedule.compile(every, "default/j", JOB, exclude=noons)
    noon, after = of_instant(NOW), of_instant(NOW + second(60))
    assert [excluding.excludes(one.key.scheduled_at) for one in (noon, after)] == [True, False]
    assert [may_be_pre_dispatched(one, PLAIN, excluding) for one in (noon, after)] == [False, True]
    before = NOW - second(1)
    assert edited_away(noon, PLAIN, excluding, before)
    assert not edited_away(after, PLAIN, excluding, before)


@pytest.mark.parametrize("state", [State.RETRYING, State.RUNNING])
def test_a_run_that_may_have_begun_continues_after_its_time_was_removed(state: State) -> None:
    """P3.18: a skipped run never began, and a retrying run may not end so."""
    lost = of_instant(NOW + second(3), state=state, token=Token(7))
    assert not edited_away(lost, PLAIN, EVERY, NOW + second(2))


def test_a_manual_run_is_never_removed_by_an_edit() -> None:
    assert not edited_away(due(1, 3, generation=1), PLAIN, EVERY, NOW)


def test_runs_are_ordered_by_due_time_and_then_by_priority() -> None:
    early = EarlyRuns()
    early.add(due(1, 3), NARROW)
    early.add(due(2, 1, priority=Priority.LOW), WIDE)
    early.add(due(3, 1, priority=Priority.HIGH), NARROW)
    early.add(due(4, 2), WIDE)

    def numbers(count: int) -> list[int]:
        return [one.key.run_id.number for one in early.take_runs(count, lambda _: True)]

    assert (numbers(3), numbers(3), len(early)) == ([3, 2, 4], [1], 0)


def test_a_need_that_cannot_be_dispatched_blocks_no_other() -> None:
    early = EarlyRuns()
    early.add(due(1, 1), WIDE)
    early.add(due(2, 2), NARROW)
    assert [one.key.run_id.number for one in early.take_runs(9, lambda need: need == NARROW)] == [2]
    assert run(1).key.run_id in early


def test_a_run_added_again_is_listed_once_with_its_newest_state() -> None:
    early = EarlyRuns()
    early.add(due(1, 1), WIDE)
    early.add(due(2, 2), WIDE)
    early.add(due(1, 3), WIDE)
    early.add(due(2, 2), NARROW)
    assert len(early) == 2
    assert [one.key.run_id.number for one in early.take_runs(9, lambda _: True)] == [2, 1]
    assert early.take_runs(9, lambda _: True) == []


def test_heads_request_slots_behind_all_ready_runs() -> None:
    early = EarlyRuns()
    for number in range(1, 4):
        early.add(due(number, number, priority=Priority.HIGH), NARROW)
    early.add(due(9, 2), WIDE)
    low = Priority.LOW
    assert early.heads(lambda _: True) == [
        QueueHead(low, NOW + second(2), 3, 3),
        QueueHead(low, NOW + second(1), 3, 1),
    ]
    assert early.heads(lambda need: need == WIDE) == [QueueHead(low, NOW + second(2), 3, 3)]
    ready = run(8, priority=Priority.LOW)
    assert rank_of(ready) < early_rank(due(1, 1, priority=Priority.HIGH))


def test_runs_of_a_lost_shard_and_discarded_runs_are_removed() -> None:
    early = EarlyRuns()
    for number in range(1, 5):
        early.add(due(number, number, shard=number % 2), NARROW)
    early.discard(run(1).key.run_id)
    early.discard(run(1).key.run_id)
    early.drop_shards({run(1).shard})
    assert [one.key.run_id.number for one in early.take_runs(9, lambda _: True)] == [3]
