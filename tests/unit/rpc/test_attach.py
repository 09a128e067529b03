"""A worker's stream at a member, where it breaks in one direction or is opened twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from schedd.core.auth.rights import CallerIdentity, IdentityKind
from schedd.core.cluster.membership import EMPTY_VIEW
from schedd.core.dispatch.successes import Successes
from schedd.core.ids import Id, IncarnationId, RunId, Token, new_id
from schedd.core.runs.model import AuditRecord, RunKey
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.dispatch.workers.worker_audit import WorkerAudit
from schedd.results.log_followers import LogFollowers
from schedd.results.progress import MemberProgress
from schedd.results.result_decision import ReceivedResult
from schedd.rpc import auth_interceptor
from schedd.rpc.workers import frames
from schedd.rpc.workers.attach import ClusterTerms, WorkerService
from schedd.store.user_store import UserStore
from schedproto.v1 import worker_service_pb2 as wire
from support.fake_of import fake_of
from support.runs import NOW, SetClock
from support.wait import wait_until_async


class WorkerSessions:
    """Everybody is welcome; notes whose last stream has ended."""

    def __init__(self) -> None:
        self.ended: list[IncarnationId] = []
        self.workers: dict[IncarnationId, str] = {}
        """Incarnations by their worker."""

    async def is_of(self, worker: str, incarnation: IncarnationId) -> bool:
        return self.workers[incarnation] == worker

    async def greet(self, incarnation: object, spooled: object) -> None:
        return None

    def forget_incarnation(self, incarnation: IncarnationId) -> None:
        self.ended.append(incarnation)

    def record_heartbeat(
        self, incarnation: object, since_refresh: float, answer: object
    ) -> None: ...


class Refused(Exception):
    """How the stream was ended."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Context:
    """A stream that has said hello, and is silent until it is closed. `broken`: what a write
    raises once the welcome was sent.
    """

    def __init__(self, hello: wire.Hello, broken: Exception | None = None) -> None:
        self.frames: list[wire.WorkerFrame] = [wire.WorkerFrame(hello=hello)]
        self.written: list[wire.MemberFrame] = []
        self.broken = broken
        self.closed = asyncio.Event()

    async def read(self) -> object:
        if self.frames:
            return self.frames.pop()
        await self.closed.wait()
        return grpc.aio.EOF

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    async def abort(self, code: grpc.StatusCode, message: str, trailers: object) -> None:
        raise Refused(code, message)

    async def write(self, frame: wire.MemberFrame) -> None:
        if self.written and self.broken is not None:
            raise self.broken
        self.written.append(frame)


@fake_of(UserStore)
class AuditRows:
    """The records of the audit log."""

    def __init__(self) -> None:
        self.rows: list[AuditRecord] = []

    async def audit(self, entry: AuditRecord) -> None:
        self.rows.append(entry)


class Member:
    """A member that serves `Attach`."""

    def __init__(self) -> None:
        clock = SetClock()
        self.greeting = WorkerSessions()
        self.audit = AuditRows()
        self.workers = WorkerRegistry(clock, lambda _event: None)
        self.results: list[ReceivedResult] = []
        self.batches: list[tuple[str, Successes]] = []
        collect = SimpleNamespace(
            reported=lambda one, _outbox: self.results.append(one),
            succeeded=lambda worker, batch, _outbox: self.batches.append((worker, batch)),
            is_anothers=lambda *_: False,
        )
        self.service = WorkerService(
            ClusterTerms("m1", "c", "1", timedelta(seconds=3)),
            cast("Any", self.greeting),
            self.workers,
            cast("Any", collect),
            cast("Any", SimpleNamespace(tenure=None, view=lambda: EMPTY_VIEW)),
            clock,
            LogFollowers(self.workers),
            MemberProgress(),
            WorkerAudit(self.audit),
        )

    def attach(self, context: Context) -> asyncio.Task[None]:
        stream = self.service.attach(None, cast("Any", context))
        return asyncio.create_task(stream, name="attach")


def hello() -> wire.Hello:
    return wire.Hello(
        worker="w", incarnation=str(uuid4()), spool_id="s", slots=1, started_at=frames.stamp(NOW)
    )


