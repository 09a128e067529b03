"""All streams of this worker: one to each member, as listed by the members.

    seeds (configured) ──attach──→ welcome: members ──attach to each──→ …
    all streams ended → back to the seeds

Invariants
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, starmap
from math import inf
from typing import NoReturn

from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS
from schedkit.net.handshake import out_of_time
from schedkit.set_aside import set_aside
from schedkit.tasks import Waker
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.admission import AssignmentState
from workerd.core.cluster_time import RoundTrip
from workerd.core.ids import Address, Incarnation
from workerd.core.slot_split import NOTHING, deal
from workerd.delivery.spool import HomeCluster
from workerd.runs.assignments import HeldRuns, slots_of
from workerd.stream.stream import MemberStream, StreamEnd

log = logging.getLogger(__name__)

_LOOK = 1.0
"""Seconds between two checks of the streams."""
_STEADY = 10.0
"""Seconds after which a stream counts as stable, which resets the backoff."""
_SHORTEST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds between two connection attempts to a member; a third of the TTL at most."""
_REMIND_AFTER = 60.0
"""Seconds between two log lines about this worker's invalid certificate."""


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
