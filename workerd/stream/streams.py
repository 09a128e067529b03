"""All streams of this worker: one to every member, found by the members' own telling.

    seeds (configured) ──attach──→ welcome: members ──attach to each──→ …
    all streams gone → back to the seeds

Invariants
- All streams carry the same incarnation. When a member says it is lost, a new one is made and
  every stream is opened anew; what waited for its start was meant for the old one and is dropped.
- A list of members older than the last one read (by etcd's revision) is ignored, unless no stream
  is left: an etcd that was restored counts from a lower number.
- In total never more slots are granted than are free, and none while there is no trust, while
  draining, or while the spool or the result store takes nothing (`HeldRuns.refuses`). They are
  withdrawn at the moment trust ends; what a member still pushes until it hears of that is refused.
- A slot that one member was promised is another's only when the first has said that it won't use it
  (`promises`), is silent, or takes too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
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
from workerd.core.admission import Admission, AssignmentState
from workerd.core.cluster_time import JudgingClock, RoundTrip
from workerd.core.ids import Address
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.slot_split import NOTHING, deal
from workerd.delivery.result_sender import ResultSender
from workerd.home_cluster import Home, anywhere
from workerd.identity import WorkerIdentity
from workerd.runs.assignments import HeldRuns
from workerd.stream.stream import Link, StreamEnd

log = logging.getLogger(__name__)

_LOOK = 1.0
"""Seconds between two looks at which streams should be there."""
_STEADY = 10.0
"""Seconds after which a stream that broke had been a good one."""
_SHORTEST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds between two tries of a member that doesn't answer; see `_bounded` too."""
_REMIND_AFTER = 60.0
"""Seconds between two lines that our certificate is out of its time: nothing works until it isn't,
and no member can say so."""


