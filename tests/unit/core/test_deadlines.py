"""Deadlines of runs: the latest start and the latest end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.jobs.definition import Definition
from schedd.core.runs.deadlines import ends_by, hurried, overdue, starts_by, time_left
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun
from support.runs import NOW, run

PLAIN = Definition(1, "default")
HURRIED = replace(PLAIN, start_deadline=timedelta(seconds=30), run_timeout=timedelta(seconds=100))


def second(number: float) -> timedelta:
    return timedelta(seconds=number)


def due(ago: float, **changes: object) -> LiveRun:
    return replace(run(1), due_at=NOW - second(ago), **changes)  # type: ignore[arg-type]


def test_runs_of_a_job_without_deadlines_may_wait() -> None:
    assert not hurried(PLAIN)
    assert hurried(HURRIED)
    assert (starts_by(due(1e6), PLAIN), ends_by(due(1e6), PLAIN)) == (None, None)
    assert overdue(due(1e6), PLAIN, NOW) is None
    assert time_left(due(1e6), PLAIN, NOW) == PLAIN.timeout


@pytest.mark.parametrize(
    ("state", "ago", "reason"),
    [
        (State.PENDING, 29.9, None),
        (State.PENDING, 30, Reason.START_DEADLINE),
        (State.PENDING, 200, Reason.START_DEADLINE),
        (State.RETRYING, 30, None),
        (State.RETRYING, 99.9, None),
        (State.RETRYING, 100, Reason.RUN_TIMEOUT),
    ],
)
def test_a_waiting_run_is_missed_and_a_tried_run_has_timed_out(
    state: State, ago: float, reason: Reason | None
) -> None:
    assert overdue(due(ago, state=state), HURRIED, NOW) is reason
    no_deadline = replace(HURRIED, start_deadline=None)
    expected = Reason.RUN_TIMEOUT if ago >= 100 else None
    assert overdue(due(ago, state=state), no_deadline, NOW) is expected


def test_the_deadline_of_a_late_created_run_is_counted_from_its_creation() -> None:
    made = due(600, created_at=NOW - second(10))
    assert starts_by(made, HURRIED) == NOW + second(20)
    early = replace(run(1), due_at=NOW + second(5), created_at=NOW)
    assert starts_by(early, HURRIED) == NOW + second(35)


def test_a_run_that_began_and_was_returned_started_in_time() -> None:
    back = replace(due(31), losses=1)
    assert starts_by(back, HURRIED) is None
    assert overdue(back, HURRIED, NOW) is None
    assert ends_by(back, HURRIED) is not None


def test_an_attempt_gets_the_rest_of_the_runs_time_up_to_its_own_timeout() -> None:
    assert time_left(due(40), HURRIED, NOW) == second(60)
    assert time_left(due(40), replace(HURRIED, timeout=second(7)), NOW) == second(7)
    assert timedelta(0) < time_left(due(400), HURRIED, NOW) < second(0.01)
