"""An item that raises is set aside; the other items of its loop are handled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import BrokenData, Fault, Unavailable
from schedkit.set_aside import counts, each, set_aside, together


def test_the_item_that_raises_is_counted_and_the_others_are_handled() -> None:
    before = counts().get("probe", 0)
    assert each("probe", [1, 0, 2], lambda n: 2 // n) == [2, 1]
    assert counts()["probe"] == before + 1


@pytest.mark.parametrize("error", [Unavailable("PostgreSQL"), Fault("a wrong statement")])
def test_an_error_of_a_dependency_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)), set_aside("probe", "x"):
        raise error


def test_a_value_that_postgresql_rejects_is_an_error_of_the_item() -> None:
    with set_aside("probe", "x"):
        raise BrokenData("out of range")


def test_an_error_on_the_pass_list_is_raised() -> None:
    with pytest.raises(KeyError), set_aside("probe", "x", passes=(KeyError,)):
        raise KeyError("x")


async def test_a_cancellation_is_raised() -> None:
    with pytest.raises(asyncio.CancelledError), set_aside("probe", "x"):
        raise asyncio.CancelledError


def test_an_item_with_a_name_is_logged_once_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
):
    kind = "row of a test"
    before = counts()[kind]
    for _ in range(5):
        assert each(kind, ["7", "x", "8"], int, name=lambda text: f"row {text}") == [7, 8]
    assert counts()[kind] == before + 5
    [line] = [line for line in caplog.messages if "row_of_a_test" in line]
    assert "item=row x" in line


def test_a_second_name_within_a_second_is_logged_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    kind = "row of another test"
    lines: list[int] = []
    monkeypatch.setattr(LimitedLine, "due", lambda _: lines.pop(0) if lines else 0)
    for due in ([1], [], [1], [1]):
        lines[:] = due
        each(kind, ["x", "y"], int, name=str)
    named = [line.partition("item=")[2][0] for line in caplog.messages if "item=" in line]
    assert named == ["x", "y"]


def test_items_are_handled_in_one_call_and_each_alone_if_that_raises() -> None:
    calls: list[list[str]] = []

    def numbers(items: Sequence[str]) -> list[int]:
        calls.append([*items])
        return [*map(int, items)]

    assert together("one call", ["1", "2"], numbers, name=str) == [[1, 2]]
    assert calls == [["1", "2"]]
    assert together("one call", ["1", "x", "2"], numbers, name=str) == [[1], [2]]
    assert counts()["one call"] == 1


def test_an_error_of_a_dependency_in_one_call_is_raised() -> None:
    def down(_: object) -> None:
        raise Unavailable("PostgreSQL: no answer")

    with pytest.raises(Unavailable):
        together("one call", ["1"], down, name=str)
