"""What is kept free for a member that was promised more before."""

from __future__ import annotations

import pytest

from workerd.core.credit import KEPT_FOR, Credit


def promised(*slots: int, answers: bool = True) -> Credit:
    """These grants, one after the other, to a member that has pushed nothing."""
    promises = Credit()
    promises.answers = answers
    for each in slots:
        promises.grant(each, 0.0)
    return promises


def test_what_was_promised_before_is_kept_until_the_member_has_seen_that_it_is_less() -> None:
    promises = promised(5, 2)
    assert (promises.slots, promises.reserved_slots(0.0), promises.serial) == (2, 5, 1)
    promises.reached(1, 3, 0.0)
    assert (promises.slots, promises.reserved_slots(0.0), promises.serial) == (2, 3, 0)


def test_a_member_that_has_chosen_nothing_more_has_what_it_is_promised() -> None:
    promises = promised(5, 2)
    promises.reached(1, 0, 0.0)
    assert promises.reserved_slots(0.0) == 2


def test_what_was_received_is_kept_no_longer() -> None:
    promises = promised(5, 1)
    promises.reached(1, 3, 0.0)
    promises.received += 2
    assert promises.reserved_slots(0.0) == 1
    promises.received += 1
    assert promises.reserved_slots(0.0) == 0


def test_what_a_member_lets_go_of_is_kept_no_longer() -> None:
    promises = promised(5, 1)
    promises.reached(1, 4, 0.0)
    promises.reached(1, 2, 0.0)
    assert promises.reserved_slots(0.0) == 2


def test_an_answer_says_nothing_of_what_was_promised_after_the_grant_that_it_answers() -> None:
    promises = promised(5, 3, 6, 1)
    promises.reached(1, 4, 0.0)
    assert (promises.reserved_slots(0.0), promises.serial) == (6, 2)
    promises.reached(2, 4, 0.0)
    assert (promises.reserved_slots(0.0), promises.serial) == (4, 0)


def test_one_answer_is_enough_for_all_grants_before() -> None:
    promises = promised(5, 3, 1)
    promises.reached(2, 2, 0.0)
    assert (promises.reserved_slots(0.0), promises.serial) == (2, 0)


def test_a_grant_that_is_raised_again_before_its_answer_asks_for_it_still() -> None:
    """The one that was lowered may never have been sent."""
    promises = promised(5, 2, 4)
    assert (promises.slots, promises.reserved_slots(0.0), promises.serial) == (4, 5, 1)


@pytest.mark.parametrize("nonsense", [10**12, -(10**12)])
def test_no_answer_makes_more_of_it_than_was_promised_nor_less_than_is(nonsense: int) -> None:
    promises = promised(5, 2)
    promises.reached(1, nonsense, 0.0)
    assert promises.reserved_slots(0.0) == (5 if nonsense > 0 else 2)


def test_however_often_a_silent_member_is_granted_less_as_little_is_kept_of_it() -> None:
    promises = promised(5)
    for at in range(100):
        promises.grant(5, at / 100)
        promises.grant(2, at / 100)
    assert promises.reserved_slots(1.0) == 5
    assert len(promises._unanswered) == 1, "the last covers those before"


def test_nothing_is_asked_where_nothing_is_lowered() -> None:
    promises = promised(3)
    promises.received += 1
    for slots in (2, 4, 4):  # as before, more, as before
        promises.grant(slots, 0.0)
        assert (promises.reserved_slots(0.0), promises.serial) == (slots, 0)


def test_neither_a_promise_nor_a_reach_is_kept_for_ever() -> None:
    """A member that hangs, or its database, would keep them from all others."""
    promises = promised(5, 2)
    assert promises.reserved_slots(KEPT_FOR - 0.1) == 5
    assert promises.reserved_slots(KEPT_FOR) == 2
    promises.reached(1, 4, KEPT_FOR - 0.1)
    promises.reached(1, 3, KEPT_FOR)  # which it lets go of doesn't start anew
    assert promises.reserved_slots(2 * KEPT_FOR - 0.2) == 3
    assert promises.reserved_slots(2 * KEPT_FOR - 0.1) == 2


def test_nothing_is_kept_for_a_member_that_doesnt_answer() -> None:
    promises = promised(5, 2, answers=False)
    assert (promises.slots, promises.reserved_slots(0.0), promises.serial) == (2, 0, 0)
