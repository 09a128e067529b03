"""The smallest remaining time of a lease, and for how long it is reported."""

from __future__ import annotations

import pytest

from schedkit.lease_margin import WINDOW, LeaseMargin


class Lease:
    """A lease of 5 s, trusted for 4 s, on a clock of the test."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.margin = LeaseMargin(lambda: self.now)

    def renewed(self, after: float) -> None:
        self.now += after
        self.margin.renewed(self.now + 4.0, 5.0)

    def least_after(self, seconds: float) -> float | None:
        self.now += seconds
        return self.margin.least()


def test_no_value_is_reported_before_the_first_lease() -> None:
    assert Lease().margin.least() is None
    assert Lease().margin.ttl == 0


def test_the_least_is_the_remaining_time_at_the_latest_renewal() -> None:
    lease = Lease()
    for after in (0.0, 1.7, 3.5, 1.7):
        lease.renewed(after)
    assert lease.margin.least() == pytest.approx(0.5)
    assert lease.margin.ttl == 5.0


def test_without_an_answered_renewal_the_least_falls_to_zero() -> None:
    lease = Lease()
    lease.renewed(0.0)
    assert lease.least_after(3.0) == pytest.approx(1.0)
    assert lease.least_after(3.0) == 0.0


def test_a_lost_lease_is_reported_as_zero_after_another_lease_begins() -> None:
    lease = Lease()
    lease.renewed(0.0)
    lease.now += 10
    lease.margin.lease_ended()
    lease.renewed(2.0)
    assert lease.margin.least() == 0.0


def test_a_lease_that_was_ended_in_time_is_not_a_loss() -> None:
    lease = Lease()
    lease.renewed(0.0)
    lease.now += 1
    lease.margin.lease_ended()
    assert lease.least_after(30) == pytest.approx(3.0)


def test_a_value_is_reported_for_a_minute_and_forgotten_after_two() -> None:
    lease = Lease()
    lease.renewed(0.0)
    lease.renewed(3.9)
    kept_until = lease.now + WINDOW - 10
    while lease.now < kept_until:
        lease.renewed(1.7)
    assert lease.margin.least() == pytest.approx(0.1)
    forgotten_at = lease.now + 2 * WINDOW
    while lease.now < forgotten_at:
        lease.renewed(1.7)
    assert lease.margin.least() == pytest.approx(2.3)
