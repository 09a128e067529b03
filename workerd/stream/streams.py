"""The worker's streams: one to each member, as listed by the members.

    seeds (configured) ──attach──→ welcome: members ──attach to each──→ …
    all streams ended → back to the seeds

    connect → hello ↑ → welcome ↓ → [ frames ↓ read | frames ↑ written | heartbeats due ] → ended

Invariants of a stream
- The first frame up holds the hello, the first down the welcome; nothing else is sent before it.
- Frames of members are checked against their bounds (`schedkit.bounds`). A welcome, an answer or a
  demand out of bounds ends the stream; an item (`Attach.received`) is set aside alone.
- `run` returns how the stream ended: `AGAIN` (connect again after a backoff) or `LOST` (this
  incarnation is lost: a new one is needed).

Invariants of all streams
- All streams use the same incarnation. If a member reports it as lost, the worker registers with a
  new one and reopens every stream. Assignments of the old one that haven't started are dropped.
- A list of members older than the last one (by etcd's revision) is ignored, unless no stream is
  open: a restored etcd has lower revisions.
- The total of granted slots never exceeds the free slots. It is 0 without trust, during a drain, or
  while the spool or the uploads are full (`HeldRuns.refusal_reason`). Grants are withdrawn when
  trust ends; assignments that a member sends before it receives that are rejected.
- Slots granted to one member are given to another only if the first answers that it won't use them
  (`credit`), is silent, or takes too long.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import chain, starmap
from math import inf
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from schedkit.backoff import Backoff
from schedkit.bounds import FRAME, problem
from schedkit.clock import boottime
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS, connect
from schedkit.net.handshake import out_of_time
from schedkit.set_aside import set_aside
from schedkit.tasks import Waker
from schedproto.v1 import worker_service_pb2 as pb
from schedproto.v1.worker_service_pb2_grpc import WorkerServiceStub
from workerd import messages
from workerd.core.admission import AssignmentState
from workerd.core.cluster_time import MemberTime, RoundTrip
from workerd.core.credit import Credit
from workerd.core.ids import Address, Incarnation
from workerd.core.slot_split import NOTHING, DemandHead, Share, deal
from workerd.delivery.spool import HomeCluster
from workerd.frame_queue import MemberFrameQueue
from workerd.runs.assignments import HeldRuns, slots_of

log = logging.getLogger(__name__)

WELCOME_WITHIN = 10.0
"""Seconds for a member to send its welcome."""
STATUS_WITHIN = 1.0
"""Seconds to wait for the status of a stream that accepts no more frames."""
EAGER = 0.5
"""Maximum seconds between heartbeats while there is no trust."""
SHORTEST_INTERVAL = 0.05
"""Minimum seconds between heartbeats."""
_UNANSWERED = 64
_LOST = frozenset({grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION})
_LOOK = 1.0
"""Seconds between two checks of the streams."""
_STEADY = 10.0
"""Seconds after which a stream counts as stable, which resets the backoff."""
_SHORTEST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds between two connection attempts to a member; a third of the TTL at most."""
_REMIND_AFTER = 60.0
"""Seconds between two log lines about this worker's invalid certificate."""


class StreamEnd(Enum):
    AGAIN = auto()
    LOST = auto()


