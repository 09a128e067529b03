"""Followers of attempts that haven't begun."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.logs import log_tail
from workerd.logs.log_tail import Expected


def key(token: int) -> AssignmentKey:
    return AssignmentKey(RunId("r"), Token(token))


def test_a_follower_receives_the_output_from_its_first_byte() -> None:
    expected, received = Expected(), list[str]()
    expected.follow(key(1), "m1", lambda _: received.append("m1"))
    expected.follow(key(1), "m2", lambda _: received.append("m2"))
    expected.follow(key(1), "m3", lambda _: received.append("m3"))
    expected.unfollow(key(1), "m2")
    expected.remove_follower("m3")
    tail = expected.take_tail(key(1))
    assert tail is not None
    tail.capture()
    tail.feed(False, b"x", datetime.now(UTC))
    assert received == ["m1"]
    assert expected.take_tail(key(1)) is None, "the attempt has begun and is no longer expected"


def test_an_attempt_without_followers_is_forgotten() -> None:
    expected = Expected()
    for token in range(10):
        expected.follow(key(token), "m1", lambda _: None)
    expected.unfollow(key(0), "m1")
    expected.remove_follower("m1")
    assert len(expected) == 0


def test_the_number_of_expected_attempts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tail, "MOST_EXPECTED", 2)
    expected = Expected()
    for token in (1, 2, 3):
        expected.follow(key(token), "m1", lambda _: None)
    assert len(expected) == 2
    assert expected.take_tail(key(1)) is None
    assert (tail := expected.take_tail(key(3))) is not None
    assert tail.followed
