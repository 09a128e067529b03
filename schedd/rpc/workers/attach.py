"""The worker's stream at a member: `Attach`.

    hello ──greet──→ welcome │ rejected (status and reason)
    then, in both directions:
      frames up   → bounds → workers (grants, heartbeats), collector (results, rejections)
      line  down ← assignments, revokes, cancels, demand, reach, acknowledgements, answers

An error in either direction ends the stream. The worker reconnects and reports the runs it holds.

Invariants
- Every field is checked against its bounds before it is used. A hello, heartbeat or grant out of
  bounds ends the stream (INVALID_ARGUMENT, with the field). Another item out of bounds (result,
  refusal, answer, log chunk, progress) is skipped and audited.
- A result with a valid key is never skipped: fields out of bounds are cleared, and the run ends
  (`frames.readable`).
- A result without a valid key is answered STALE, so that its worker stops sending it. A batch
  whose columns don't fit together isn't answered: its keys aren't known.
- A result that this member fails to handle isn't answered: its worker sends it to another member.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Final

import grpc

from schedd.api.views import stamp
from schedd.cluster.observer import Observer
from schedd.core.auth.rights import IdentityKind
from schedd.core.ids import IncarnationId
from schedd.core.runs.model import Incarnation
from schedd.dispatch.workers.attached_worker import Attached
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.dispatch.workers.worker_audit import WorkerAudit
from schedd.dispatch.workers.worker_sessions import ANOTHER, RejectedHello, WorkerSessions
from schedd.ports import ClusterClock
from schedd.results.log_followers import LogFollowers
from schedd.results.progress import MemberProgress
from schedd.results.result_collector import AssignmentRefusal, ResultCollector
from schedd.rpc.auth_interceptor import AuthInterceptor, caller
from schedd.rpc.request_decoding import MOST_PARTS_OF_FRAME, UndecodedRequest, put, reader
from schedd.rpc.status import abort
from schedd.rpc.workers import frames
from schedd.rpc.workers.frame_queue import WorkerFrameQueue
from schedkit import failpoints
from schedkit.bounds import FRAME
from schedkit.errors import Unavailable
from schedkit.records import dataclass, replace
from schedkit.set_aside import note, set_aside
from schedkit.tasks import in_turns
from schedproto.v1 import worker_service_pb2 as wire

log = logging.getLogger(__name__)

HELLO_WITHIN: Final = 10.0
"""Seconds a new stream has for its first frame."""
BEATS_A_SECOND: Final = 400
"""Heartbeats that a member handles easily: each costs 0.25 ms."""

AFTER_PUSH = failpoints.awaited("assign.after_push", None)
BEFORE_ACKNOWLEDGING = failpoints.awaited("acknowledge.before", None)

Stream = grpc.aio.ServicerContext[wire.WorkerFrame, wire.MemberFrame]


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """The properties of the cluster that a welcome contains."""

    member: str
    cluster_id: str
    version: str
    worker_ttl: timedelta

    def heartbeat_interval(self, attached: int) -> timedelta:
        """Return the interval for a worker: six heartbeats a TTL, so that two may be lost before a
        refresh is late. With very many workers, three at least: then each is a refresh, and one
        may be lost.
        """
        sustainable = timedelta(seconds=attached / BEATS_A_SECOND)
        return min(max(self.worker_ttl / 6, sustainable), self.worker_ttl / 3)


class ForeignWorker(Exception):
    """A worker sent an item of another worker."""


PASSES: Final = (frames.BadFrame, ForeignWorker)
"""A bad item is logged without a traceback; another worker's result ends the stream."""