class MemberStream(MemberFrameQueue):
    """A stream to a member. Each connection has a new one."""

    def __init__(self, address: Address, tls: TLS | None, host: Attach) -> None:
        super().__init__(address)
        self.member = ""
        self.tenure = ""
        self.time = MemberTime()
        self.demand: Sequence[DemandHead] = ()
        self.credit = Credit()
        self._share = NOTHING
        self.incarnation: Incarnation | None = None
        self._tls = tls
        self._host = host
        self._interval = EAGER
        self._sequence = 0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def silent(self) -> bool:
        """Whether heartbeats stay unanswered: slots reserved for this member would be idle."""
        oldest = next(iter(self._sent.values()), None)
        return oldest is not None and boottime() - oldest > 2 * self._interval + 1

    def grant(self, share: Share, at: float) -> None:
        limit = self.credit.limit
        self.credit.grant(share.slots, at)
        if self.credit.limit != limit or (share.slots and not self._share.like(share)):
            self._share = share
            self.send_grant(messages.granted(share, self.credit))

    def drop(self) -> None:
        if not self._dropped.done():
            self._dropped.set_result(None)

    # -- Connection --

    async def run(self) -> tuple[StreamEnd, str]:
        try:
            channel = connect(self.address, tls=self._tls)
        except Misconfigured as error:  # such as a certificate during its rotation
            return StreamEnd.AGAIN, str(error)
        async with channel:
            # The generated types know only the calls of a blocking channel.
            attach = cast("_Method", WorkerServiceStub(channel).Attach)
            call = attach()
            try:
                welcome = await self._greet(call)
                if welcome is None:
                    return StreamEnd.AGAIN, "the member sent no valid answer to the registration"
                if refusal := await self._host.refusal(welcome):
                    return StreamEnd.AGAIN, refusal
                self._host.welcomed(self, welcome)
                try:
                    return await self._converse(call)
                finally:
                    self._host.closed(self)
            except grpc.aio.AioRpcError as error:
                ending = StreamEnd.LOST if error.code() in _LOST else StreamEnd.AGAIN
                return ending, f"{error.code().name}: {error.details()}"
            finally:
                call.cancel()

    async def _greet(self, call: _Call) -> pb.Welcome | None:
        hello = self._host.hello()
        self.incarnation = Incarnation(hello.incarnation)
        try:
            async with asyncio.timeout(WELCOME_WITHIN):
                await call.wait_for_connection()
                sent = boottime()
                await call.write(pb.WorkerFrame(hello=hello))
                frame = await call.read()
        except TimeoutError:
            return None
        if not isinstance(frame, pb.MemberFrame) or not frame.HasField("welcome"):
            return None
        if found := FRAME.violations(frame):
            log.warning(
                "registration failed: the answer of %s isn't valid: %s",
                self.address,
                problem(found),
            )
            return None
        welcome = frame.welcome
        self._observe(sent, welcome.cluster_time)
        self.member, self.tenure = welcome.member, welcome.tenure
        interval = welcome.heartbeat_interval.ToTimedelta().total_seconds()
        self._interval = max(interval, SHORTEST_INTERVAL) if interval else EAGER
        return welcome

    async def _converse(self, call: _Call) -> tuple[StreamEnd, str]:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(call), name=f"read {self.address}")
            writing = group.create_task(self._write(call), name=f"write {self.address}")
            pacing = group.create_task(self._pace(), name=f"pace {self.address}")
            either: set[asyncio.Future[Any]] = {reading, self._dropped}
            await asyncio.wait({*either, writing}, return_when=asyncio.FIRST_COMPLETED)
            timeout = None if writing.done() and writing.result() else STATUS_WITHIN
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for each in (reading, writing, pacing):
                each.cancel()
        if not reading.cancelled():
            return reading.result()
        return (
            StreamEnd.AGAIN,
            "dropped" if self._dropped.done() else "the stream accepts no more messages",
        )

    async def _read(self, call: _Call) -> tuple[StreamEnd, str]:
        while True:
            try:
                frame = await call.read()
            except grpc.aio.AioRpcError as error:
                ending = StreamEnd.LOST if error.code() in _LOST else StreamEnd.AGAIN
                return ending, f"{error.code().name}: {error.details()}"
            if not isinstance(frame, pb.MemberFrame):
                return StreamEnd.AGAIN, "the member closed the stream"
            if found := FRAME.violations(frame):
                return StreamEnd.AGAIN, f"a message of the member isn't valid: {problem(found)}"
            if frame.HasField("heartbeat_answer") and self._answered(frame.heartbeat_answer):
                return StreamEnd.LOST, "the member reported this worker as lost"
            await self._host.received(self, frame)

    def _answered(self, answer: pb.HeartbeatAnswer) -> bool:
        """Handle a heartbeat answer. Return whether this incarnation is lost."""
        sent = self._sent.get(answer.sequence)
        if sent is not None:
            while self._sent and next(iter(self._sent)) <= answer.sequence:
                self._sent.popitem(last=False)
            self._observe(sent, answer.cluster_time)
            if answer.refreshed and not answer.lost:
                self._host.refreshed(sent)
        return answer.lost

    def _observe(self, sent: float, cluster_time: Timestamp) -> None:
        trip = RoundTrip(sent, boottime(), messages.seconds(cluster_time))
        was_set = self.time.observe(trip)
        self._host.observed(trip)
        if was_set:
            self._host.clock_was_set(self)

    async def _write(self, call: _Call) -> bool:
        """Send frames up to the goodbye. Return False if the stream accepts no more frames; the
        reader gets the cause.
        """
        while True:
            await self.wait()
            await asyncio.sleep(0)  # a result and its free slot are sent together
            frame = self.take_frame()
            if self.heartbeat_due:
                self.heartbeat_due = False
                frame.heartbeat.CopyFrom(self._heartbeat())
            try:
                await call.write(frame)
                if self.over:
                    await call.done_writing()
                    return True
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return False

    def _heartbeat(self) -> pb.Heartbeat:
        now = boottime()
        self._sequence += 1
        self._sent[self._sequence] = now
        if len(self._sent) > _UNANSWERED:
            self._sent.popitem(last=False)
        heartbeat = self._host.heartbeat(now)
        heartbeat.sequence = self._sequence
        heartbeat.worker_time_ns = int(now * 1e9)
        return heartbeat

    async def _pace(self) -> NoReturn:
        while True:
            self.beat()
            pause = self._interval if self._host.trusted() else min(EAGER, self._interval)
            await asyncio.sleep(pause)


