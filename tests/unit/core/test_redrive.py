"""Redrives: rate, overlap policy, and runs that may be redriven."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.ids import Id, RunId, redriven_run_id
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.redrive import MOST_IN_LINE, again, allowance, line_of
from support.dispatching import SHELL

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0, 7.3, 10.0, 100.0, 1000.0])
def test_a_rate_is_kept_and_reached_over_any_time(rate: float) -> None:
    made, until, now = 0, None, NOW
    while now < NOW + 100 * SECOND:
        count, until = allowance(rate, until, now, 200)
        made += count
        assert made <= 1 + rate * ((now - NOW) / SECOND) + 1e-6
        now += timedelta(seconds=0.1)
    assert made >= int(99.8 * rate)


def test_unused_rate_is_kept_for_one_second() -> None:
    _, until = allowance(100.0, None, NOW, 200)
    later, _ = allowance(100.0, until, NOW + 3600 * SECOND, 1000)
    assert later == 100


def test_runs_that_couldnt_be_created_use_no_rate() -> None:
    count, _ = allowance(100.0, NOW, NOW + SECOND, 200)
    assert count == 100
    _, until = allowance(100.0, NOW, NOW + SECOND, 30)
    assert allowance(100.0, until, NOW + SECOND, 200)[0] == 70


@pytest.mark.parametrize("state", list(State))
def test_a_failed_canceled_or_missed_run_may_be_redriven(state: State) -> None:
    assert again(state, None) is (state in {State.FAILED, State.CANCELLED})
    assert again(state, Reason.START_DEADLINE) is (
        state in {State.FAILED, State.CANCELLED, State.MISSED}
    )


def test_the_id_of_a_redrive_is_always_the_same() -> None:
    dead = RunId(Id.from_int(7))
    assert redriven_run_id(dead) == redriven_run_id(dead) != dead
    assert redriven_run_id(redriven_run_id(dead)) != redriven_run_id(dead)


def test_a_clock_that_goes_back_changes_no_allowance() -> None:
    count, until = allowance(0.01, NOW + 250 * SECOND, NOW, 200)
    assert count == 0
    assert until == NOW


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (Overlap.ALLOW, (None, None)),
        (Overlap.BUFFER_ALL, (None, MOST_IN_LINE)),
        (Overlap.SKIP, (Overlap.BUFFER_ALL, 1)),
        (Overlap.BUFFER_ONE, (Overlap.BUFFER_ALL, 1)),
        (Overlap.CANCEL_OTHER, (None, 1)),
        (Overlap.TERMINATE_OTHER, (None, 1)),
    ],
)
def test_redrives_that_overlap_would_skip_or_end_are_created_one_at_a_time(
    policy: Overlap, line: tuple[Overlap | None, int | None]
) -> None:
    found = line_of(replace(SHELL, overlap=policy, generation=4))
    assert (found.overlap, found.most, found.generation) == (*line, 4)