@pytest.mark.parametrize("broken", [grpc.aio.UsageError("RPC already finished."), OSError("bug")])
async def test_a_stream_that_takes_no_more_frames_ends_though_its_reader_hangs(
    broken: Exception,
) -> None:
    """Otherwise heartbeats arrive, and the worker is sent neither runs nor cancels."""
    member = Member()
    context = Context(hello(), broken)
    stream = member.attach(context)
    await wait_until_async(member.workers.incarnations, 5, "the worker to be attached")
    member.service.members_changed()
    done, _ = await asyncio.wait({stream}, timeout=5)
    assert done, "the stream hangs"
    assert (stream.exception() is broken) is isinstance(broken, OSError), "a bug is raised"
    assert member.workers.incarnations() == []


async def test_the_end_of_an_old_stream_leaves_the_new_one_alone() -> None:
    """The worker came again before its old stream was seen to break."""
    member, who = Member(), hello()
    old, new = Context(who), Context(who)
    first = member.attach(old)
    await wait_until_async(lambda: old.written, 5, "the welcome")
    second = member.attach(new)
    await wait_until_async(lambda: new.written, 5, "the other welcome")
    old.closed.set()
    await asyncio.wait_for(first, 5)
    assert member.greeting.ended == []
    [attached] = member.workers.incarnations()
    new.closed.set()
    await asyncio.wait_for(second, 5)
    assert member.greeting.ended == [attached.id]


async def test_a_worker_attaches_only_by_its_own_name() -> None:
    member, context = Member(), Context(hello())
    auth_interceptor._CALLER.set(CallerIdentity(IdentityKind.WORKER, "another"))
    with pytest.raises(Refused) as refused:
        await member.attach(context)
    assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert "the certificate names worker/another, but the hello worker/w" in str(refused.value)
    assert member.workers.incarnations() == []


def result_of(incarnation: IncarnationId) -> wire.WorkerFrame:
    """A result that says to be of this incarnation, of the worker `w1`."""
    key = frames.key_message(RunKey(NOW, RunId(new_id())), Token(7))
    said = wire.Result(
        key=key, worker="w1", incarnation=str(incarnation), outcome=wire.Result.OUTCOME_SUCCEEDED
    )
    return wire.WorkerFrame(results=[said])


async def test_a_result_counts_as_that_of_the_worker_whose_stream_it_is() -> None:
    member, mine = Member(), hello()
    earlier, others = IncarnationId(new_id()), IncarnationId(new_id())
    member.greeting.workers = {earlier: "w", others: "w1"}
    context = Context(mine)
    auth_interceptor._CALLER.set(CallerIdentity(IdentityKind.WORKER, "w"))
    own = [IncarnationId(Id.parse(mine.incarnation)), earlier]
    context.frames[:0] = [result_of(others), *map(result_of, reversed(own))]
    with pytest.raises(Refused) as refused:
        await member.attach(context)
    assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert [one.sender for one in member.results] == own
    assert {one.worker for one in member.results} == {"w"}, "the audit doesn't name another"


def batch_of(incarnation: IncarnationId, count: int = 2, **changes: object) -> wire.WorkerFrame:
    """A frame with a batch of successes of this incarnation."""
    plain: dict[str, Any] = {
        "incarnation": str(incarnation),
        "run_ids": b"".join(new_id() for _ in range(count)),
        "fencing_tokens": [*range(7, 7 + count)],
        "scheduled_at": [1] * count,
        "started_at": [2] * count,
        "finished_at": [3] * count,
    }
    return wire.WorkerFrame(result_batches=[wire.ResultBatch(**{**plain, **changes})])


async def test_a_batch_of_another_workers_successes_ends_the_stream() -> None:
    member, mine = Member(), hello()
    earlier, others = IncarnationId(new_id()), IncarnationId(new_id())
    member.greeting.workers = {earlier: "w", others: "w1"}
    context = Context(mine)
    auth_interceptor._CALLER.set(CallerIdentity(IdentityKind.WORKER, "w"))
    own = [IncarnationId(Id.parse(mine.incarnation)), earlier]
    context.frames[:0] = [batch_of(others), *map(batch_of, reversed(own))]
    with pytest.raises(Refused) as refused:
        await member.attach(context)
    assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert [(worker, batch.senders) for worker, batch in member.batches] == [
        ("w", [sender] * 2) for sender in own
    ]


