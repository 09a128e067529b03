"""The product's own reports excuse nothing that the definition or a probe's line denies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from faults.checker import check
from support.story import Story, broken, no_faults, stamp

NONE: frozenset[str] = frozenset()


def skipped(reason: str, **wanted: Any) -> Story:
    """Second 150 is skipped in a quiet time, for this reason."""
    story = no_faults(without={150}, **wanted)
    story.update_run(story.fire(150), 150.05, state="SKIPPED", reason=reason)
    return story


@pytest.mark.parametrize("reason", ["CALENDAR", "BUFFER_FULL"])
def test_a_skip_for_a_policy_its_job_lacks_breaks_l1(reason: str) -> None:
    assert broken(skipped(reason)) == {"L1"}


def test_a_cancel_for_an_overlap_that_is_skipped_breaks_l1() -> None:
    story = no_faults(without={150})
    story.update_run(story.fire(150), 150.05, state="CANCELLED", reason="BY_OVERLAP")
    assert broken(story) == {"L1"}


def test_a_due_time_reported_by_the_product_excuses_no_late_start() -> None:
    story = no_faults(without={150})
    story.play(story.fire(150, due_at=stamp(153), ready_at=stamp(153)), 153.05)
    assert "L2" in broken(story)


def test_a_token_of_an_epoch_that_was_never_taken_breaks_s4() -> None:
    story = no_faults(without={150})
    story.play(run := story.fire(150), 150.05)
    assert broken(story) == NONE
    story = no_faults(without={150})
    token = ((run.token >> 32) + 5) << 32 | 150_050
    run = story.fire(150)
    story.assign(run, 150.05, token=str(token))
    story.write("start", run, 150.07)
    story.write("end", run, 150.09, 0)
    story.accept(run, 150.13)
    assert "S4" in broken(story)


def test_a_run_that_no_owner_fired_breaks_s4() -> None:
    story = no_faults(without={150})
    story.play(story.fire(150, fired_by=None), 150.05)
    assert broken(story) == {"S4"}


@pytest.mark.parametrize(
    ("received", "name"), [({"nominal": "2027-01-15T08:00:07+00:00"}, "L2"), ({"attempt": 7}, "L5")]
)
def test_a_job_that_receives_another_scheduled_time_or_attempt(
    received: dict[str, Any], name: str
) -> None:
    history = no_faults().history()
    probes = list(history.probes)
    number = next(n for n, p in enumerate(probes) if p.event == "start" and n > 100)
    probes[number] = replace(probes[number], **received)
    assert check(replace(history, probes=tuple(probes))).broken == {name}


def test_a_job_that_is_given_up_with_tries_left_breaks_l5() -> None:
    story = no_faults(without={150}, attempts=3)
    story.play(story.fire(150), 150.05, code=3)
    assert broken(story) == {"L5"}


def test_a_job_that_is_tried_once_more_than_it_may_breaks_l5() -> None:
    story = no_faults(without={150})
    run = story.fire(150)
    story.play(run, 150.05, 3, state="RETRYING")
    story.play(run, 150.3)
    assert broken(story) == {"L5"}


@pytest.mark.parametrize("column", ["digest", "worker", "attempt", "finished_at", "reason"])
def test_a_committed_column_that_the_database_has_otherwise_breaks_s11(column: str) -> None:
    history = no_faults().history()
    rows = list(history.database["runs"])
    other = {"attempt": "9", "finished_at": stamp(200)}.get(column, "other")
    rows[100] = {**rows[100], column: other}
    assert check(replace(history, database={"runs": tuple(rows)})).broken == {"S11"}


def test_a_resume_that_no_user_requested_breaks_s11() -> None:
    story = no_faults(without=frozenset(range(221, 250)))
    tick = story.jobs["tick"]
    story.change(tick, 220.3, "pause")
    story.change(tick, 225.3, "resume", "fail")
    assert "S11" in broken(story)