@dataclass(eq=False)
class WorkerService:
    """Serves `Attach`."""

    terms: ClusterTerms
    greeting: WorkerSessions
    workers: WorkerRegistry
    collector: ResultCollector
    cluster: Observer
    clock: ClusterClock
    log_followers: LogFollowers
    advances: MemberProgress
    audit: WorkerAudit

    def __post_init__(self) -> None:
        self._outboxes: set[WorkerFrameQueue] = set()

    def serve(self, server: grpc.aio.Server, gate: AuthInterceptor) -> None:
        attach = grpc.stream_stream_rpc_method_handler(
            self.attach,
            request_deserializer=reader(wire.WorkerFrame, MOST_PARTS_OF_FRAME, FRAME),
            response_serializer=wire.MemberFrame.SerializeToString,
        )
        put(server, gate, "schedd.v1.WorkerService", {"Attach": attach})

    async def attach(self, _frames: object, context: Stream) -> None:
        """Handle one worker's stream."""
        hello, who = await self._hello(context), caller()
        if who.kind is IdentityKind.WORKER and who.name != hello.worker:
            refused = (who.actor, hello.worker, context.peer())
            log.warning("worker rejected: certificate=%s worker=%s peer=%s", *refused)
            await abort(
                context,
                "PERMISSION_DENIED",
                f"the certificate names {who.actor}, but the hello worker/{hello.worker[:140]}",
                reason=ANOTHER,
                remedy="issue a certificate for this worker: `schedctl auth issue worker NAME`",
            )
        outbox = WorkerFrameQueue(
            reads_batches=hello.reads_batches, reads_payloads=hello.reads_payloads
        )
        try:
            incarnation = replace(frames.incarnation_of(hello), namespaces=who.works_for)
            spooled = [frames.key_of(key) for key in hello.spooled]
            turned = await self.greeting.greet(incarnation, spooled)
        except frames.BadFrame as bad:
            await abort(context, "INVALID_ARGUMENT", str(bad), reason="BAD_FRAME")
        except Unavailable as away:
            await abort(context, "UNAVAILABLE", str(away), reason="UNAVAILABLE")
        if isinstance(turned, RejectedHello):
            await abort(context, turned.status, turned.message, reason=turned.reason)
        await context.write(wire.MemberFrame(welcome=self._welcome()))
        attached = self.workers.attach(
            incarnation,
            outbox,
            draining=hello.draining,
            running=len(hello.running),
            unstored_results=len(hello.spooled),
        )
        self.log_followers.attached(incarnation.id)
        self._outboxes.add(outbox)
        try:
            await self._talk(context, attached, outbox)
        finally:
            self._outboxes.discard(outbox)
            if self.workers.detach(attached):  # else it has reconnected, and stays
                self.greeting.forget_incarnation(incarnation.id)
                self.advances.remove_worker(incarnation.id)

    def members_changed(self) -> None:
        """Send the current members to all attached workers."""
        frame = wire.MemberFrame(members=self._members())
        for outbox in self._outboxes:
            outbox.put(frame)

    async def _hello(self, context: Stream) -> wire.Hello:
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                first = await context.read()
        except TimeoutError:
            await abort(
                context,
                "DEADLINE_EXCEEDED",
                f"the worker sent no registration (hello) within {HELLO_WITHIN:g} s",
                reason="NO_HELLO",
            )
        if isinstance(first, UndecodedRequest):
            await abort(context, first.status, first.why, reason=first.reason)
        if not isinstance(first, wire.WorkerFrame) or not first.HasField("hello"):
            await abort(
                context,
                "INVALID_ARGUMENT",
                "the worker's first message must be its registration (hello)",
                reason="NO_HELLO",
            )
        return first.hello

    async def _talk(self, context: Stream, attached: Attached, outbox: WorkerFrameQueue) -> None:
        """Read and write until the worker closes its side, or the stream breaks in one direction.
        Otherwise a worker that sends heartbeats, but receives nothing, would count as live.
        """
        name, until = attached.incarnation.worker, caller().until
        # When the worker's certificate expires, it reconnects with a new one.
        left = None if until is None else max(0.0, (until - self.clock.now()).total_seconds())
        talk = {
            asyncio.create_task(self._read(context, attached, outbox), name=f"frames from {name}"),
            asyncio.create_task(self._write(context, outbox), name=f"frames to {name}"),
        }
        try:
            ended, _ = await asyncio.wait(talk, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                each.result()
        except frames.BadFrame as bad:
            await abort(context, "INVALID_ARGUMENT", str(bad), reason="BAD_FRAME")
        except ForeignWorker as wrong:
            log.warning("worker stream ended: error=%s peer=%s", wrong, context.peer())
            await abort(context, "PERMISSION_DENIED", str(wrong), reason=ANOTHER)
        except grpc.aio.BaseError as broken:
            log.info("worker stream broken: worker=%s error=%r", name, broken)
        finally:
            for each in talk:
                each.cancel()
            await asyncio.gather(*talk, return_exceptions=True)

    async def _read(self, context: Stream, attached: Attached, outbox: WorkerFrameQueue) -> None:
        """Handle frames until the end of the stream, or a goodbye."""
        while isinstance(frame := await context.read(), wire.WorkerFrame | UndecodedRequest):
            if isinstance(frame, UndecodedRequest):
                raise frames.BadFrame(frame.why)
            if await self._handle_frame(frame, attached, outbox):
                return

    async def _write(self, context: Stream, outbox: WorkerFrameQueue) -> None:
        while True:
            frame = await outbox.next()
            if frame.acknowledgements or frame.ack_batches:
                await BEFORE_ACKNOWLEDGING()
            await context.write(frame)
            if frame.assignments or frame.run_batches:
                await AFTER_PUSH()

    async def _handle_frame(
        self, frame: wire.WorkerFrame, attached: Attached, outbox: WorkerFrameQueue
    ) -> bool:
        """Handle one frame. Return True if it is a goodbye."""
        who = attached.incarnation
        async for result in in_turns(frame.results):
            with self._aside("result", who, unread=partial(outbox.dismiss, result.key)):
                self._left_out("result", who, frames.readable(result, who.id))
                reported = frames.reported(result, who.worker)
                if await self._may_report(who, reported.sender):
                    self.collector.reported(reported, outbox)
        async for batch in in_turns(frame.result_batches, every=1):
            with self._aside("result batch", who):
                successes, why = frames.successes(batch)
                self._left_out("result batch", who, why)
                if successes and await self._may_report(who, successes.senders[0]):
                    self.collector.succeeded(who.worker, successes, outbox)
        for refused in frame.refusals:
            with self._aside("refusal", who):
                self.collector.refused(frames.refusal(refused, who.worker, who.id))
        for answer in frame.revoke_answers:
            with self._aside("revoke answer", who):
                frames.check(answer, "revoke_answers")
                key, token = frames.key_of(answer.key)
                if not self.collector.is_anothers(key, token, who.id):
                    self.workers.revoke_answered(key.run_id, token)
                    if answer.outcome == wire.RevokeAnswer.OUTCOME_REVOKED:
                        self.collector.refused(
                            AssignmentRefusal(key, token, who.worker, who.id, "REVOKED")
                        )
        for chunk in frame.log_chunks:
            with self._aside("log chunk", who):
                frames.check(chunk, "log_chunks")
                key, token = frames.key_of(chunk.key)
                self.log_followers.came(who.id, key.run_id, token, chunk.piece)
        for said in frame.progress:
            with self._aside("progress", who):
                progress = frames.progress(said)
                key, token = frames.key_of(said.key)
                self.advances.record_progress(who.id, key.run_id, token, progress)
        if frame.HasField("granted"):
            granted = frame.granted
            last = frames.last_rank(granted)
            self.workers.granted(attached, granted.slots, granted.received, last, granted.serial)
        if frame.HasField("heartbeat"):
            self._heartbeat(frame.heartbeat, attached, outbox)
        if frame.HasField("goodbye"):
            await self.greeting.goodbye(attached.incarnation)
            return True
        return False

    @contextmanager
    def _aside(
        self, kind: str, who: Incarnation, unread: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """Handle one item; a failure is audited. `unread` is called if it is out of bounds."""

        def noted(error: Exception) -> None:
            self.audit.rejected(who, kind, str(error))

        try:
            with set_aside(kind, f"worker/{who.worker}", passes=PASSES, then=noted):
                yield
        except frames.BadFrame as bad:
            self._left_out(kind, who, str(bad))
            if unread is not None:
                unread()

    def _left_out(self, kind: str, who: Incarnation, why: str) -> None:
        """Audit the dropped fields of a worker's item."""
        if why:
            note(kind, f"worker/{who.worker}", why)
            self.audit.rejected(who, kind, why)

    async def _may_report(self, who: Incarnation, sender: IncarnationId) -> bool:
        """Return whether a result is of this worker: of this incarnation or an earlier one. False:
        the lookup failed, so the worker will retry. Raises NotTheirs.
        """
        if sender == who.id or caller().kind is not IdentityKind.WORKER:
            return True
        try:
            own = await self.greeting.is_of(who.worker, sender)
        except Unavailable:
            return False
        if not own:
            raise ForeignWorker(
                f"a result is rejected: worker/{who.worker} sent it, but another worker had the"
                " run; check that no two workers share a spool folder or a name"
            )
        return True

    def _heartbeat(
        self, beat: wire.Heartbeat, attached: Attached, outbox: WorkerFrameQueue
    ) -> None:
        holding, who = frames.holdings(beat), attached.incarnation.id
        self.advances.held(who, holding)
        self.advances.blocking(who, beat.blocking)
        since_refresh = frames.length(beat.since_refresh).total_seconds()
        if beat.HasField("worker_cluster_time"):
            self.workers.record_heartbeat(
                attached,
                frames.instant(beat.worker_cluster_time),
                holding,
                free=beat.free,
                since_refresh=since_refresh,
                draining=beat.draining,
                disk=(beat.spool_bytes, beat.disk_free_bytes),
                refusal_reason=beat.refusal_reason,
            )
        for run_id, token, since in holding.starts():
            if self.collector.lacks_start(run_id, token, who):
                with self._aside("start", attached.incarnation):
                    self.collector.started(run_id, token, frames.since_epoch(since))

        def answer(*, refreshed: bool, lost: bool) -> None:
            said = wire.HeartbeatAnswer(
                sequence=beat.sequence,
                refreshed=refreshed,
                lost=lost,
                cluster_time=stamp(self.clock.now()),
            )
            outbox.put(wire.MemberFrame(heartbeat_answer=said))

        self.greeting.record_heartbeat(attached.incarnation, since_refresh, answer)

    def _welcome(self) -> wire.Welcome:
        tenure = self.cluster.tenure
        return wire.Welcome(
            member=self.terms.member,
            tenure=str(tenure) if tenure else "",
            cluster_id=self.terms.cluster_id,
            members=self._members(),
            worker_ttl=frames.span(self.terms.worker_ttl),
            heartbeat_interval=frames.span(self.terms.heartbeat_interval(len(self._outboxes))),
            version=self.terms.version,
            cluster_time=stamp(self.clock.now()),
            answers_grants=True,
            reads_held=True,
            reads_batches=True,
        )

    def _members(self) -> wire.Members:
        view = self.cluster.view()
        return wire.Members(
            endpoints=[
                wire.Members.Endpoint(name=member.name, grpc=member.grpc) for member in view.members
            ],
            revision=view.revision,
        )
