"""Attribution of orphans to attempts, by their start time."""

from __future__ import annotations

from workerd.core.orphan_attribution import OrphanAttribution


def test_an_orphan_is_kept_while_an_attempt_that_may_own_it_runs() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    kinship.add_attempt(2, at=200)
    kinship.end_attempt(1)
    assert kinship.must_end(150), "it was born before the second began"
    assert not kinship.must_end(250), "it may be the second's"
    kinship.all_ended(300)
    kinship.end_attempt(2)
    assert kinship.must_end(250)


def test_equal_ticks_count_as_during_the_attempt() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    assert not kinship.must_end(100)
    kinship.end_attempt(1)
    kinship.all_ended(120)
    assert kinship.must_end(100)
    assert kinship.must_end(120)


def test_an_orphan_born_outside_of_all_attempts_is_kept() -> None:
    kinship = OrphanAttribution()
    assert not kinship.must_end(50)
    kinship.add_attempt(1, at=100)
    kinship.end_attempt(1)
    kinship.all_ended(120)
    for born in (99, 121):
        assert not kinship.must_end(born)


def test_orphans_of_a_killed_attempt_are_searched_until_none_is_found() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    kinship.end_attempt(1)
    assert kinship.must_end(5_000)
    kinship.all_ended(6_000)
    assert kinship.must_end(5_000)
    assert not kinship.must_end(7_000)


def test_overlapping_attempts_are_stored_as_one_interval() -> None:
    kinship = OrphanAttribution()
    for pid in range(5_000):
        kinship.add_attempt(pid, at=100 + pid)
    for pid in range(5_000):
        kinship.end_attempt(pid)
        kinship.all_ended(6_000 + pid)
    assert kinship.must_end(100)
    assert not kinship.must_end(99)
