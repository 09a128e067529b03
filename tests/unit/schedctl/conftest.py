"""schedctl's own process, in this one: its arguments in, its exit code, stdout and stderr out."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from schedctl import app
from support.scripted import Scripted


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No configuration, no variables: nothing of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith("SCHEDCTL_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def offline(home: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command that asks no cluster."""

    def run(*arguments: str) -> Ended:
        code = app.run(arguments)
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
async def member(home: Path) -> AsyncIterator[Scripted]:
    scripted = await Scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
def ctl(
    member: Scripted, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Run a command against the scripted member."""
    monkeypatch.setenv("SCHEDCTL_ENDPOINTS", member.address)

    async def run(*arguments: str) -> Ended:
        code = await asyncio.to_thread(app.run, arguments)
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run