_Call = grpc.aio.StreamStreamCall[pb.WorkerFrame, pb.MemberFrame]
_Method = grpc.aio.StreamStreamMultiCallable[pb.WorkerFrame, pb.MemberFrame]


class Attach:
    """The worker's side of `WorkerService.Attach`, for all members."""

    def __init__(
        self,
        identity: pb.Hello,
        seeds: Sequence[Address],
        tls: TLS | None,
        work: HeldRuns,
        home: HomeCluster | None = None,
    ) -> None:
        """`identity`: the contents of every hello. A new incarnation changes only the incarnation.
        `home`: None: members of any cluster are accepted.
        """
        self.identity = identity
        self._seeds = tuple(seeds)
        self._tls = tls
        self._admission, self._trust, self._clock = work.admission, work.trust, work.clock
        self._work = work
        self._sender = work.sender
        self._home = home
        self._members: tuple[Address, ...] = ()
        self._revision = 0
        self._links: dict[Address, MemberStream] = {}
        """The open streams."""
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._waker = Waker()
        self._closed = Waker()
        """Wakes `goodbye`, while `run` sleeps by `_waker`."""
        self._redeal_due = False
        self._leaving = False
        self._reminded = -inf
        self.fill_heartbeat: Callable[[pb.Heartbeat], object] = lambda _: None
        """Called for each heartbeat; adds the handlers that block event loops."""
        self.on_trust: Callable[[float], object] = lambda _until: None
        """Called with the end of trust, whenever it changes."""

    @property
    def attached(self) -> int:
        return len(self._links)

    def trusted(self) -> bool:
        """Return whether the worker trusts its lease, and knows cluster time precisely enough."""
        return self._trust.holds(boottime()) and self._clock.known

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as group:
            while True:
                wanted = self._wanted()
                for address in wanted - self._tasks.keys():
                    self._tasks[address] = group.create_task(
                        self._keep_stream(address), name=f"attach {address}"
                    )
                self._drop_aliases()
                left = self._trust.until - boottime()  # look at the end of trust at the latest
                await self._waker.wait(min(left, _LOOK) if left > 0 else _LOOK)
                self.redeal()

    async def goodbye(self) -> None:
        self._leaving = True
        for link in self._links.values():
            link.end(pb.WorkerFrame(goodbye=pb.Goodbye()))
        while self._links:
            await self._closed.wait(_LOOK)

    def announce(self) -> None:
        for link in self._links.values():
            link.beat()

    def progress(self, progress: pb.Progress) -> None:
        for link in self._links.values():
            link.send_progress(progress)

    # -- Slots --

    def redeal(self) -> None:
        """Split the free slots again, once per turn of the loop."""
        if not self._redeal_due:
            self._redeal_due = True
            asyncio.get_running_loop().call_soon(self._deal)

    def _deal(self) -> None:
        self._redeal_due = False
        able = self.trusted() and not self._admission.draining and not self._work.refusal_reason
        awake = {address: link for address, link in self._links.items() if not link.silent}
        demands = {address: link.demand for address, link in awake.items()}
        previous = {address: link.credit.slots for address, link in awake.items()}
        free, now = min(self._admission.free, self._work.remaining_capacity), boottime()
        kept = {address: link.credit.reserved_slots(now) for address, link in awake.items()}
        granted = deal(free, demands, previous, self._clock.read(now), kept) if able else {}
        for address, link in self._links.items():
            link.grant(granted.get(address, NOTHING), now)

    # -- Host of the links --

    def hello(self) -> pb.Hello:
        message = pb.Hello()
        message.CopyFrom(self.identity)
        # A key out of bounds would make members reject each hello.
        spooled = starmap(messages.key_message, self._sender.unanswered())
        message.spooled.extend(
            [each for each in spooled if messages.within_bounds("spooled result", each)]
        )
        message.running.extend(
            [messages.key_message(key, at) for key, at, _, _ in self._work.holdings()]
        )
        message.reads_batches = message.reads_payloads = True
        message.draining = self._admission.draining
        return message

    def heartbeat(self, at: float) -> pb.Heartbeat:
        spooled, room = self._sender.room
        message = pb.Heartbeat(
            free=self._admission.free,
            draining=self._admission.draining,
            spool_bytes=spooled,
            disk_free_bytes=room,
            refusal_reason=self._work.refusal_reason,
        )
        ended = ((*each, AssignmentState.ENDED, None) for each in self._sender.unanswered())
        messages.pack_holdings(message, chain(self._work.holdings(), ended))
        message.since_refresh.FromNanoseconds(int(self._trust.since(at) * 1e9))
        self.fill_heartbeat(message)
        if self._clock.known:
            message.worker_cluster_time.FromNanoseconds(int(self._clock.read(at) * 1e9))
        return message

    async def refusal(self, welcome: pb.Welcome) -> str:
        if self._home is None:
            return ""
        return await self._home.refusal(welcome.member, welcome.cluster_id)

    def welcomed(self, link: MemberStream, welcome: pb.Welcome) -> None:
        log.info("attached to member %s at %s", link.member, link.address)
        self._links[link.address] = link
        self._trust.ttl = welcome.worker_ttl.ToTimedelta().total_seconds()
        self._report_trust(self._trust.until)
        self._learn(welcome.members)
        self._sender.attached(link)
        for progress in self._work.progress():
            link.send_progress(progress)
        self.redeal()

    def closed(self, link: MemberStream) -> None:
        del self._links[link.address]
        self._sender.detached(link)
        self._work.remove_stream(link)
        if not self._links:
            self._revision = 0
        self._waker.wake()
        self._closed.wake()
        self.redeal()

    def observed(self, trip: RoundTrip) -> None:
        self._clock.observe(trip)

    def clock_was_set(self, link: MemberStream) -> None:
        """Restart the timers of pre-dispatched runs: a member's clock was set."""
        log.info("clock of member %s was set: start times of waiting runs adjusted", link.member)
        self._work.rearm(link.time)

    def refreshed(self, sent: float) -> None:
        fresh, before = not self.trusted(), self._trust.until
        self._trust.refreshed(sent)
        self._report_trust(self._trust.until)
        if before <= boottime():  # reported first: the keeper acts on the value that it has read
            self._work.lease_lost()
        if fresh:
            self._waker.wake()
            self.redeal()

    def _report_trust(self, until: float) -> None:
        if self._trust.sent is not None:  # otherwise the last value stays valid
            self.on_trust(until)

    async def received(self, link: MemberStream, frame: pb.MemberFrame) -> None:
        """Handle a frame. Revokes and cancels first: they may refer to assignments in it. A frame
        with many runs is handled in parts, between which the loop runs other tasks.
        """
        if frame.HasField("reach"):
            link.credit.reached(frame.reach.serial, frame.reach.slots, boottime())
        if frame.HasField("demand"):
            link.demand = messages.heads_of(frame.demand)
        messages.each(
            "revoke", frame.revokes, lambda one: link.send_revoke_answer(self._work.revoke(one.key))
        )
        messages.each("cancel", frame.cancels, lambda one: self._work.cancel(one, link))
        if frame.assignments:
            link.credit.received += slots_of(frame.assignments)
            self._work.assign(frame.assignments, link.time, link)
        for number, part in enumerate(messages.parts(frame.run_batches)):
            if number:
                await asyncio.sleep(0)
            link.credit.received += slots_of((), part)
            self._work.assign((), link.time, link, part)
        if frame.acknowledgements:
            answers = [
                one
                for one in frame.acknowledgements
                if messages.within_bounds("acknowledgement", one)
            ]
            with set_aside("acknowledgement", link.address):
                self._sender.acknowledge(answers)
        for number, acks in enumerate(messages.parts(frame.ack_batches)):
            if number:
                await asyncio.sleep(0)
            batches = [one for one in acks if messages.even("acknowledgements", one)]
            with set_aside("acknowledgement", link.address):
                self._sender.acknowledge((), batches)
        with set_aside("repeated assignment", link.address):
            self._work.send_again()
        messages.each("follow", frame.follows, lambda one: self._work.follow(one, link))
        if frame.HasField("drain"):
            self._work.drain(on=not frame.drain.undrain)
            self.announce()
        if frame.HasField("members"):
            self._learn(frame.members)
        if frame.HasField("demand") or frame.HasField("reach"):
            self.redeal()

    # -- Streams --

    def _learn(self, members: pb.Members) -> None:
        if members.revision < self._revision or not members.endpoints:
            return
        self._revision = members.revision
        self._members = tuple(Address(each.grpc) for each in members.endpoints)
        self._waker.wake()

    def _wanted(self) -> set[Address]:
        """Return the members, and the seeds while no stream to a member is open."""
        if self._leaving:
            return set()
        if any(address in self._links for address in self._members):
            return set(self._members)
        return {*self._members, *self._seeds}

    def _drop_aliases(self) -> None:
        """End streams by a seed address to members that are attached by their own address."""
        own = {self._links[each].tenure for each in self._members if each in self._links}
        for address, link in self._links.items():
            if address not in self._members and link.tenure in own:
                link.end(pb.WorkerFrame())

    async def _keep_stream(self, address: Address) -> None:
        """Keep a stream to `address` until it is no longer wanted."""
        backoff = Backoff(_SHORTEST_WAIT, _LONGEST_WAIT)
        logged = False
        while address in self._wanted():
            link = MemberStream(address, self._tls, self)
            began = boottime()
            ending, why = StreamEnd.AGAIN, "a message of the member can't be handled"
            with set_aside("member stream", address):
                ending, why = await link.run()
            if link.member and boottime() - began > _STEADY:
                backoff.reset()
            ours = self._out_of_time()
            reminds = ours != "" and boottime() - self._reminded >= _REMIND_AFTER
            if reminds:
                self._reminded = boottime()
            log.log(
                logging.DEBUG if logged and not link.member and not reminds else logging.WARNING,
                "stream to %s ended: %s%s",
                address,
                why,
                ours,
            )
            logged = not link.member
            if ending is StreamEnd.LOST:
                self._renew(link)
            wait, ttl = backoff.next(), self._trust.ttl
            # The worker reconnects before its lease expires.
            await asyncio.sleep(min(wait, ttl / 3) if ttl else wait)
        del self._tasks[address]
        self._waker.wake()

    def _out_of_time(self) -> str:
        """Return why our certificate isn't valid now; empty if it is, or can't be read now."""
        with suppress(Misconfigured, ValueError):
            if self._tls is not None and (ours := out_of_time(self._tls)):
                return f"; {ours}"
        return ""

    def _renew(self, lost: MemberStream) -> None:
        """Register with a new incarnation, once for all streams of the lost one."""
        if lost.incarnation != self.identity.incarnation:
            return
        log.warning("worker recorded as lost, registering again incarnation=%s", lost.incarnation)
        self.identity.incarnation = fresh = Incarnation(str(uuid.uuid4()))
        self._report_trust(min(self._trust.until, boottime()))
        self._trust.sent = None
        self._work.renew(fresh)
        for link in self._links.values():
            link.drop()
