"""Slots reserved for a member after its credit was lowered."""

from __future__ import annotations

import pytest

from workerd.core.credit import KEPT_FOR, Credit


def granted(*slots: int) -> Credit:
    """Return the credit of a member after these grants; the member has pushed nothing."""
    credit = Credit()
    for each in slots:
        credit.grant(each, 0.0)
    return credit


def test_withdrawn_slots_stay_reserved_until_the_member_has_seen_the_lower_grant() -> None:
    credit = granted(5, 2)
    assert (credit.slots, credit.reserved_slots(0.0), credit.serial) == (2, 5, 1)
    credit.reached(1, 3, 0.0)
    assert (credit.slots, credit.reserved_slots(0.0), credit.serial) == (2, 3, 0)


def test_a_member_without_runs_in_flight_has_its_new_grant() -> None:
    credit = granted(5, 2)
    credit.reached(1, 0, 0.0)
    assert credit.reserved_slots(0.0) == 2


def test_received_runs_are_reserved_no_longer() -> None:
    credit = granted(5, 1)
    credit.reached(1, 3, 0.0)
    credit.received += 2
    assert credit.reserved_slots(0.0) == 1
    credit.received += 1
    assert credit.reserved_slots(0.0) == 0


def test_slots_that_a_member_releases_are_reserved_no_longer() -> None:
    credit = granted(5, 1)
    credit.reached(1, 4, 0.0)
    credit.reached(1, 2, 0.0)
    assert credit.reserved_slots(0.0) == 2


def test_an_answer_covers_only_grants_up_to_its_serial() -> None:
    credit = granted(5, 3, 6, 1)
    credit.reached(1, 4, 0.0)
    assert (credit.reserved_slots(0.0), credit.serial) == (6, 2)
    credit.reached(2, 4, 0.0)
    assert (credit.reserved_slots(0.0), credit.serial) == (4, 0)


def test_one_answer_covers_all_earlier_grants() -> None:
    credit = granted(5, 3, 1)
    credit.reached(2, 2, 0.0)
    assert (credit.reserved_slots(0.0), credit.serial) == (2, 0)


def test_a_grant_that_is_raised_before_its_answer_still_requests_one() -> None:
    """The lower grant may never have been sent."""
    credit = granted(5, 2, 4)
    assert (credit.slots, credit.reserved_slots(0.0), credit.serial) == (4, 5, 1)


@pytest.mark.parametrize("nonsense", [10**12, -(10**12)])
def test_no_answer_raises_the_reserve_above_old_grants_or_below_the_new_one(nonsense: int) -> None:
    credit = granted(5, 2)
    credit.reached(1, nonsense, 0.0)
    assert credit.reserved_slots(0.0) == (5 if nonsense > 0 else 2)


def test_lowered_grants_of_a_silent_member_use_bounded_memory() -> None:
    credit = granted(5)
    for at in range(100):
        credit.grant(5, at / 100)
        credit.grant(2, at / 100)
    assert credit.reserved_slots(1.0) == 5
    assert len(credit._unanswered) == 1, "the last covers those before"


def test_no_answer_is_requested_without_a_lowered_grant() -> None:
    credit = granted(3)
    credit.received += 1
    for slots in (2, 4, 4):  # as before, more, as before
        credit.grant(slots, 0.0)
        assert (credit.reserved_slots(0.0), credit.serial) == (slots, 0)


def test_reserved_slots_expire() -> None:
    """A hanging member or database would keep the slots from all other members."""
    credit = granted(5, 2)
    assert credit.reserved_slots(KEPT_FOR - 0.1) == 5
    assert credit.reserved_slots(KEPT_FOR) == 2
    credit.reached(1, 4, KEPT_FOR - 0.1)
    credit.reached(1, 3, KEPT_FOR)  # a release doesn't restart the time
    assert credit.reserved_slots(2 * KEPT_FOR - 0.2) == 3
    assert credit.reserved_slots(2 * KEPT_FOR - 0.1) == 2
