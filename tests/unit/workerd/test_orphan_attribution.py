"""Attribution of orphans to attempts, by their start time."""

from __future__ import annotations

from workerd.core.orphan_attribution import Fate, OrphanAttribution


def test_an_orphan_is_kept_while_an_attempt_that_may_own_it_runs() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    kinship.add_attempt(2, at=200)
    kinship.end_attempt(1)
    assert kinship.fate(150) is Fate.END, "it was born before the second began"
    assert kinship.fate(250) is Fate.LEAVE, "it may be the second's"
    kinship.all_ended(300)
    kinship.end_attempt(2)
    assert kinship.fate(250) is Fate.END


def test_equal_ticks_count_as_during_the_attempt() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    assert kinship.fate(100) is Fate.LEAVE
    kinship.end_attempt(1)
    kinship.all_ended(120)
    assert kinship.fate(100) is Fate.END
    assert kinship.fate(120) is Fate.END


def test_an_orphan_born_outside_of_all_attempts_is_kept() -> None:
    kinship = OrphanAttribution()
    assert kinship.fate(50) is Fate.LEAVE
    kinship.add_attempt(1, at=100)
    kinship.end_attempt(1)
    kinship.all_ended(120)
    for born in (99, 121):
        assert kinship.fate(born) is Fate.LEAVE


def test_orphans_of_a_killed_attempt_are_searched_until_none_is_found() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    kinship.end_attempt(1)
    assert kinship.fate(5_000) is Fate.END
    kinship.all_ended(6_000)
    assert kinship.fate(5_000) is Fate.END
    assert kinship.fate(7_000) is Fate.LEAVE


def test_overlapping_attempts_are_stored_as_one_interval() -> None:
    kinship = OrphanAttribution()
    for pid in range(5_000):
        kinship.add_attempt(pid, at=100 + pid)
    for pid in range(5_000):
        kinship.end_attempt(pid)
        kinship.all_ended(6_000 + pid)
    assert kinship.fate(100) is Fate.END
    assert kinship.fate(99) is Fate.LEAVE
