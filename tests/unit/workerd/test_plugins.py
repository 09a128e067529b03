"""Third-party executors: no fault of their code reaches the worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from schedclient.executors import GROUP, Executor
from schedkit.errors import Misconfigured
from schedproto.v1 import common_pb2, job_pb2
from support.attempts import attempt_start
from support.calling import handler_loops, outcome_of
from support.fake_member import FakeMember
from support.wait import WAIT_TIMEOUT
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, OutcomeReason
from workerd.executors import plugins
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.plugins import PluginExecutor
from workerd.executors.python import HandlerCaller
from workerd.metrics import WorkerMetrics


class Closing(Executor):
    """An executor that calls `does` when it is closed."""

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
    """An exception like those of panicking modules in Rust."""


async def test_an_executor_that_fails_to_close_does_not_delay_the_others(
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
    async with asyncio.timeout(WAIT_TIMEOUT):
        async with handler_loops() as loops:
            caller = HandlerCaller(loops)
            await plugins.close({name: PluginExecutor(each, caller) for name, each in made.items()})
    assert [name for name, each in made.items() if each.closed] == ["is fine"]
    assert "close hangs timed out after 0.2 s" in caplog.text
    for name in ("fails", "panics", "leaves"):
        assert f"closing the executor of {name} failed" in caplog.text


@dataclass
class Config:
    """The configuration of the job: where the executor panics."""

    at: str

    def __post_init__(self) -> None:
        panic_at("config", self)


def panic_at(place: str, config: Config) -> None:
    if config.at == place:
        raise Panic(place)


class OnTheLoop(Executor):
    def check(self, config: Config) -> None:
        panic_at("check", config)

    async def run(self, config: Config, payload: Any, ctx: Any) -> str:
        panic_at("run", config)
        await asyncio.sleep(0)
        panic_at("later", config)
        return "done"


class InAThread(OnTheLoop):
    def run(self, config: Config, payload: Any, ctx: Any) -> str:  # type: ignore[override]
        panic_at("run", config)
        panic_at("later", config)
        return "done"


@pytest.mark.parametrize("executor", [OnTheLoop, InAThread])
@pytest.mark.parametrize("place", ["config", "check", "run", "later"])
async def test_a_panic_anywhere_ends_only_its_own_run(executor: type[Executor], place: str) -> None:
    """Otherwise an exception outside of `Exception` ends the worker, or hangs the run."""
    async with handler_loops() as loops:
        plugin = PluginExecutor(executor(), HandlerCaller(loops))
        outcome = await carried_out(plugin, place)
        assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, OutcomeReason.EXCEPTION)
        assert outcome.error == f"Panic: {place}"
        assert (await carried_out(plugin, "nowhere")).verdict is AttemptVerdict.SUCCEEDED


def test_a_plugin_that_exits_its_process_can_t_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_as_a_plugin.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("odd", "ends_as_a_plugin:Odd", GROUP)
    with pytest.raises(Misconfigured, match=r"'odd' \(.*\) can't be loaded: SystemExit: 0"):
        plugins.loaded({"odd": point}, HandlerCaller(HandlerLoops(WorkerMetrics())))


async def carried_out(plugin: PluginExecutor, place: str) -> AttemptOutcome:
    config = common_pb2.Payload(json=json.dumps({"at": place}))
    action = job_pb2.PluginAction(executor="x", config=config)
    assignment = FakeMember().assignment(incarnation="i", plugin=action)
    return await outcome_of(plugin.begin, attempt_start(assignment, "w1", datetime.now(UTC)))
