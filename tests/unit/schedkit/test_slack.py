"""How near a lease came to being lost, and for how long that is told."""

from __future__ import annotations

import pytest

from schedkit.lease_margin import Slack
from schedkit.rolling_window import WINDOW


class Lease:
    """One of 5 s, trusted for 4, on a clock of the test's own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slack = Slack(lambda: self.now)

    def renewed(self, after: float) -> None:
        self.now += after
        self.slack.renewed(self.now + 4.0, 5.0)

    def least_after(self, seconds: float) -> float | None:
        self.now += seconds
        return self.slack.least()


def test_before_the_first_lease_there_is_nothing_to_tell() -> None:
    assert Lease().slack.least() is None
    assert Lease().slack.ttl == 0


def test_the_least_is_what_was_left_at_the_latest_of_the_renewals() -> None:
    lease = Lease()
    for after in (0.0, 1.7, 3.5, 1.7):
        lease.renewed(after)
    assert lease.slack.least() == pytest.approx(0.5)
    assert lease.slack.ttl == 5.0


def test_while_no_renewal_is_answered_it_falls_to_nothing_and_no_further() -> None:
    lease = Lease()
    lease.renewed(0.0)
    assert lease.least_after(3.0) == pytest.approx(1.0)
    assert lease.least_after(3.0) == 0.0


def test_one_that_was_lost_is_told_as_nothing_left_though_another_lease_follows() -> None:
    lease = Lease()
    lease.renewed(0.0)
    lease.now += 10
    lease.slack.lease_ended()
    lease.renewed(2.0)
    assert lease.slack.least() == 0.0


def test_one_that_was_given_up_in_time_is_no_loss() -> None:
    lease = Lease()
    lease.renewed(0.0)
    lease.now += 1
    lease.slack.lease_ended()
    assert lease.least_after(30) == pytest.approx(3.0)


def test_it_is_told_for_a_minute_and_forgotten_after_two() -> None:
    lease = Lease()
    lease.renewed(0.0)
    lease.renewed(3.9)
    kept_until = lease.now + WINDOW - 10
    while lease.now < kept_until:
        lease.renewed(1.7)
    assert lease.slack.least() == pytest.approx(0.1)
    forgotten_at = lease.now + 2 * WINDOW
    while lease.now < forgotten_at:
        lease.renewed(1.7)
    assert lease.slack.least() == pytest.approx(2.3)
