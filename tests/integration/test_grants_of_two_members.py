"""Two members dispatch to one worker, which regrants its slot while one of them writes.

Streams, dispatchers and the worker are real; the rows are in memory, and take their time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio

from schedd.core.cluster.membership import EMPTY_VIEW
from schedd.core.ids import JobId, ShardId, Token
from schedd.core.runs.model import Claim, DispatchedBatch, Draft
from schedd.core.runs.records import Assignments
from schedd.dispatch.workers.attached_worker import AttachedStream
from schedd.dispatch.workers.worker_audit import WorkerAudit
from schedd.results.log_followers import LogFollowers
from schedd.results.progress import MemberProgress
from schedd.results.result_collector import AssignmentRefusal
from schedd.results.result_decision import ReceivedResult
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.workers.attach import ClusterTerms, WorkerService
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.net.channel import SERVER_OPTIONS, listen
from schedproto.v1 import job_pb2
from support.definitions import cached_definition
from support.dispatching import Definitions, World, of
from support.runs import NOW, SetClock
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess

RUNS = 20
WRITING, LASTING = 0.05, 0.1
"""Seconds from a choice to its push, and from a run's start to its end."""


class Running(SetClock):
    """Cluster time from now on."""

    began = time.monotonic()

    def now(self) -> datetime:
        return NOW + timedelta(seconds=time.monotonic() - self.began)


class Sleepers(Definitions):
    """Definitions in which each run sleeps."""

    def _one(self, job: JobId) -> CachedDefinition:
        spec = job_pb2.Job(shell=job_pb2.ShellAction(argv=["sleep", str(LASTING)]))
        return cached_definition(super()._one(job).definition, spec=spec)


class Desk:
    """Where workers are greeted and results taken: everybody is welcome, and everything counts."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.refusals: list[str] = []

    async def greet(self, incarnation: object, spooled: object) -> None: ...
    async def goodbye(self, incarnation: object) -> None: ...
    def forget_incarnation(self, incarnation: object) -> None: ...
    def started(self, key: object, token: object, at: object) -> None: ...

    def is_anothers(self, key: object, token: object, sender: object) -> bool:
        return False

    def record_heartbeat(
        self, incarnation: object, since_refresh: float, answer: Callable[..., None]
    ) -> None:
        answer(refreshed=True, lost=False)

    def reported(self, reported: ReceivedResult, line: AttachedStream) -> None:
        self.done.append(reported.key.run_id.number)
        line.acknowledge(reported.key, reported.token, stale=False)

    def refused(self, refusal: AssignmentRefusal) -> None:
        self.refusals.append(refusal.why)


class Member:
    """A member that serves `Attach`, and dispatches its runs."""

    def __init__(self) -> None:
        self.desk, self.clock = Desk(), Running()
        self.world = World(Sleepers)
        self.world.rows.assign, self._assign = self._slowly, self.world.rows.assign  # type: ignore[method-assign]  # a database that takes its time
        terms = ClusterTerms("m", "c", "1", timedelta(seconds=15))
        cluster = SimpleNamespace(tenure=None, view=lambda: EMPTY_VIEW)
        desk = cast("Any", self.desk)
        self.service = WorkerService(
            terms,
            desk,
            self.world.workers,
            desk,
            cast("Any", cluster),
            self.clock,
            LogFollowers(self.world.workers),
            MemberProgress(),
            WorkerAudit(cast("Any", None)),
        )
        self.address = ""
        self.writing = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self.service.serve(server, AuthInterceptor())
        self.address = f"127.0.0.1:{listen(server, '127.0.0.1:0', None)}"
        await server.start()
        self.world.workers.on_slots_freed(self.world.dispatch.wake)
        dispatching = asyncio.create_task(self.world.dispatch.loop.run(), name="dispatch")
        try:
            yield
        finally:
            dispatching.cancel()
            await asyncio.gather(dispatching, return_exceptions=True)
            await server.stop(grace=None)

    async def _slowly(
        self, claim: Claim, drafts: Sequence[Draft], next_token: Callable[[ShardId], Token]
    ) -> Assignments:
        written = await self._assign(claim, drafts, next_token)
        self.writing = True
        await asyncio.sleep(WRITING)
        self.writing = False
        start_by = self.clock.now() + timedelta(seconds=WAIT_TIMEOUT)
        runs = [replace(each.run, start_by=start_by) for each in written.assigned]
        return replace(written, batches=[DispatchedBatch.of([run]) for run in runs])


async def test_an_assignment_sent_while_its_slot_is_regranted_isnt_refused(
    tmp_path: Path,
) -> None:
    members = [Member(), Member()]

    def ended() -> bool:
        refused = any(each.desk.refusals for each in members)
        return refused or sum(len(each.desk.done) for each in members) >= RUNS

    async with members[0].serving(), members[1].serving():
        worker = WorkerProcess(tmp_path, [each.address for each in members], slots="1")
        worker.start()
        try:
            for each in members:
                await wait_until_async(each.world.workers.incarnations, WAIT_TIMEOUT, "the worker")
            for number in range(RUNS):  # each is better than all before, of which one is written
                who = members[number % 2]
                who.world.run_index.put_runs([of(number, number, waited=60.0 * number)], NOW)
                who.world.dispatch.wake()
                await wait_until_async(
                    lambda m=who: m.writing or not m.world.run_index.ready, WAIT_TIMEOUT, "its turn"
                )
            await wait_until_async(ended, WAIT_TIMEOUT, "all to end")
        finally:
            await worker.stop()
    assert [each.desk.refusals for each in members] == [[], []]
    assert sorted(members[0].desk.done + members[1].desk.done) == [*range(RUNS)]
