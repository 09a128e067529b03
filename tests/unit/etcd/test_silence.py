"""For how long etcd has said nothing: since when nobody was answered, whoever asked."""

from __future__ import annotations

import pytest

from schedd.etcd import last_answer
from schedd.etcd.last_answer import Silence


class Clock:
    """CLOCK_BOOTTIME as the test has it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(last_answer, "boottime", made)
    return made


def test_who_was_answered_last_tells_of_no_silence(clock: Clock) -> None:
    told = Silence()
    assert told.seconds() == 0
    told.unanswered(99.0)
    told.broken()
    clock.now += 5
    assert told.seconds() == 0


def test_a_silence_counts_from_the_first_call_of_those_that_nobody_answered(clock: Clock) -> None:
    told = Silence()
    told.broken()
    for began in (101.0, 102.0, 101.5):
        clock.now = began + 0.8
        told.unanswered(began)
    clock.now = 104.0
    assert told.seconds() == pytest.approx(3.0)


def test_a_call_that_was_under_way_when_another_was_answered_begins_it_no_earlier(
    clock: Clock,
) -> None:
    told = Silence()
    clock.now = 100.4
    told.broken()
    clock.now = 100.8
    told.unanswered(100.0)
    assert told.seconds() == pytest.approx(0.4)
