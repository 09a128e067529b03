"""S8: pause, edit and delete mean it from their `ok` on."""

from __future__ import annotations

from typing import Any

import pytest

from faults.history import Schedule
from support.story import Story, broken, delete, leader_killed, live_row, no_faults, stamp, update

NONE: frozenset[str] = frozenset()
AFTER_220 = frozenset(range(221, 250))


def until_220(call: str | None = None, **wanted: Any) -> Story:
    """All is well until 220; then the job is paused, edited or deleted, `ok` at 220.4."""
    story = no_faults(without=AFTER_220)
    if call is not None:
        story.change(story.jobs["tick"], 220.3, call, **wanted)
    return story


@pytest.mark.parametrize("call", ["pause", "delete"])
def test_a_run_fired_after_a_pause_breaks_s8(call: str) -> None:
    story = until_220(call)
    story.play(story.fire(221), 221.05)
    assert "S8" in broken(story)


def test_a_run_fired_from_the_definition_before_an_edit_breaks_s8() -> None:
    story = until_220("edit", timeout=30.0)
    story.tick(range(222, 250))
    story.play(story.fire(221, generation="1"), 221.05)
    assert broken(story) == {"S8"}


@pytest.mark.parametrize("generation", ["0", "2"])
def test_a_merged_row_of_a_generation_that_is_not_in_force_breaks_s8(generation: str) -> None:
    story = leader_killed(without={101, 102, 103})
    story.merge(101, 102, "COALESCED", 103.7, generation=generation)
    story.play(story.fire(103, on=103.7), 103.8)
    assert "S8" in broken(story)


def test_an_assignment_while_it_is_paused_breaks_s8() -> None:
    story = no_faults(without={*AFTER_220, 220})
    run = story.fire(220)
    story.change(story.jobs["tick"], 220.3, "pause")
    story.assign(run, 221.0)
    assert "S8" in broken(story)


@pytest.mark.parametrize("call", ["pause", "edit", "delete"])
def test_a_run_that_starts_after_its_ok_breaks_s8(call: str) -> None:
    story = no_faults(without={*AFTER_220, 220})
    run = story.fire(220)
    story.assign(run, 220.05)
    story.change(story.jobs["tick"], 220.3, call)
    story.write("start", run, 221.6)
    story.write("end", run, 221.7, 0)
    story.accept(run, 221.8, started_at=None)
    run.row["started_at"] = None
    if call == "edit":
        story.tick(range(221, 250))
    assert "S8" in broken(story)


def test_a_start_that_its_worker_reports_after_the_ok_breaks_s8() -> None:
    story = no_faults(without={*AFTER_220, 220})
    run = story.fire(220)
    story.assign(run, 220.05)
    story.change(story.jobs["tick"], 220.3, "pause")
    story.write("start", run, 220.46)
    story.write("end", run, 220.5, 0)
    story.accept(run, 220.55, started_at=stamp(220.45))
    assert broken(story) == {"S8"}


def test_a_line_a_little_after_a_start_before_the_ok_breaks_nothing() -> None:
    story = no_faults(without={*AFTER_220, 220})
    run = story.fire(220)
    story.assign(run, 220.05)
    story.change(story.jobs["tick"], 220.3, "pause")
    story.write("start", run, 220.6)
    story.write("end", run, 220.7, 0)
    story.accept(run, 220.8, started_at=stamp(220.35))
    assert broken(story) == NONE


def test_a_worker_stopped_between_its_last_check_and_the_start_is_excused() -> None:
    story = no_faults(without={*range(195, 250)})
    story.fault("sigstop", "w1", 195.2, 211.0)
    story.tick(range(196, 206))
    run = story.fire(195)
    story.assign(run, 195.1)
    story.change(story.jobs["tick"], 206.3, "edit", timeout=30.0)
    story.write("start", run, 211.1)
    story.write("end", run, 211.2, 0)
    story.accept(run, 211.3, started_at=None)
    assert "S8" not in broken(story)
    story.nemesis.clear()
    assert "S8" in broken(story)


@pytest.mark.parametrize("call", ["pause", "delete"])
def test_no_run_is_expected_after_a_pause_or_delete(call: str) -> None:
    assert broken(until_220(call)) == NONE


def test_a_pause_of_some_seconds_is_skipped_in_one_row() -> None:
    story = no_faults(without=set(range(151, 250)))
    tick = story.jobs["tick"]
    story.change(tick, 150.3, "pause")
    story.merge(151, 160, "SKIPPED", 160.34, reason="PAUSED", fired_by=None)
    story.change(tick, 160.3, "resume")
    story.tick(range(161, 250))
    assert broken(story) == NONE


def test_triggers_work_while_it_is_paused() -> None:
    story = until_220("pause")
    story.call("trigger", 229.9, job_id=story.jobs["tick"].id)
    story.play(story.fire(230, trigger="MANUAL", fired_by=None), 230.5)
    assert broken(story) == NONE


def test_a_waiting_run_of_a_deleted_job_is_cancelled() -> None:
    story = no_faults(without={*AFTER_220, 220})
    run = story.fire(220)
    tick = story.jobs["tick"]
    story.change(tick, 220.03, "delete")
    run.row |= {"state": "CANCELLED", "reason": "DELETED"}
    story.commit(220.09, update("runs", dict(run.row)), delete("live", live_row(run)))
    assert broken(story) == NONE


def test_an_edit_of_unknown_outcome_may_have_happened() -> None:
    story = no_faults(without=AFTER_220)
    story.change(story.jobs["tick"], 220.3, "edit", phase="unknown", schedule=Schedule(every=2))
    story.tick(range(222, 250, 2))
    assert broken(story) == NONE


def test_an_edit_of_unknown_outcome_may_not_have_happened() -> None:
    story = no_faults(without=AFTER_220)
    committed = list(story.transactions)
    tick = story.jobs["tick"]
    timer = dict(tick.timer)
    story.change(tick, 220.3, "edit", phase="unknown", schedule=Schedule(every=2))
    story.transactions = committed
    tick.generation, tick.timer = 1, timer
    story.tick(range(221, 250))
    assert broken(story) == NONE


def test_a_scheduled_time_unfired_at_an_edit_may_be_missed() -> None:
    story = no_faults(without={*range(150, 250)})
    tick = story.jobs["tick"]
    story.merge(150, 150, "MISSED", 150.34, reason="EDITED", fired_by=None)
    story.change(tick, 150.3, "edit", schedule=Schedule(every=1, phase=0.0, start=1_800_000_150.9))
    story.tick(range(151, 250))
    assert broken(story) == NONE
