"""Detection of data loss by two marks, and of a database that was replaced."""

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
    """Return a mark of a database, `back` seconds before the remembered one."""
    return replace(REMEMBERED, at=NOON - timedelta(seconds=back), **changes)


@pytest.mark.parametrize("back", [0, -0.5])
@pytest.mark.parametrize("changes", [{}, {"timeline": Timeline(3)}, {"system": 8}])
def test_a_restart_failover_or_move_without_loss_continues(
    back: float, changes: dict[str, object]
) -> None:
    assert gap(REMEMBERED, found(back, **changes)) is None


@pytest.mark.parametrize("timeline", [2, 3])
def test_a_short_loss_is_reported_and_tolerated(timeline: int) -> None:
    lost = gap(REMEMBERED, found(30, timeline=Timeline(timeline)))
    assert lost == DataLoss(NOON - timedelta(seconds=30), NOON, tolerated=True)
    assert lost.seconds == 30


def test_a_longer_loss_needs_a_person_on_any_timeline() -> None:
    for timeline in (1, 2, 3):
        lost = gap(REMEMBERED, found(31, timeline=Timeline(timeline)))
        assert lost is not None
        assert not lost.tolerated
        assert lost.doubtful_until(ttl=5) == NOON + DOUBT


@pytest.mark.parametrize("changes", [{"system": 8}, {"database": "another"}])
def test_another_server_or_database_with_a_loss_needs_a_person(
    changes: dict[str, object],
) -> None:
    lost = gap(REMEMBERED, found(1, **changes))
    assert lost is not None
    assert not lost.tolerated
    assert lost.moved is ("system" in changes)


def test_a_restored_database_without_a_mark_needs_a_person() -> None:
    lost = gap(REMEMBERED, replace(REMEMBERED, at=None))
    assert lost == DataLoss(None, NOON)
    assert lost.seconds is None


def test_without_an_earlier_mark_or_in_a_new_database_nothing_is_lost() -> None:
    assert gap(None, found(3600)) is None
    assert gap(replace(REMEMBERED, at=None), found(3600)) is None
    assert gap(REMEMBERED, Mark(None, "new", 9, Timeline(1))) is None


def test_a_mark_survives_encoding() -> None:
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
def test_an_invalid_mark_is_unreadable(value: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode(value)


def lineage(known: Mark) -> Lineage:
    """Return a lineage that has seen this mark."""
    made = Lineage()
    made.record_mark(known, None)
    return made


def test_a_database_that_only_advances_stays_known() -> None:
    seen = lineage(REMEMBERED)
    for mark in (found(0), found(-5), found(-5, timeline=Timeline(3))):
        seen.record_mark(mark, seen.known)
        assert (seen.broken, seen.known) == ("", mark)


@pytest.mark.parametrize(
    "mark",
    [found(0.001), replace(REMEMBERED, at=None), found(0, system=8), found(0, database="another")],
)
def test_a_database_that_went_back_or_changed_is_unknown_until_it_is_followed(mark: Mark) -> None:
    seen = lineage(REMEMBERED)
    seen.record_mark(mark, seen.known)
    assert seen.broken
    seen.record_mark(REMEMBERED, seen.known)
    assert seen.broken, "callers that know the old database must end first"
    seen.follow()
    seen.record_mark(mark, seen.known)
    assert (seen.broken, seen.known) == ("", mark)


def test_a_reading_from_before_the_known_mark_breaks_nothing() -> None:
    """Of two concurrent readings the later mark may be recorded first."""
    seen = lineage(found(5))
    known = seen.known
    seen.record_mark(REMEMBERED, known)
    seen.record_mark(found(3), known)
    assert (seen.broken, seen.known) == ("", REMEMBERED)


def test_a_late_reading_doesnt_undo_the_result_of_another_thread(
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
