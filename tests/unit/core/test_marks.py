"""What a database lost, told from two marks; and whether a look at it still is the one known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.cluster import data_loss_check
from schedd.core.cluster.data_loss_check import DOUBT, DataLoss, Lineage, Mark, decode, encode, gap
from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.ids import Timeline

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
REMEMBERED = Mark(NOON, "ours", 7, Timeline(2))


def found(back: float, **changes: object) -> Mark:
    """A database whose newest mark is so many seconds before the remembered one."""
    return replace(REMEMBERED, at=NOON - timedelta(seconds=back), **changes)


@pytest.mark.parametrize("back", [0, -0.5])
@pytest.mark.parametrize("changes", [{}, {"timeline": Timeline(3)}, {"system": 8}])
def test_a_restart_a_fail_over_or_a_move_without_loss_goes_on(
    back: float, changes: dict[str, object]
) -> None:
    assert gap(REMEMBERED, found(back, **changes)) is None


@pytest.mark.parametrize("timeline", [2, 3])
def test_a_short_tail_is_told_and_gone_on_from(timeline: int) -> None:
    lost = gap(REMEMBERED, found(30, timeline=Timeline(timeline)))
    assert lost == DataLoss(NOON - timedelta(seconds=30), NOON, tolerated=True)
    assert lost.seconds == 30


def test_more_than_that_is_for_a_person_on_whichever_timeline() -> None:
    for timeline in (1, 2, 3):
        lost = gap(REMEMBERED, found(31, timeline=Timeline(timeline)))
        assert lost is not None
        assert not lost.tolerated
        assert lost.doubtful_until(ttl=5) == NOON + DOUBT


@pytest.mark.parametrize("changes", [{"system": 8}, {"database": "another"}])
def test_another_server_or_another_database_that_has_less_is_for_a_person(
    changes: dict[str, object],
) -> None:
    lost = gap(REMEMBERED, found(1, **changes))
    assert lost is not None
    assert not lost.tolerated
    assert lost.moved is ("system" in changes)


def test_a_restored_database_from_before_there_were_marks_is_for_a_person() -> None:
    lost = gap(REMEMBERED, replace(REMEMBERED, at=None))
    assert lost == DataLoss(None, NOON)
    assert lost.seconds is None


def test_without_anything_to_compare_with_and_in_a_new_database_nothing_is_lost() -> None:
    assert gap(None, found(3600)) is None
    assert gap(replace(REMEMBERED, at=None), found(3600)) is None
    assert gap(REMEMBERED, Mark(None, "new", 9, Timeline(1))) is None


def test_a_mark_survives_its_key() -> None:
    for mark in (REMEMBERED, replace(REMEMBERED, at=None)):
        assert decode(encode(mark)) == mark


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b"{}",
        b'{"at": "noon", "database": "x", "system": 1, "timeline": 1}',
        b'{"at": "2026-01-05T12:00:00", "database": "x", "system": 1, "timeline": 1}',
    ],
)
def test_what_is_no_mark_is_unreadable(value: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode(value)


def lineage(known: Mark) -> Lineage:
    """That has seen this one."""
    made = Lineage()
    made.record_mark(known, None)
    return made


def test_a_database_that_goes_on_is_the_one_known() -> None:
    seen = lineage(REMEMBERED)
    for mark in (found(0), found(-5), found(-5, timeline=Timeline(3))):
        seen.record_mark(mark, seen.known)
        assert (seen.broken, seen.known) == ("", mark)


@pytest.mark.parametrize(
    "mark",
    [found(0.001), replace(REMEMBERED, at=None), found(0, system=8), found(0, database="another")],
)
def test_one_that_went_back_or_is_another_isnt_until_it_is_followed(mark: Mark) -> None:
    seen = lineage(REMEMBERED)
    seen.record_mark(mark, seen.known)
    assert seen.broken
    seen.record_mark(REMEMBERED, seen.known)
    assert seen.broken, "whoever knew the old one must end first"
    seen.follow()
    seen.record_mark(mark, seen.known)
    assert (seen.broken, seen.known) == ("", mark)


def test_a_look_from_before_what_is_known_by_now_breaks_nothing() -> None:
    """Two looks at once: the later mark may be taken in first."""
    seen = lineage(found(5))
    known = seen.known
    seen.record_mark(REMEMBERED, known)
    seen.record_mark(found(3), known)
    assert (seen.broken, seen.known) == ("", REMEMBERED)


def test_a_look_that_ends_late_doesnt_take_back_what_another_thread_has_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = lineage(REMEMBERED)
    known, judged = seen.known, data_loss_check._broken

    def meanwhile(before: Mark, mark: Mark) -> str:
        monkeypatch.setattr(data_loss_check, "_broken", judged)
        seen.record_mark(found(60), known)  # of another thread: the restored one
        return judged(before, mark)

    monkeypatch.setattr(data_loss_check, "_broken", meanwhile)
    seen.record_mark(found(-1), known)
    assert "went back" in seen.broken
