"""Slots that a worker reserves for its members, and until when."""

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
from schedkit.bounds import FRAME
from schedkit.bounds.tables import MOST_BATCHES, MOST_IN_BATCH, MOST_RUN_BATCHES
from schedkit.clock import boottime, utcnow
from schedkit.net.channel import TLS
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember
from support.uploads import upload_in
from support.wait import wait_until_async
from workerd.core import credit
from workerd.core.admission import Admission
from workerd.core.cluster_time import JudgingClock, RoundTrip
from workerd.core.ids import Address, Incarnation
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.slot_split import DemandHead
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.spool import Spool
from workerd.metrics import WorkerMetrics
from workerd.runs.assignments import HeldRuns
from workerd.stream import streams as module
from workerd.stream.streams import Attach, MemberStream

SLOTS = 4
NEVER = 3600.0


class World:
    """A worker's attachment without a network: the test opens the streams."""

    def __init__(self, spool: Spool, seeds: Sequence[Address], tls: TLS | None) -> None:
        identity = pb.Hello(worker="w1", spool_id=spool.id, slots=SLOTS, incarnation="i")
        admission = Admission(SLOTS, Incarnation("i"))
        self.trust, clock = WorkerLeaseTrust(), JudgingClock()
        self.courier = courier = ResultSender(spool, lambda _key, _verdict: None)
        keeping = upload_in(spool)
        self.work = work = HeldRuns(
            "w1", admission, self.trust, clock, {}, courier, keeping, WorkerMetrics()
        )
        self.attach = Attach(identity, seeds, tls, work)
        clock.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))

    def link(self, member: str, *, ttl: float) -> MemberStream:
        """Open another stream; leases of workers last `ttl` seconds."""
        link = MemberStream(Address(member), None, self.attach)
        link.member = member
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
async def test_slots_are_withdrawn_when_trust_ends_and_not_at_the_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK", NEVER)
    async with attaching(tmp_path) as world:
        link = world.link("m1", ttl=3.0)
        await asyncio.sleep(0)  # its loop waits for the next check
        world.attach.refreshed(boottime())
        await wait_until_async(lambda: granted(link) == SLOTS, 5, "slots granted")
        await wait_until_async(lambda: granted(link) == 0, 5, "slots withdrawn")
        assert boottime() >= world.trust.until, "too early: a lease that lives lends its slots"


