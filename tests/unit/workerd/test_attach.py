"""What a worker keeps free for its members, and until when."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from schedctl.authority import Authority, Subject
from schedd.core.auth.rights import IdentityKind, uri_of
from schedkit.clock import boottime, utcnow
from schedkit.net.channel import TLS
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember
from support.keeping import keeping_in
from support.wait import wait_until_async
from workerd.core import credit
from workerd.core.admission import Admission
from workerd.core.cluster_time import JudgingClock, RoundTrip
from workerd.core.ids import Address
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.slot_split import DemandHead
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.spool import Spool
from workerd.identity import WorkerIdentity
from workerd.metrics import WorkerMetrics
from workerd.runs.assignments import HeldRuns
from workerd.stream import streams as module
from workerd.stream.stream import MemberStream
from workerd.stream.streams import Attach

SLOTS = 4
NEVER = 3600.0


class World:
    """A worker's attachment without a wire: the test says what streams there are."""

    def __init__(self, spool: Spool, seeds: Sequence[Address], tls: TLS | None) -> None:
        identity = WorkerIdentity("w1", spool.id, "0", "host", SLOTS, {}, [], [], utcnow())
        admission = Admission(SLOTS, identity.incarnation)
        self.trust, clock = WorkerLeaseTrust(), JudgingClock()
        courier = ResultSender(spool, lambda _key, _verdict: None)
        keeping = keeping_in(spool)
        work = HeldRuns("w1", admission, self.trust, clock, {}, courier, keeping, WorkerMetrics())
        self.attach = Attach(identity, seeds, tls, admission, self.trust, clock, work, courier)
        clock.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))

    def link(self, member: str, *, ttl: float, answers: bool = False) -> MemberStream:
        """One more open stream; workers' leases live for `ttl` seconds."""
        link = MemberStream(Address(member), None, self.attach)
        link.member = member
        link.credit.answers = answers
        welcome = pb.Welcome(member=member)
        welcome.worker_ttl.FromTimedelta(timedelta(seconds=ttl))
        self.attach.welcomed(link, welcome)
        return link


@asynccontextmanager
async def attaching(
    folder: Path, seeds: Sequence[Address] = (), tls: TLS | None = None
) -> AsyncIterator[World]:
    spool = Spool(folder)
    world = World(spool, seeds, tls)
    running = asyncio.create_task(world.attach.run(), name="attach")
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        spool.close()


def granted(link: MemberStream) -> int:
    return link.credit.slots


@pytest.mark.slow
async def test_slots_are_withdrawn_at_the_moment_trust_ends_not_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK", NEVER)
    async with attaching(tmp_path) as world:
        link = world.link("m1", ttl=3.0)
        await asyncio.sleep(0)  # its loop waits for the next look
        world.attach.refreshed(boottime())
        await wait_until_async(lambda: granted(link) == SLOTS, 5, "slots granted")
        await wait_until_async(lambda: granted(link) == 0, 5, "slots withdrawn")
        assert boottime() >= world.trust.until, "too early: a lease that lives lends its slots"


@pytest.mark.slow
async def test_a_member_that_does_not_answer_is_tried_again_within_a_third_of_the_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger=module.__name__)
    unheard = Address("127.0.0.1:1")
    async with attaching(tmp_path, seeds=[unheard]) as world:
        world.trust.ttl = 3.0

        def tries() -> int:
            return sum(f"stream to {unheard} ended" in text for text in caplog.messages)

        # 0.1 + 0.2 + 0.4 + 0.8 + 1 + 1 s at most; left to double, it would take 5.0 at least
        await wait_until_async(lambda: tries() >= 7, 4.8, "seven tries")


