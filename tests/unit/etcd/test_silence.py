"""How long etcd has been silent: the time since a call was last answered, over all callers."""

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


def test_an_answered_call_ends_the_silence(clock: Clock) -> None:
    silence = Silence()
    assert silence.seconds() == 0
    silence.unanswered(99.0)
    silence.broken()
    clock.now += 5
    assert silence.seconds() == 0


def test_a_silence_counts_from_the_first_unanswered_call(clock: Clock) -> None:
    silence = Silence()
    silence.broken()
    for began in (101.0, 102.0, 101.5):
        clock.now = began + 0.8
        silence.unanswered(began)
    clock.now = 104.0
    assert silence.seconds() == pytest.approx(3.0)


def test_a_call_that_was_under_way_when_another_was_answered_begins_it_no_earlier(
    clock: Clock,
) -> None:
    silence = Silence()
    clock.now = 100.4
    silence.broken()
    clock.now = 100.8
    silence.unanswered(100.0)
    assert silence.seconds() == pytest.approx(0.4)