class Attach:
    """The worker's side of `WorkerService.Attach`, towards all members."""

    def __init__(
        self,
        identity: WorkerIdentity,
        seeds: Sequence[Address],
        tls: TLS | None,
        admission: Admission,
        trust: WorkerLeaseTrust,
        clock: JudgingClock,
        work: HeldRuns,
        courier: ResultSender,
        home: Home = anywhere,
    ) -> None:
        self.identity = identity
        self._seeds = tuple(seeds)
        self._tls = tls
        self._admission = admission
        self._trust = trust
        self._clock = clock
        self._work = work
        self._courier = courier
        self._home = home
        self._members: tuple[Address, ...] = ()
        self._revision = 0
        self._links: dict[Address, Link] = {}
        """The open ones."""
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._waker = Waker()
        self._redeal_due = False
        self._leaving = False
        self._reminded = -inf
        self.fill_heartbeat: Callable[[pb.Heartbeat], object] = lambda _: None
        """Called for each heartbeat; adds the handlers that block event loops."""
        self.on_trust: Callable[[float], object] = lambda _until: None
        """Called with the instant until which there is trust, as soon as there is another."""

    @property
    def attached(self) -> int:
        """Streams that are open."""
        return len(self._links)

    def trusted(self) -> bool:
        """Whether the lease surely lives, and the members' time is known well enough."""
        return self._trust.holds(boottime()) and self._clock.known

    async def run(self) -> NoReturn:
        """Keep a stream to each member until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                wanted = self._wanted()
                for address in wanted - self._tasks.keys():
                    self._tasks[address] = group.create_task(
                        self._keep(address), name=f"attach {address}"
                    )
                self._drop_aliases()
                await self._waker.wait(self._to_look())
                self.redeal()

    def _to_look(self) -> float:
        """Seconds to the next look: at the end of trust at the latest, to withdraw all slots."""
        left = self._trust.until - boottime()
        return min(left, _LOOK) if left > 0 else _LOOK

    async def goodbye(self) -> None:
        """Everything is settled: say so on each stream, and return when all have ended."""
        self._leaving = True
        for link in self._links.values():
            link.goodbye()
        while self._links:
            await self._waker.wait(_LOOK)

    def announce(self) -> None:
        """Have each member hear a heartbeat now."""
        for link in self._links.values():
            link.beat()

    def progress(self, told: pb.Progress) -> None:
        """Have each member hear how far an attempt is."""
        for link in self._links.values():
            link.send_progress(told)

    # -- Slots --

    def redeal(self) -> None:
        """Deal the free slots anew, once for all that happens before the loop comes round."""
        if not self._redeal_due:
            self._redeal_due = True
            asyncio.get_running_loop().call_soon(self._deal)

    def _deal(self) -> None:
        self._redeal_due = False
        able = self.trusted() and not self._admission.draining and not self._work.refuses
        awake = {address: link for address, link in self._links.items() if not link.silent}
        demands = {address: link.demand for address, link in awake.items()}
        previous = {address: link.promises.slots for address, link in awake.items()}
        free, now = min(self._admission.free, self._work.left), boottime()
        kept = {address: link.promises.kept(now) for address, link in awake.items()}
        granted = deal(free, demands, previous, self._clock.read(now), kept) if able else {}
        for address, link in self._links.items():
            link.grant(granted.get(address, NOTHING), now)

    # -- What links ask of their host --

    def hello(self) -> pb.Hello:
        """Who this is, what it has in hand, what it can do."""
        who = self.identity
        message = pb.Hello(
            worker=who.worker,
            incarnation=who.incarnation,
            spool_id=who.spool_id,
            version=who.version,
            host=who.host,
            slots=who.slots,
            labels=who.labels,
            handlers=who.handlers,
            actions=who.actions,
            # One that is out of bounds would have each hello refused.
            spooled=[
                result.key
                for result in self._courier.results()
                if messages.within_bounds("spooled result", result.key)
            ],
            running=[key for key, _, _ in self._work.holdings()],
            draining=self._admission.draining,
        )
        message.started_at.FromDatetime(who.started_at)
        return message

    def heartbeat(self, at: float, *, reads_held: bool) -> pb.Heartbeat:
        """What is free, what is in hand, how old the lease is."""
        spooled, room = self._courier.room
        message = pb.Heartbeat(
            free=self._admission.free,
            draining=self._admission.draining,
            spool_bytes=spooled,
            disk_free_bytes=room,
            refuses=self._work.refuses,
        )
        ended = ((result.key, AssignmentState.ENDED, None) for result in self._courier.results())
        tell = messages.pack_holdings if reads_held else messages.list_holdings
        tell(message, chain(self._work.holdings(), ended))
        message.since_refresh.FromNanoseconds(int(self._trust.since(at) * 1e9))
        self.fill_heartbeat(message)
        if self._clock.known:
            message.judged_time.FromNanoseconds(int(self._clock.read(at) * 1e9))
        return message

    async def refusal(self, welcome: pb.Welcome) -> str:
        """Why the member is refused: it is of another cluster."""
        return await self._home(welcome.member, welcome.cluster_id)

    def welcomed(self, link: Link, welcome: pb.Welcome) -> None:
        """One more stream is open."""
        log.info("attached to member %s at %s", link.member, link.address)
        self._links[link.address] = link
        self._trust.ttl = welcome.worker_ttl.ToTimedelta().total_seconds()
        self._tell_trust(self._trust.until)
        self._learn(welcome.members)
        self._courier.attached(link)
        for told in self._work.progress():
            link.send_progress(told)
        self.redeal()

    def closed(self, link: Link) -> None:
        """A stream is over."""
        del self._links[link.address]
        self._courier.detached(link)
        self._work.gone(link)
        if not self._links:
            self._revision = 0
        self._waker.wake()
        self.redeal()

    def observed(self, trip: RoundTrip) -> None:
        """A member's time was read."""
        self._clock.observe(trip)

    def clock_was_set(self, link: Link) -> None:
        """A member's time isn't what it was."""
        log.info("the time of member %s isn't what it was: armed runs wait anew", link.member)
        self._work.rearm(link.time)

    def refreshed(self, sent: float) -> None:
        """The lease lives longer."""
        fresh, before = not self.trusted(), self._trust.until
        self._trust.refreshed(sent)
        self._tell_trust(self._trust.until)
        if before <= boottime():  # told first: the keeper acts on what it has read by then
            self._work.lease_lost()
        if fresh:
            self._waker.wake()
            self.redeal()

    def _tell_trust(self, until: float) -> None:
        if self._trust.sent is not None:  # else what was told last counts on
            self.on_trust(until)

    def received(self, link: Link, frame: pb.MemberFrame) -> None:
        """Do what a member says. Revokes and cancels go first: they may name what comes along."""
        messages.each(
            "revoke", frame.revokes, lambda one: link.answer_revoke(self._work.revoke(one.key))
        )
        messages.each("cancel", frame.cancels, lambda one: self._work.cancel(one, link))
        if frame.assignments:
            self._work.assign(frame.assignments, link.time, link)
        if frame.acknowledgements:
            answers = [
                one
                for one in frame.acknowledgements
                if messages.within_bounds("acknowledgement", one)
            ]
            with set_aside("acknowledgement", link.address):
                self._courier.acknowledge(answers)
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
        """The members; and the seeds, as long as no member's own address answers."""
        if self._leaving:
            return set()
        if any(address in self._links for address in self._members):
            return set(self._members)
        return {*self._members, *self._seeds}

    def _drop_aliases(self) -> None:
        """End streams to a member that is attached by the address it gives itself, too."""
        own = {self._links[each].tenure for each in self._members if each in self._links}
        for address, link in self._links.items():
            if address not in self._members and link.tenure in own:
                link.leave()

    async def _keep(self, address: Address) -> None:
        """A stream to `address`, again and again, until it is no longer wanted."""
        backoff = Backoff(_SHORTEST_WAIT, _LONGEST_WAIT)
        told = False
        while address in self._wanted():
            link = Link(address, self._tls, self)
            began = boottime()
            ending, why = StreamEnd.AGAIN, "it sent what can't be handled"
            with set_aside("member stream", address):
                ending, why = await link.run()
            if link.member and boottime() - began > _STEADY:
                backoff.reset()
            ours = self._out_of_time()
            reminds = ours != "" and boottime() - self._reminded >= _REMIND_AFTER
            if reminds:
                self._reminded = boottime()
            log.log(
                logging.DEBUG if told and not link.member and not reminds else logging.WARNING,
                "stream to %s ended: %s%s",
                address,
                why,
                ours,
            )
            told = not link.member
            if ending is StreamEnd.LOST:
                self._renew(link)
            await asyncio.sleep(self._bounded(backoff.next()))
        del self._tasks[address]
        self._waker.wake()

    def _out_of_time(self) -> str:
        """Why our certificate isn't good now; empty: it is, or isn't there just now."""
        with suppress(Misconfigured, ValueError):
            if self._tls is not None and (ours := out_of_time(self._tls)):
                return f"; {ours}"
        return ""

    def _bounded(self, wait: float) -> float:
        """No longer than a third of the lease, once it is known: back before the lease ends."""
        return min(wait, self._trust.ttl / 3) if self._trust.ttl else wait

    def _renew(self, lost: Link) -> None:
        """Register anew, once for all streams that carried the lost incarnation."""
        if lost.incarnation != self.identity.incarnation:
            return
        log.warning("incarnation %s is lost; starting a new one", lost.incarnation)
        self.identity = self.identity.renewed()
        self._tell_trust(min(self._trust.until, boottime()))
        self._trust.sent = None
        self._work.renew(self.identity.incarnation)
        for link in self._links.values():
            link.drop()