@pytest.mark.slow
async def test_a_member_that_does_not_answer_is_retried_within_a_third_of_the_lease(
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
async def test_an_expired_client_certificate_is_logged_repeatedly_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member only closes the connection, and gRPC says no more than that."""
    authority = Authority.create(tmp_path / "ca")
    w1 = Subject("w1", [uri_of(IdentityKind.WORKER, "w1")])
    mine = authority.issue(w1, tmp_path / "w", timedelta(minutes=-1))
    m1 = Subject("m1", [uri_of(IdentityKind.MEMBER, "m1")], ["127.0.0.1"])

    def logged() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]

    async with FakeMember() as member:
        await member.stop()
        member.tls = authority.issue(m1, tmp_path / "m", timedelta(days=1))
        await member.start()
        caplog.set_level(logging.DEBUG, logger=module.__name__)
        async with attaching(tmp_path / "spool", [Address(member.address)], mine) as world:
            world.trust.ttl = 0.3  # the next try is soon
            await wait_until_async(lambda: len(caplog.records) >= 5, 20, "five tries")
            [line] = logged()
            assert line.startswith(f"stream to {member.address} ended: ")
            assert re.search(
                rf"; the client certificate {mine.cert} expired at \d{{4}}-\d\d-\d\d ", line
            )
            monkeypatch.setattr(module, "_REMIND_AFTER", 0.0)
            await wait_until_async(lambda: len(logged()) >= 3, 20, "the line again")
            assert all("; the client certificate " in line for line in logged())
            authority.issue(w1, tmp_path / "w", timedelta(days=1))
            await member.attached()


@pytest.mark.parametrize(("waited", "kept"), [(0.0, False), (61.0, True)])
async def test_slots_are_reserved_for_a_wide_run_only_after_a_long_wait(
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


async def sharing(world: World) -> tuple[MemberStream, MemberStream]:
    """Open two members with two slots each; then the second demands all slots."""
    one, two = (world.link(each, ttl=60.0) for each in ("m1", "m2"))
    world.attach.refreshed(boottime())
    await wait_until_async(lambda: (granted(one), granted(two)) == (2, 2), 5, "an even share")
    await world.attach.received(
        two, pb.MemberFrame(demand=pb.Demand(heads=[pb.Demand.Head(priority=3, slots=SLOTS)]))
    )
    await wait_until_async(lambda: granted(one) == 0, 5, "what the other one asks for")
    return one, two


async def test_withdrawn_slots_go_to_another_member_as_soon_as_the_first_releases_them(
    tmp_path: Path,
) -> None:
    """A run that the first member has already chosen is in flight and would be rejected."""
    async with attaching(tmp_path) as world:
        one, two = await sharing(world)
        assert granted(two) == 2
        grant = one.take_frame().granted
        assert (grant.slots, grant.serial) == (0, 1)
        await world.attach.received(one, pb.MemberFrame(reach=pb.Reach(serial=1, slots=1)))
        await wait_until_async(lambda: granted(two) == 3, 5, "the slot that it gave up")
        await world.attach.received(one, pb.MemberFrame(reach=pb.Reach(serial=1, slots=0)))
        await wait_until_async(lambda: granted(two) == 4, 5, "the one that it let go of")
        assert not one.take_frame().HasField("granted")


async def test_no_slots_are_reserved_for_a_member_that_answers_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "KEPT_FOR", 0.2)
    monkeypatch.setattr(module, "_LOOK", 0.05)
    async with attaching(tmp_path) as world:
        _, two = await sharing(world)
        await wait_until_async(lambda: granted(two) == SLOTS, 5, "all slots")


@pytest.mark.parametrize("how", ["silent", "closed"])
async def test_no_slots_are_reserved_for_a_silent_or_closed_member(
    tmp_path: Path, how: str
) -> None:
    async with attaching(tmp_path) as world:
        one, two = await sharing(world)
        if how == "silent":
            one._sent[1] = boottime() - 60.0
            world.attach.redeal()
        else:
            world.attach.closed(one)
        await asyncio.sleep(0)
        await wait_until_async(lambda: granted(two) == SLOTS, credit.KEPT_FOR / 2, "all slots")


async def test_without_trust_all_slots_are_withdrawn_at_once(
    tmp_path: Path,
) -> None:
    """A run in flight is rejected, unless trust is back when it arrives."""
    async with attaching(tmp_path) as world:
        _, two = await sharing(world)
        world.trust.sent = None
        world.attach.redeal()
        await wait_until_async(lambda: granted(two) == 0, 5, "nothing")
        world.attach.refreshed(boottime())
        await wait_until_async(lambda: granted(two) > 0, 5, "its slots again")
        assert granted(two) == 2


async def test_a_goodbye_ends_with_the_last_stream_also_after_a_check_of_the_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.02)
    async with attaching(tmp_path) as world:
        link = world.link("m1", ttl=9.0)
        await asyncio.sleep(0)  # its loop waits for the next check
        monkeypatch.setattr(module, "_LOOK", NEVER)
        leaving = asyncio.create_task(world.attach.goodbye(), name="goodbye")
        await asyncio.sleep(0.1)  # longer than until the check
        world.attach.closed(link)
        await asyncio.wait_for(leaving, 5)


async def test_the_keeper_receives_each_refresh_before_lost_runs_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust that ended between two checks is lost: the keeper may have seen its end."""
    calls: list[float | str] = []
    async with attaching(tmp_path) as world:
        world.link("m1", ttl=15.0)
        world.attach.on_trust = calls.append
        monkeypatch.setattr(world.attach._work, "lease_lost", lambda: calls.append("lost"))
        now = boottime()
        world.attach.refreshed(now - 20.0)
        calls.clear()
        world.attach.refreshed(now - 1.0)
        assert calls == [now + 11.0, "lost"]
        world.attach.refreshed(now)
        assert calls == [now + 11.0, "lost", now + 12.0]


async def test_the_keeper_receives_the_end_of_trust_in_a_lost_incarnation_at_once(
    tmp_path: Path,
) -> None:
    ends: list[float] = []
    async with attaching(tmp_path) as world:
        link = world.link("m1", ttl=15.0)
        link.incarnation = world.attach.identity.incarnation
        world.attach.refreshed(boottime())
        world.attach.on_trust = ends.append
        before = boottime()
        world.attach._renew(link)
        assert [before <= until <= boottime() for until in ends] == [True]
        world.link("m2", ttl=15.0)
        assert len(ends) == 1, "a new incarnation reports no second end"


async def test_a_frame_with_many_runs_is_handled_in_parts_with_cancels_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats are sent meanwhile; no slot of the rest of the frame is granted twice."""
    async with attaching(tmp_path) as world:
        link, member = world.link("m1", ttl=60.0), FakeMember()
        handled: list[str] = []
        batches = []
        for count in (MOST_IN_BATCH, 1, 2, MOST_IN_BATCH, 3):
            batch = member.run_batch([member.key()], incarnation=world.attach.identity.incarnation)
            batch.run_ids, runs = batch.run_ids * count, [*batch.fencing_tokens] * count
            batch.fencing_tokens[:], batch.scheduled_at[:] = runs, [*batch.scheduled_at] * count
            batches.append(batch)
        acks = [pb.AckBatch(run_ids=b"x" * 16 * 1500, fencing_tokens=[1] * 1500) for _ in "ab"]
        monkeypatch.setattr(world.work, "cancel", lambda _cancel, _link: handled.append("cancel"))
        monkeypatch.setattr(
            world.work,
            "assign",
            lambda _single, _time, _link, batches: handled.append(
                f"{[len(each.fencing_tokens) for each in batches]} of {link.credit.received}"
            ),
        )
        monkeypatch.setattr(
            world.courier, "acknowledge", lambda _answers, _batches: handled.append("acknowledge")
        )

        async def others() -> None:
            while True:
                await asyncio.sleep(0)
                if handled and handled[-1] != "others":
                    handled.append("others")

        between = asyncio.create_task(others())
        await asyncio.sleep(0)
        cancel = pb.Cancel(key=member.key())
        frame = pb.MemberFrame(cancels=[cancel], run_batches=batches, ack_batches=acks)
        await world.attach.received(link, frame)
        between.cancel()
        assert handled == [
            "cancel",
            "[2000] of 2000",
            "others",
            "[1, 2] of 2003",
            "others",
            "[2000] of 4003",
            "others",
            "[3] of 4006",
            "acknowledge",
            "others",
            "acknowledge",
        ]


@pytest.mark.parametrize(
    ("most", "kind"),
    [(MOST_RUN_BATCHES, "run_batches"), (MOST_BATCHES, "ack_batches")],
)
def test_a_frame_may_hold_as_many_batches_as_members_send(most: int, kind: str) -> None:
    frame = pb.MemberFrame()
    for _ in range(most):
        getattr(frame, kind).add()
    assert not FRAME.violations(frame)
    getattr(frame, kind).add()
    assert FRAME.violations(frame)
