"""One item that raises is set aside; the others of its loop are handled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from schedkit.errors import Unavailable
from schedkit.set_aside import counts, each, in_parts, set_aside


def test_the_item_that_raises_is_counted_and_the_others_are_handled() -> None:
    before = counts().get("probe", 0)
    assert each("probe", [1, 0, 2], lambda n: 2 // n) == [2, 1]
    assert counts()["probe"] == before + 1


def test_what_is_unavailable_isnt_about_the_item() -> None:
    with pytest.raises(Unavailable), set_aside("probe", "x"):
        raise Unavailable("PostgreSQL")


def test_what_passes_is_raised() -> None:
    with pytest.raises(KeyError), set_aside("probe", "x", passes=(KeyError,)):
        raise KeyError("x")


async def test_a_cancellation_passes() -> None:
    with pytest.raises(asyncio.CancelledError), set_aside("probe", "x"):
        raise asyncio.CancelledError


async def test_a_batch_is_halved_until_the_bad_item_is_alone() -> None:
    done: list[int] = []
    bad: list[int] = []

    async def handle(some: Sequence[int]) -> None:
        if 7 in some:
            raise OverflowError("7")
        done.extend(some)

    await in_parts("probe", range(20), handle, then=lambda item, _: bad.append(item))
    assert (sorted(done), bad) == ([n for n in range(20) if n != 7], [7])
