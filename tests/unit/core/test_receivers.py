"""Limits on slow receivers, which must not use up the places of others."""

from __future__ import annotations

from schedd.core.jobs.receiver_limits import AT_ONCE, OF_ONE, OF_SLOW, REMEMBERED, SLOW, Receivers


def begun(receivers: Receivers, *to: str) -> list[str]:
    """Begin deliveries as far as there is room; return them."""
    went = []
    for one in to:
        if receivers.has_room(one):
            receivers.begin(one)
            went.append(one)
    return went


def test_one_receiver_has_a_few_deliveries_and_a_slow_one_has_one() -> None:
    receivers = Receivers()
    assert len(begun(receivers, *["a"] * 9)) == OF_ONE
    receivers.answered("b", SLOW)
    assert len(begun(receivers, *["b"] * 9)) == 1
    receivers.answered("b", 0.1)
    assert len(begun(receivers, *["b"] * 9)) == OF_ONE - 1


def test_many_slow_receivers_leave_most_places_to_others() -> None:
    receivers = Receivers()
    slow = [f"slow{number}" for number in range(AT_ONCE)]
    for one in slow:
        receivers.answered(one, 30.0)
    assert len(begun(receivers, *slow)) == OF_SLOW
    fine = [f"fine{number}" for number in range(AT_ONCE)]
    assert len(begun(receivers, *fine)) == AT_ONCE - OF_SLOW
    receivers.end(slow[0])
    assert begun(receivers, slow[-1], slow[-2]) == [slow[-1]]


def test_changes_of_a_copy_do_not_affect_the_original() -> None:
    receivers = Receivers()
    copy = receivers.copy()
    begun(copy, "a", "a")
    assert (receivers.under_way, copy.under_way) == (0, 2)


def test_the_first_of_too_many_slow_receivers_is_forgotten() -> None:
    receivers = Receivers()
    for number in range(REMEMBERED + 1):
        receivers.answered(str(number), SLOW)
    assert ("0" in receivers.slow, len(receivers.slow)) == (False, REMEMBERED)
