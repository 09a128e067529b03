"""Workers that several tests of a file use one after the other: a start takes a second.

    pytestmark = pytest.mark.asyncio(loop_scope="module")

    async def test_a_program_runs(workers: SharedWorkers) -> None:
        async with workers(slots="3") as (member, worker):
            stream = await member.attached()

A test gets a worker with the requested settings, which runs nothing and holds nothing, and an empty
record of its stream. A worker that ended, lost its stream or failed a test isn't used again.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember, Stream
from support.wait import WaitTimedOut
from support.worker_process import WorkerProcess, cluster

CLEARED_WITHIN = 5.0
"""Seconds in which a worker ends what a test left running; else the worker is stopped."""
MOST_IDLE = 2
"""Idle workers of a file; others are stopped, because their heartbeats cost time."""


@dataclass(frozen=True, slots=True)
class Running:
    """A worker with its member, and how to stop both."""

    member: FakeMember
    worker: WorkerProcess
    stack: AsyncExitStack

    async def cleared(self) -> bool:
        """End what the worker still runs. Return whether another test can use the worker."""
        stream = self.member.streams[-1]
        if not self.worker.runs() or stream.ended:
            return False
        self.member.acknowledge_results = True
        try:
            while held := await _holdings(stream):
                await stream.send(cancels=[pb.Cancel(key=key, kill=True) for key in held])
            await stream.granted_at_least(1)
        except WaitTimedOut:
            return False
        stream.forget()
        return True


async def _holdings(stream: Stream) -> list[pb.AssignmentKey]:
    """Return what the worker holds by its next heartbeat."""
    seen = len(stream.heartbeats)
    await stream.until(
        lambda: len(stream.heartbeats) > seen or stream.ended or None, "a heartbeat", CLEARED_WITHIN
    )
    return [pb.AssignmentKey(run_id=run, fencing_token=token) for (run, token), _ in stream.held()]


class SharedWorkers:
    """The idle workers of a file, by their settings."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._idle: dict[object, Running] = {}

    @asynccontextmanager
    async def __call__(
        self, *, config: str = "", environ: Mapping[str, str] | None = None, **flags: str
    ) -> AsyncIterator[tuple[FakeMember, WorkerProcess]]:
        """Lend a worker with these settings, as `worker_process.cluster` starts one."""
        settings = (config, *sorted({**(environ or {}), **flags}.items()))
        running = self._idle.pop(settings, None)
        if running is not None and not await running.cleared():
            await running.stack.aclose()
            running = None
        if running is None:
            stack = AsyncExitStack()
            home = self._folders.mktemp("worker")
            started = cluster(home, config=config, environ=dict(environ or {}), **flags)
            member, worker = await stack.enter_async_context(started)
            running = Running(member, worker, stack)
        try:
            yield running.member, running.worker
        except BaseException:
            await running.stack.__aexit__(*sys.exc_info())
            raise
        self._idle[settings] = running
        for oldest in list(self._idle)[:-MOST_IDLE]:
            await self._idle.pop(oldest).stack.aclose()

    async def close(self) -> None:
        """Stop all workers."""
        for running in self._idle.values():
            await running.stack.aclose()
        self._idle.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedWorkers]:
    """Lend workers to the tests of a file."""
    shared = SharedWorkers(tmp_path_factory)
    yield shared
    await shared.close()
