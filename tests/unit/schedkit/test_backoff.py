"""Waits grow, stay under their maximum, and start over after a success."""

from __future__ import annotations

import pytest

from schedkit.backoff import Backoff


def test_waits_grow_by_the_factor_up_to_the_maximum() -> None:
    backoff = Backoff(initial=1.0, maximum=5.0, factor=2.0, jitter=0.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_success_starts_the_waits_over() -> None:
    backoff = Backoff(initial=1.0, maximum=60.0, jitter=0.0)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == 1.0


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 10.0), (0.5, 9.0), (0.999, 8.002)])
def test_jitter_only_shortens_a_wait_and_by_its_share_at_most(draw: float, wait: float) -> None:
    backoff = Backoff(initial=10.0, maximum=10.0, jitter=0.2, uniform=lambda: draw)
    assert backoff.next() == pytest.approx(wait)


def test_a_thousand_failures_overflow_nothing() -> None:
    backoff = Backoff(initial=0.1, maximum=30.0, factor=10.0)
    assert all(0 < backoff.next() <= 30.0 for _ in range(1000))


@pytest.mark.parametrize(
    ("initial", "maximum", "factor", "jitter"),
    [(0, 1, 2, 0.2), (2, 1, 2, 0.2), (1, 2, 0.5, 0.2), (1, 2, 2, 1.0)],
)
def test_a_backoff_that_does_not_grow_or_may_be_zero_is_rejected(
    initial: float, maximum: float, factor: float, jitter: float
) -> None:
    with pytest.raises(ValueError, match=r"(is|are)n't valid: "):
        Backoff(initial, maximum, factor, jitter)
