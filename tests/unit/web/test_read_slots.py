"""Readings of pages take their turns; one that breaks off before its turn has begun nothing, and
none waits for ever.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api import deadlines
from schedd.api.errors import MemberUnavailableError
from schedd.api.services import Caller
from schedd.web.pages.cluster import overview
from schedd.web.pages.jobs import forecast
from schedd.web.pages.page import PageRequest, Read
from schedd.web.pages.runs import dead_letters
from schedkit.clock import boottime
from support.callers import TESTER


class Store:
    """A dependency that isn't called."""

    async def present(self, *_asked: object) -> object:
        raise AssertionError("it has had no turn")

    counts = dead_letter_groups = newest_definitions = present


class Silent:
    """A dependency that never answers."""

    def __getattr__(self, name: str) -> object:
        return self._silent

    async def _silent(self, *_asked: object) -> object:
        return await asyncio.Event().wait()


READS = [overview.run_queries, dead_letters.PAGE.read, forecast.PAGE.read]


def asking(store: object, turns: int) -> PageRequest:
    services = SimpleNamespace(
        store=store, pauses=store, dead_letters=store, database_answered_at=boottime
    )
    return PageRequest(
        cast("Any", services), Caller(TESTER, source="test"), turns=asyncio.Semaphore(turns)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "store", "turns"),
    [
        *((read, Store(), 0) for read in READS),
        (dead_letters.PAGE.read, Silent(), 3),
        (forecast.PAGE.read, Silent(), 3),
    ],
)
async def test_no_page_waits_for_ever_for_a_slot_or_for_postgresql(
    read: Read, store: object, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "READ_WITHIN", 0.6)
    asked = asking(store, turns)
    async with asyncio.timeout(10):
        with pytest.raises(MemberUnavailableError, match=r"no answer within 0\.6 s"):
            await read(asked)
    assert asked.turns is not None
    assert asked.turns._value == turns, "none is kept"


@pytest.mark.parametrize("read", READS)
async def test_a_page_closed_before_it_gets_a_slot_leaves_no_unawaited_read(
    read: Read,
) -> None:
    asked = asking(Store(), turns=0)
    with warnings.catch_warnings(record=True) as warned:
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
    assert [str(one.message) for one in warned] == []
