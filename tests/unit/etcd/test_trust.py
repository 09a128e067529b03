"""When a lease is trusted, and when its keepalive is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.etcd.lease_trust import LeaseLoss, LeaseTrust, LeaseWait, Send, Timings
from schedkit.errors import Misconfigured


def trust(ttl: float = 6, deadline: float = 1) -> LeaseTrust:
    """Of a lease granted at 0: keepalives each 2 s, trusted for 4.8 s."""
    return LeaseTrust(ttl, deadline=deadline, sent=0)


@pytest.mark.parametrize(
    ("ttl", "margin", "interval"), [(3, 1, 1), (5, 1, 5 / 3), (15, 3, 5), (60, 12, 20)]
)
def test_margin_and_interval_follow_from_the_ttl(ttl, margin, interval):
    assert Timings(ttl).safety_margin == margin
    assert Timings(ttl).interval == pytest.approx(interval)


@pytest.mark.parametrize("ttl", [3, 4, 5, 15])
def test_a_sixth_of_the_ttl_is_a_fitting_deadline(ttl):
    Timings(ttl).check(ttl / 6)


@pytest.mark.parametrize(("ttl", "deadline"), [(2, 1 / 3), (3, 0.51), (5, 1.2)])
def test_a_deadline_without_room_for_a_second_try_is_refused(ttl, deadline):
    with pytest.raises(Misconfigured, match=r"can't be renewed in time"):
        Timings(ttl).check(deadline)


def test_trust_runs_from_the_sending_and_ends_a_margin_before_the_lease():
    lease = LeaseTrust(5, deadline=5 / 6, sent=100)
    assert lease.until == 104
    assert lease.holds(103.9)
    assert not lease.holds(104)
    assert lease.loss is LeaseLoss.UNANSWERED or lease.loss is LeaseLoss.HUNG


def test_the_first_keepalive_is_due_after_a_third_of_the_ttl():
    lease = trust()
    assert lease.step(0) == LeaseWait(2)
    lease.beat(1.9)
    assert lease.step(2) == Send()


def test_an_answer_moves_trust_by_the_time_of_its_sending():
    """M6: etcd may have counted from then on, however late the answer is."""
    lease = trust()
    lease.beat(2)
    lease.renewed(sent=2, ttl=6, now=2.9)
    assert lease.until == pytest.approx(6.8)
    assert lease.step(3) == LeaseWait(1)


def test_a_failed_keepalive_is_tried_again_soon():
    lease = trust()
    lease.beat(2.5)
    lease.failed(3)
    assert lease.step(3) == LeaseWait(0.5)
    assert lease.step(3.5) == Send()


def test_no_keepalive_is_sent_while_the_last_beat_is_too_old():
    """M7: one that is due waits for the main loop's next sign of life."""
    lease = trust()
    assert lease.step(2.1) == LeaseWait(pytest.approx(2.7))
    assert lease.beat(2.2), "the keepalive waited for this beat"
    assert lease.step(2.2) == Send()
    assert not lease.beat(2.3)


def test_a_hung_process_loses_its_trust_and_that_is_the_reason():
    assert trust().step(4.8) is LeaseLoss.HUNG


def test_without_an_answer_trust_ends_though_the_process_runs():
    lease = trust()
    lease.beat(4.7)
    lease.failed(4.7)
    assert lease.step(4.8) is LeaseLoss.UNANSWERED


def test_a_ttl_of_zero_ends_trust_at_once():
    """M8: etcd says so that the lease is gone, whatever was left of our own time."""
    lease = trust()
    lease.renewed(sent=2, ttl=0, now=2.1)
    assert not lease.holds(2.1)
    assert lease.loss is LeaseLoss.EXPIRED


def test_trust_that_has_ended_never_returns():
    """M6: an answer that comes afterwards is of no use: others may have taken over."""
    lease = trust()
    assert not lease.holds(5)
    lease.beat(5)
    lease.renewed(sent=4.5, ttl=6, now=5)
    assert not lease.holds(5)


def test_a_lease_that_is_no_longer_refreshed_is_not_trusted():
    lease = trust()
    lease.give_up()
    assert not lease.holds(0)
    assert lease.loss is LeaseLoss.UNANSWERED


def test_an_answer_with_a_greater_ttl_counts():
    lease = trust()
    lease.renewed(sent=2, ttl=60, now=2.1)
    assert lease.until == 2 + 60 - 12


@pytest.mark.slow
@given(
    ttl=st.integers(3, 30),
    script=st.lists(
        st.tuples(st.floats(0, 2), st.booleans(), st.sampled_from(["lost", "applied", "answered"])),
        max_size=40,
    ),
)
def test_a_trusted_lease_is_never_one_that_etcd_may_have_ended(ttl, script):
    """Time advances by each pause (in units of the interval); the loop beats or not; a keepalive
    that is due is lost on the way, applied without an answer, or answered after half the deadline.
    """
    deadline = ttl / 6
    lease = LeaseTrust(ttl, deadline=deadline, sent=0)
    now, expires, ended = 0.0, float(ttl), False
    for pause, beats, fate in script:
        now += pause * ttl / 3
        if beats:
            lease.beat(now)
        step = lease.step(now)
        if isinstance(step, Send):
            sent, now = now, now + deadline / 2
            gone = sent >= expires
            if fate != "lost" and not gone:
                expires = now + ttl
            if fate == "answered":
                lease.renewed(sent, 0 if gone else ttl, now)
            else:
                lease.failed(now)
        trusted = lease.holds(now)
        assert not (trusted and now >= expires)
        assert not (trusted and ended)
        ended = ended or not trusted
