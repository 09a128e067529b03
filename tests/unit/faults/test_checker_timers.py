"""S5, S8 by the timers: they go past what fires, and show what a user did to a job."""

from __future__ import annotations

from typing import Any

import pytest

from faults.checker import check
from faults.history import Change
from support.story import Story, broken, delete, insert, leader_killed, no_faults, stamp, update

NONE: frozenset[str] = frozenset()
AFTER_220 = frozenset(range(221, 250))


def without_timers(story: Story, at: float) -> Story:
    """The story without what its commit at this second did to timers."""
    others = [(on, changes) for on, changes in story.transactions if on != at]
    (lost,) = (changes for on, changes in story.transactions if on == at)
    kept: tuple[Change, ...] = tuple(each for each in lost if each.table != "timers")
    story.transactions = [*others, (at, kept)]
    return story


def test_a_run_whose_timer_did_not_advance_breaks_s5() -> None:
    story = without_timers(leader_killed(), 150 + 0.01)
    assert broken(story) == {"S5"}
    (violation,) = check(story.history()).violations
    assert "its timer did not advance" in violation.what


def test_a_merged_row_whose_timer_did_not_advance_breaks_s5() -> None:
    story = leader_killed(without={101, 102, 103})
    story.merge(101, 102, "COALESCED", 103.7)
    story.play(story.fire(103, on=103.8), 103.9)
    assert broken(story) == NONE
    assert broken(without_timers(story, 103.7)) == {"S5"}


def test_a_timer_that_stops_at_the_instant_that_fired_breaks_s5() -> None:
    story = no_faults(without={150})
    tick = story.jobs["tick"]
    run = story.new(150)
    run.row["fired_by"] = "m1"
    timer = update("timers", tick.timer | {"nominal": stamp(150)})
    story.commit(150.01, insert("runs", dict(run.row)), timer)
    story.play(run, 150.05)
    assert broken(story) == {"S5"}


def test_the_last_instant_of_a_schedule_leaves_no_next_one() -> None:
    story = no_faults(without={249})
    tick = story.jobs["tick"]
    run = story.new(249)
    run.row["fired_by"] = "m1"
    timer = update("timers", tick.timer | {"nominal": None})
    story.commit(249.01, insert("runs", dict(run.row)), timer)
    story.play(run, 249.05)
    assert broken(story) == NONE


def test_a_trigger_needs_no_timer() -> None:
    story = no_faults()
    story.call("trigger", 200.1, job_id=story.jobs["tick"].id)
    run = story.new(200.15, trigger="MANUAL")
    story.commit(200.15, insert("runs", dict(run.row)))
    story.play(run, 200.2)
    assert "S5" not in broken(story)


@pytest.mark.parametrize(
    ("call", "wanted"), [("pause", {}), ("delete", {}), ("edit", {"timeout": 30.0})]
)
def test_a_call_that_its_timer_does_not_show_breaks_s8(call: str, wanted: dict[str, Any]) -> None:
    story = no_faults(without=AFTER_220)
    story.change(story.jobs["tick"], 220.3, call, **wanted)
    assert "S8" not in broken(story)
    assert "S8" in broken(without_timers(story, 220.3 + 0.05))


def test_a_resume_that_its_timer_does_not_show_breaks_s8() -> None:
    story = no_faults(without=AFTER_220)
    tick = story.jobs["tick"]
    story.change(tick, 220.3, "pause")
    story.change(tick, 230.3, "resume")
    assert "S8" not in broken(story)
    assert "S8" in broken(without_timers(story, 230.3 + 0.05))


def test_a_timer_deleted_without_its_job_breaks_s8() -> None:
    story = no_faults(without=AFTER_220)
    story.commit(220.5, delete("timers", {"job_id": story.jobs["tick"].id}))
    assert "S8" in broken(story)


def test_jobs_from_before_the_history_are_not_judged() -> None:
    story = no_faults()
    old = {**story.jobs["tick"].row, "job_id": "old", "name": "old", "generation": "7"}
    story.commit(150.5, update("jobs", old))
    assert "S8" not in broken(story)
