"""S5, S6, S7: each instant once, in its schedule, and not before it is due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.checker import check
from faults.history import Schedule
from support.story import Story, broken, insert, leader_killed, no_faults, stamp, update

NONE: frozenset[str] = frozenset()
AFTER_220 = frozenset(range(221, 250))


# -- S5


def test_an_instant_that_ran_twice_breaks_s5() -> None:
    story = leader_killed()
    story.play(story.fire(150, run_id="another"), 150.2)
    assert broken(story) == {"S5"}
    assert check(story.history()).figures.doubled == 1


def test_an_instant_that_ran_and_is_in_a_merged_row_breaks_s5() -> None:
    story = leader_killed(without={101, 102, 103})
    story.merge(101, 103, "COALESCED", 103.7)
    story.play(story.fire(103, on=103.7), 103.8)
    assert "S5" in broken(story)


def test_a_run_that_becomes_another_instants_breaks_s5() -> None:
    story = leader_killed(without={150})
    run = story.play(story.fire(150), 150.05)
    story.commit(151, update("runs", run.row | {"scheduled_at": stamp(149)}))
    assert "S5" in broken(story)


def test_a_trigger_at_the_instant_of_a_run_breaks_nothing() -> None:
    story = leader_killed()
    tick = story.jobs["tick"]
    story.call("trigger", 149.95, job_id=tick.id)
    story.play(story.fire(150, trigger="MANUAL", fired_by=None), 150.5)
    assert broken(story) == NONE


# -- S6


def test_an_instant_that_the_schedule_lacks_breaks_s6() -> None:
    story = leader_killed()
    story.play(story.fire(150.5), 150.55)
    assert broken(story) == {"S6"}


def test_a_merged_row_that_counts_wrongly_breaks_s6() -> None:
    story = leader_killed(without={101, 102, 103})
    story.merge(101, 102, "COALESCED", 103.7, count="5")
    story.play(story.fire(103, on=103.7), 103.8)
    assert broken(story) == {"S6"}


def test_an_instant_of_the_schedule_before_an_edit_breaks_s6() -> None:
    story = no_faults(without=AFTER_220)
    tick = story.jobs["tick"]
    story.change(tick, 220.3, "edit", schedule=Schedule(every=2))
    story.tick(range(222, 250, 2))
    story.play(story.fire(231), 231.05)
    assert broken(story) == {"S6"}


def test_an_edited_schedule_has_its_own_instants() -> None:
    story = no_faults(without=AFTER_220)
    tick = story.jobs["tick"]
    story.change(tick, 220.3, "edit", schedule=Schedule(every=2))
    story.tick(range(222, 250, 2))
    assert broken(story) == NONE


def test_cron_is_judged_by_the_oracle() -> None:
    story = leader_killed(schedule=Schedule(cron="* * * * * *", zone="Asia/Kathmandu"))
    minutely = story.job("minutely", schedule=Schedule(cron="* * * * *"), at=0.3)
    story.tick([60, 120, 180, 240], minutely)
    assert broken(story) == NONE
    story.tick([200], minutely)
    assert broken(story) == {"S6"}


# -- S7


def test_a_start_before_its_instant_breaks_s7() -> None:
    story = leader_killed(without={150})
    story.play(story.fire(150, on=149.6), 149.7)
    assert broken(story) == {"S7"}


def test_a_start_before_its_instant_breaks_s7_in_a_fault_that_touches_no_clock_too() -> None:
    story = leader_killed(without={110})
    story.play(story.fire(110, on=109.6), 109.7)
    assert broken(story) == {"S7"}


def early_under_a_moved_clock(on: float) -> Story:
    story = no_faults(without={150, 110})
    story.fault("clock moved", "m2", 90, 112)
    story.play(story.fire(110, on=on), on + 0.1)
    story.play(story.fire(150, on=149.6), 149.9)
    return story


def test_clocks_may_differ_a_little_while_one_is_moved() -> None:
    assert broken(early_under_a_moved_clock(109.3)) == NONE


def test_a_start_earlier_than_clocks_may_differ_breaks_s7() -> None:
    assert broken(early_under_a_moved_clock(108.6)) == {"S7"}


def reported_at(story: Story, started: float) -> Story:
    """Second 150 runs as it should, and its worker says that it began then."""
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.09, 0)
    story.accept(run, 150.13, started_at=stamp(started))
    return story


def test_a_start_reported_before_its_instant_breaks_s7() -> None:
    assert broken(reported_at(no_faults(without={150}), 149.8)) == {"S7"}


def test_a_start_reported_earlier_than_clocks_may_differ_breaks_s7_in_a_fault_too() -> None:
    story = no_faults(without={150})
    story.fault("cut", "w1", 140.0, 160.0)
    assert "S7" in broken(reported_at(story, 148.9))


@pytest.mark.parametrize("started", [149.95, 150.07])
def test_a_report_by_a_clock_that_differs_a_little_breaks_nothing(started: float) -> None:
    assert broken(reported_at(no_faults(without={150}), started)) == NONE


def test_a_worker_that_dates_its_starts_by_its_own_moved_clock_breaks_s7() -> None:
    story = no_faults(without={150})
    story.fault("clock moved", "w1", 140.0, 160.0)
    assert "S7" in broken(reported_at(story, 150.07 - 3600))


def test_a_scheduled_time_twice_in_the_database_breaks_s5() -> None:
    history = no_faults().history()
    rows = history.database["runs"]
    again = {**rows[40], "run_id": "stranger"}
    assert "S5" in check(replace(history, database={"runs": (*rows, again)})).broken


def test_a_run_that_is_inserted_twice_breaks_s5() -> None:
    story = no_faults(without={150})
    run = story.fire(150)
    story.commit(150.02, insert("runs", dict(run.row)))
    story.play(run, 150.05)
    assert broken(story) == {"S5"}
