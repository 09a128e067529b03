"""Readings of pages take their turns; one that breaks off before its turn has begun nothing."""

from __future__ import annotations

import asyncio
import gc
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api.services import Caller
from schedd.web.pages import dead_letters, forecast, reading
from schedd.web.pages.page import Asked, Read
from support.callers import TESTER


class Store:
    """It is asked for nothing."""

    async def present(self, *_asked: object) -> object:
        raise AssertionError("it has had no turn")

    counts = dead_letter_groups = newest_definitions = present


@pytest.mark.parametrize("read", [reading.read, dead_letters.PAGE.read, forecast.PAGE.read])
async def test_who_leaves_before_a_turn_has_come_leaves_no_reading_that_nobody_awaits(
    read: Read,
) -> None:
    store = Store()
    services = SimpleNamespace(store=store, pauses=store, dead_letters=store)
    none_free = asyncio.Semaphore(0)
    asked = Asked(cast("Any", services), Caller(TESTER, source="test"), turns=none_free)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        task = asyncio.ensure_future(read(asked))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done(), "it waits for its turn"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        await asyncio.sleep(0)  # the loop lets go of its last step
        gc.collect()
    assert [str(one.message) for one in told] == []
