"""What watches over the programs that run, when the host has no room for it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from support.wait import PATIENCE, wait_until_async
from workerd import sessions as module
from workerd.keeper import Keeper
from workerd.sessions import Sessions


async def test_a_keeper_that_cant_be_started_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork bomb takes all process numbers: the other attempts of this worker go on."""
    tried: list[OSError] = []

    def starved(path: Path, *, picture: bool) -> Keeper:
        if not tried:
            tried.append(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
            raise tried[0]
        return Keeper(path, picture=picture)

    monkeypatch.setattr(module, "Orphans", lambda _mark, _tree: None)
    monkeypatch.setattr(module, "_KEEPER_LOOK", 0.01)
    sessions = Sessions(tmp_path, wanted=False, handlers=False)
    monkeypatch.setattr(module, "Keeper", starved)
    first = sessions._keeper
    os.kill(first.pid, signal.SIGKILL)
    keeping = asyncio.create_task(sessions.keep_keeper(), name="keeper")
    try:
        await wait_until_async(
            lambda: keeping.done() or sessions._keeper is not first, PATIENCE, "a new keeper"
        )
        assert tried
        assert sessions._keeper.alive()
    finally:
        keeping.cancel()
        sessions.close()
