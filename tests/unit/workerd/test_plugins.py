"""Executors of others, whatever their code does: nothing of it reaches the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from schedclient.executors import Executor
from support.wait import PATIENCE
from workerd.executors import plugins
from workerd.executors.plugins import Plugin
from workerd.executors.python import Caller


class Closing(Executor):
    """One that does this when it is closed."""

    def __init__(self, does: Callable[[], Any]) -> None:
        self._does = does
        self.closed = False

    async def run(self, config: Any, payload: Any, ctx: Any) -> None: ...

    async def close(self) -> None:
        if (waits := self._does()) is not None:
            await waits
        self.closed = True


def raising(error: BaseException) -> Callable[[], Any]:
    def does() -> None:
        raise error

    return does


class Panic(BaseException):
    """What a module in Rust raises where it should not."""


async def test_whatever_one_does_as_it_is_closed_the_others_are_closed_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugins, "CLOSE_WITHIN", 0.2)
    never = asyncio.Event()
    made = {
        "hangs": Closing(never.wait),
        "fails": Closing(raising(RuntimeError("oh no"))),
        "panics": Closing(raising(Panic())),
        "leaves": Closing(raising(SystemExit(3))),
        "is fine": Closing(lambda: None),
    }
    async with asyncio.timeout(PATIENCE):
        await plugins.close({name: Plugin(each, Caller()) for name, each in made.items()})
    assert [name for name, each in made.items() if each.closed] == ["is fine"]
    assert "close hangs takes longer than 0.2 s" in caplog.text
    for name in ("fails", "panics", "leaves"):
        assert f"the executor of {name} doesn't close as it should" in caplog.text
