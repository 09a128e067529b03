"""Redrives: how fast, by what policy, and what may be done again at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from schedd.core.ids import RunId, redriven_run_id
from schedd.core.lifecycle import Reason, State
from schedd.core.redrive import again, allowance

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0, 7.3, 10.0, 100.0, 1000.0])
def test_over_any_time_a_rate_holds_and_is_reached(rate: float) -> None:
    made, until, now = 0, None, NOW
    while now < NOW + 100 * SECOND:
        count, until = allowance(rate, until, now, 200)
        made += count
        assert made <= 1 + rate * ((now - NOW) / SECOND) + 1e-6
        now += timedelta(seconds=0.1)
    assert made >= int(99.8 * rate)


def test_what_wasnt_used_is_kept_for_a_second_alone() -> None:
    _, until = allowance(100.0, None, NOW, 200)
    later, _ = allowance(100.0, until, NOW + 3600 * SECOND, 1000)
    assert later == 100


def test_what_couldnt_be_made_isnt_used_up() -> None:
    count, _ = allowance(100.0, NOW, NOW + SECOND, 200)
    assert count == 100
    _, until = allowance(100.0, NOW, NOW + SECOND, 30)
    assert allowance(100.0, until, NOW + SECOND, 200)[0] == 70


@pytest.mark.parametrize("state", list(State))
def test_what_failed_was_cancelled_or_waited_too_long_may_be_done_again(state: State) -> None:
    assert again(state, None) is (state in {State.FAILED, State.CANCELLED})
    assert again(state, Reason.START_DEADLINE) is (
        state in {State.FAILED, State.CANCELLED, State.MISSED}
    )


def test_the_id_of_a_run_that_does_another_again_is_always_the_same() -> None:
    dead = RunId(UUID(int=7))
    assert redriven_run_id(dead) == redriven_run_id(dead) != dead
    assert redriven_run_id(redriven_run_id(dead)) != redriven_run_id(dead)