@pytest.mark.parametrize(
    "wrong", [{"run_ids": bytes(15)}, {"fencing_tokens": [7]}, {"finished_at": []}]
)
async def test_a_malformed_batch_is_audited_and_its_stream_continues(
    wrong: dict[str, object],
) -> None:
    member, mine = Member(), hello()
    sender = IncarnationId(Id.parse(mine.incarnation))
    context = Context(mine)
    both = batch_of(sender, **wrong)
    both.result_batches.extend(batch_of(sender).result_batches)
    context.frames[:0] = [batch_of(sender), both]
    stream = member.attach(context)
    await wait_until_async(lambda: len(member.batches) == 2, 5, "the other batches to be read")
    context.closed.set()
    await asyncio.wait_for(stream, 5)
    await member.service.audit.step()
    [record] = member.audit.rows
    assert (record.worker, record.action) == ("w", "result_batch")


async def test_a_member_reads_batches() -> None:
    member, context = Member(), Context(hello())
    stream = member.attach(context)
    await wait_until_async(lambda: context.written, 5, "the welcome")
    assert context.written[0].welcome.reads_batches
    context.closed.set()
    await asyncio.wait_for(stream, 5)


def holding(state: wire.Holding.State.ValueType) -> wire.Holding:
    return wire.Holding(key=frames.key_message(RunKey(NOW, RunId(new_id())), Token(7)), state=state)


@pytest.mark.parametrize("reported", ["by its hello", "by its heartbeat"])
async def test_unstored_results_are_counted_apart_from_running_runs(
    reported: str,
) -> None:
    """A caller that waits for a drained worker waits for both, from its first message on."""
    runs = [holding(wire.Holding.STATE_RUNNING) for _ in range(2)]
    ended = [holding(wire.Holding.STATE_SPOOLED) for _ in range(3)]
    who = hello()
    member, context = Member(), Context(who)
    if reported == "by its hello":
        who.running.extend(each.key for each in runs)
        who.spooled.extend(each.key for each in ended)
        context.frames = [wire.WorkerFrame(hello=who)]
    else:
        beat = wire.Heartbeat(holdings=[*runs, *ended], worker_cluster_time=frames.stamp(NOW))
        context.frames.insert(0, wire.WorkerFrame(heartbeat=beat))
    member.attach(context)
    await wait_until_async(
        lambda: any(one.running for one in member.workers.workers()),
        5,
        "its heartbeat to be received",
    )
    [view] = member.workers.workers()
    assert (view.running, view.unstored_results) == (2, 3)
    context.closed.set()


async def test_a_stream_ends_with_the_certificate_that_it_was_opened_by() -> None:
    """The worker attaches again, by its next one, and reports the runs it holds."""
    member, context = Member(), Context(hello())
    auth_interceptor._CALLER.set(
        CallerIdentity(IdentityKind.WORKER, "w", until=NOW + timedelta(seconds=0.2))
    )
    stream = member.attach(context)
    await wait_until_async(lambda: context.written, 5, "the welcome")
    await asyncio.wait_for(stream, 5)
    assert member.workers.incarnations() == []


async def test_a_smaller_grant_is_answered_without_other_messages() -> None:
    member = Member()
    context = Context(hello())
    context.frames.insert(0, wire.WorkerFrame(granted=wire.Granted(slots=0, serial=3)))
    stream = member.attach(context)
    await wait_until_async(lambda: len(context.written) == 2, 5, "the answer")
    welcome, answer = context.written
    assert welcome.welcome.answers_grants
    assert answer == wire.MemberFrame(reach=wire.Reach(serial=3, slots=0))
    context.closed.set()
    await asyncio.wait_for(stream, 5)


@pytest.mark.parametrize(
    ("attached", "seconds"), [(0, 2.5), (1_000, 2.5), (1_600, 4.0), (5_000, 5.0)]
)
def test_a_worker_among_very_many_sends_heartbeats_less_often(
    attached: int, seconds: float
) -> None:
    """Three times a TTL at least: each beat is a refresh then, and one may be lost."""
    terms = ClusterTerms("m1", "c", "1", timedelta(seconds=15))
    assert terms.heartbeat_interval(attached) == timedelta(seconds=seconds)