@pytest.mark.slow
async def test_that_its_own_certificate_has_ended_is_told_again_and_again_until_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member only closes the connection, and gRPC says no more than that."""
    authority = Authority.create(tmp_path / "ca")
    w1 = Subject("w1", [uri_of(IdentityKind.WORKER, "w1")])
    mine = authority.issue(w1, tmp_path / "w", timedelta(minutes=-1))
    m1 = Subject("m1", [uri_of(IdentityKind.MEMBER, "m1")], ["127.0.0.1"])

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]

    async with FakeMember() as member:
        await member.stop()
        member.tls = authority.issue(m1, tmp_path / "m", timedelta(days=1))
        await member.start()
        caplog.set_level(logging.DEBUG, logger=module.__name__)
        async with attaching(tmp_path / "spool", [Address(member.address)], mine) as world:
            world.trust.ttl = 0.3  # it tries again soon
            await wait_until_async(lambda: len(caplog.records) >= 5, 20, "five tries")
            [line] = told()
            assert line.startswith(f"stream to {member.address} ended: ")
            assert re.search(rf"; our certificate {mine.cert} ended at \d{{4}}-\d\d-\d\d ", line)
            monkeypatch.setattr(module, "_REMIND_AFTER", 0.0)
            await wait_until_async(lambda: len(told()) >= 3, 20, "the line again")
            assert all("; our certificate " in line for line in told())
            authority.issue(w1, tmp_path / "w", timedelta(days=1))
            await member.attached()


@pytest.mark.parametrize(("waited", "kept"), [(0.0, False), (61.0, True)])
async def test_slots_are_kept_for_a_run_that_is_too_wide_only_when_it_has_waited_long(
    tmp_path: Path, waited: float, kept: bool
) -> None:
    async with attaching(tmp_path) as world:
        wide, other = world.link("m1", ttl=60.0), world.link("m2", ttl=60.0)
        since = utcnow().timestamp() - waited
        wide.demand = [DemandHead(3, since, SLOTS + 1, least=SLOTS + 1)]
        other.demand = [DemandHead(1, since, SLOTS)]
        world.attach.refreshed(boottime())
        await wait_until_async(
            lambda: (granted(wide), granted(other)) == ((SLOTS, 0) if kept else (0, SLOTS)),
            5,
            "slots dealt",
        )


async def sharing(world: World, *, answers: bool) -> tuple[MemberStream, MemberStream]:
    """Two members with two slots each, of which the second asks for all."""
    one, two = (world.link(each, ttl=60.0, answers=answers) for each in ("m1", "m2"))
    world.attach.refreshed(boottime())
    await wait_until_async(lambda: (granted(one), granted(two)) == (2, 2), 5, "an even share")
    two._handle_frame(
        pb.MemberFrame(demand=pb.Demand(heads=[pb.Demand.Head(priority=3, slots=SLOTS)]))
    )
    await wait_until_async(lambda: granted(one) == 0, 5, "what the other one asks for")
    return one, two


async def test_what_a_member_was_promised_goes_to_another_as_far_as_it_says_that_it_may(
    tmp_path: Path,
) -> None:
    """What it had chosen by then is on its way, and would be refused."""
    async with attaching(tmp_path) as world:
        one, two = await sharing(world, answers=True)
        assert granted(two) == 2
        told = one._outbox.take_frame().granted
        assert (told.slots, told.serial) == (0, 1)
        one._handle_frame(pb.MemberFrame(reach=pb.Reach(serial=1, slots=1)))
        await wait_until_async(lambda: granted(two) == 3, 5, "the slot that it gave up")
        one._handle_frame(pb.MemberFrame(reach=pb.Reach(serial=1, slots=0)))
        await wait_until_async(lambda: granted(two) == 4, 5, "the one that it let go of")
        assert not one._outbox.take_frame().HasField("granted")


async def test_what_a_member_that_never_answers_was_promised_goes_to_another_at_once(
    tmp_path: Path,
) -> None:
    async with attaching(tmp_path) as world:
        one, two = await sharing(world, answers=False)
        assert granted(two) == SLOTS
        assert not one._outbox.take_frame().granted.serial


async def test_nothing_is_kept_for_a_member_that_takes_too_long_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "KEPT_FOR", 0.2)
    monkeypatch.setattr(module, "_LOOK", 0.05)
    async with attaching(tmp_path) as world:
        _, two = await sharing(world, answers=True)
        await wait_until_async(lambda: granted(two) == SLOTS, 5, "all slots")


@pytest.mark.parametrize("how", ["silent", "closed"])
async def test_nothing_is_kept_for_a_member_that_is_silent_or_gone(
    tmp_path: Path, how: str
) -> None:
    async with attaching(tmp_path) as world:
        one, two = await sharing(world, answers=True)
        if how == "silent":
            one._sent[1] = boottime() - 60.0
            world.attach.redeal()
        else:
            world.attach.closed(one)
        await asyncio.sleep(0)
        await wait_until_async(lambda: granted(two) == SLOTS, credit.KEPT_FOR / 2, "all slots")


async def test_without_trust_all_slots_are_withdrawn_at_once_whatever_is_on_its_way(
    tmp_path: Path,
) -> None:
    """It is refused; and finds its slots if trust is back when it comes."""
    async with attaching(tmp_path) as world:
        _, two = await sharing(world, answers=True)
        world.trust.sent = None
        world.attach.redeal()
        await wait_until_async(lambda: granted(two) == 0, 5, "nothing")
        world.attach.refreshed(boottime())
        await wait_until_async(lambda: granted(two) > 0, 5, "its slots again")
        assert granted(two) == 2


async def test_whoever_kills_by_trust_is_told_of_each_refresh_before_what_was_lost_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust that ended while nobody looked is lost all the same: the keeper may have looked."""
    told: list[float | str] = []
    async with attaching(tmp_path) as world:
        world.link("m1", ttl=15.0)
        world.attach.on_trust = told.append
        monkeypatch.setattr(world.attach._work, "lease_lost", lambda: told.append("lost"))
        now = boottime()
        world.attach.refreshed(now - 20.0)
        told.clear()
        world.attach.refreshed(now - 1.0)
        assert told == [now + 11.0, "lost"]
        world.attach.refreshed(now)
        assert told == [now + 11.0, "lost", now + 12.0]


async def test_trust_in_a_lost_incarnation_ends_at_once_for_whoever_kills_by_it(
    tmp_path: Path,
) -> None:
    told: list[float] = []
    async with attaching(tmp_path) as world:
        link = world.link("m1", ttl=15.0)
        link.incarnation = world.attach.identity.incarnation
        world.attach.refreshed(boottime())
        world.attach.on_trust = told.append
        before = boottime()
        world.attach._renew(link)
        assert [before <= until <= boottime() for until in told] == [True]
        world.link("m2", ttl=15.0)
        assert len(told) == 1, "it isn't as if it had ended long ago"
