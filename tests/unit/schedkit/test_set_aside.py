"""One item that raises is set aside; the others of its loop are handled."""

from __future__ import annotations

import asyncio

import pytest

from schedkit.errors import BrokenData, Fault, Unavailable
from schedkit.set_aside import counts, each, set_aside


def test_the_item_that_raises_is_counted_and_the_others_are_handled() -> None:
    before = counts().get("probe", 0)
    assert each("probe", [1, 0, 2], lambda n: 2 // n) == [2, 1]
    assert counts()["probe"] == before + 1


@pytest.mark.parametrize("error", [Unavailable("PostgreSQL"), Fault("a wrong statement")])
def test_what_isnt_about_the_item_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)), set_aside("probe", "x"):
        raise error


def test_a_value_that_postgresql_rejects_is_about_the_item() -> None:
    with set_aside("probe", "x"):
        raise BrokenData("out of range")


def test_what_passes_is_raised() -> None:
    with pytest.raises(KeyError), set_aside("probe", "x", passes=(KeyError,)):
        raise KeyError("x")


async def test_a_cancellation_passes() -> None:
    with pytest.raises(asyncio.CancelledError), set_aside("probe", "x"):
        raise asyncio.CancelledError
