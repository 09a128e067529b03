"""Supervision of running programs when the host has no room for a supervisor."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.process import process_supervisor as module
from workerd.process.keeper import Keeper, SharedLease
from workerd.process.process_journal import Journal
from workerd.process.process_supervisor import ProcessSupervisor
from workerd.process.programs import Program


class NoOrphans:
    """An orphan handler that finds none."""

    def __init__(self, _mark: str, _tree: Path | None) -> None: ...

    def add_attempt(self, process: object, run: str, token: int) -> None: ...

    def end_attempt(self, pid: int) -> None: ...

    def end_orphans(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Orphans", NoOrphans)


async def test_a_keeper_that_cant_be_started_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork bomb takes all process numbers: the other attempts of this worker continue."""
    tried: list[OSError] = []

    def starved(path: Path, lease: SharedLease, *, picture: bool, leased: bool) -> Keeper:
        if not tried:
            tried.append(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
            raise tried[0]
        return Keeper(path, lease, picture=picture, leased=leased)

    monkeypatch.setattr(module, "_KEEPER_LOOK", 0.01)
    sessions = ProcessSupervisor(tmp_path, wanted=False, handlers=False)
    monkeypatch.setattr(module, "Keeper", starved)
    first = sessions._keeper
    os.kill(first.pid, signal.SIGKILL)
    keeping = asyncio.create_task(sessions.keep_keeper(), name="keeper")
    try:
        await wait_until_async(
            lambda: keeping.done() or sessions._keeper is not first, WAIT_TIMEOUT, "a new keeper"
        )
        assert tried
        assert sessions._keeper.alive()
    finally:
        keeping.cancel()
        sessions.close()


def test_leftovers_of_an_attempt_are_never_killed_by_a_reused_number(
    tmp_path: Path,
) -> None:
    """The first process was reaped; holders of its pipe are searched a moment later."""
    earlier, later = (AssignmentKey(RunId(run), Token(1)) for run in ("earlier", "later"))
    program = Program(["sleep", "60"], {"PATH": "/usr/bin:/bin"}, tmp_path, subprocess.DEVNULL)
    sessions = ProcessSupervisor(tmp_path, wanted=False, handlers=False)
    try:
        child = sessions.start(program, later, 1, 2)
        sessions.add_attempt(child.pid, later)

        sessions.kill(child.pid, earlier)
        assert not select.select([child.fileno()], [], [], 0.2)[0], "it lives"

        sessions.kill(child.pid, later)
        assert select.select([child.fileno()], [], [], WAIT_TIMEOUT)[0]
        child.wait()
        sessions.end_attempt(child.pid, later)
    finally:
        sessions.close()


async def test_without_a_journal_no_work_is_requested_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal lists the programs of a killed worker. Each change is logged once."""
    caplog.set_level(logging.INFO, module.__name__)
    full = [True]
    rewrite = Journal._rewrite

    def written(self: Journal) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        rewrite(self)

    monkeypatch.setattr(Journal, "_rewrite", written)
    monkeypatch.setattr(module, "_LOOK", 0.01)
    sessions = ProcessSupervisor(tmp_path, wanted=False, handlers=False)
    program = Program(["sleep", "60"], {"PATH": "/usr/bin:/bin"}, tmp_path, subprocess.DEVNULL)
    watching = asyncio.create_task(sessions.watch(), name="watch")
    try:
        why = "process journal can't be written: No space left on device"
        assert sessions.refusal_reason == why
        child = sessions.start(program, AssignmentKey(RunId("r"), Token(1)), 1, 2)
        with pytest.raises(OSError, match="No space left"):
            sessions.add_attempt(child.pid, AssignmentKey(RunId("r"), Token(1)))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        full.clear()
        await wait_until_async(lambda: not sessions.refusal_reason, WAIT_TIMEOUT, "the journal")
        assert sessions.journal.path.exists()
        lines = [line for line in caplog.messages if "process journal" in line]
        assert lines == [
            f"{why}; the worker requests no new work until the journal can be written",
            "process journal written again: the worker requests new work",
        ]
    finally:
        watching.cancel()
        sessions.close()
