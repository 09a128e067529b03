"""Whose an orphan is, told by its birth alone."""

from __future__ import annotations

from workerd.core.orphan_attribution import Fate, OrphanAttribution


def test_an_orphan_is_left_as_long_as_an_attempt_that_it_may_belong_to_runs() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    kinship.add_attempt(2, at=200)
    kinship.end_attempt(1)
    assert kinship.fate(150) is Fate.END, "it was born before the second began"
    assert kinship.fate(250) is Fate.LEAVE, "it may be the second's"
    kinship.all_ended(300)
    kinship.end_attempt(2)
    assert kinship.fate(250) is Fate.END


def test_equal_ticks_count_as_while_it_lived() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    assert kinship.fate(100) is Fate.LEAVE
    kinship.end_attempt(1)
    kinship.all_ended(120)
    assert kinship.fate(100) is Fate.END
    assert kinship.fate(120) is Fate.END


def test_what_was_born_while_no_attempt_lived_is_left_in_peace() -> None:
    kinship = OrphanAttribution()
    assert kinship.fate(50) is Fate.LEAVE
    kinship.add_attempt(1, at=100)
    kinship.end_attempt(1)
    kinship.all_ended(120)
    for born in (99, 121):
        assert kinship.fate(born) is Fate.LEAVE


def test_what_is_being_killed_may_give_birth_until_nothing_is_found() -> None:
    kinship = OrphanAttribution()
    kinship.add_attempt(1, at=100)
    kinship.end_attempt(1)
    assert kinship.fate(5_000) is Fate.END
    kinship.all_ended(6_000)
    assert kinship.fate(5_000) is Fate.END
    assert kinship.fate(7_000) is Fate.LEAVE


def test_overlapping_lives_are_remembered_as_one() -> None:
    kinship = OrphanAttribution()
    for pid in range(5_000):
        kinship.add_attempt(pid, at=100 + pid)
    for pid in range(5_000):
        kinship.end_attempt(pid)
        kinship.all_ended(6_000 + pid)
    assert kinship.fate(100) is Fate.END
    assert kinship.fate(99) is Fate.LEAVE
