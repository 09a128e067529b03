"""What a worker keeps free for its members, and until when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from schedkit.clock import boottime, utcnow
from schedproto.v1 import worker_service_pb2 as pb
from support.wait import wait_until_async
from workerd import attach as module
from workerd.attach import Attach
from workerd.core.admission import Admission
from workerd.core.cluster_time import JudgingClock, RoundTrip
from workerd.core.grants import Head
from workerd.core.ids import Address
from workerd.core.trust import Trust
from workerd.courier import Courier
from workerd.identity import Identity
from workerd.link import Link
from workerd.metrics import Metrics
from workerd.spool import Spool
from workerd.work import Work

SLOTS = 4
NEVER = 3600.0


class World:
    """A worker's attachment without a wire: the test says what streams there are."""

    def __init__(self, spool: Spool, seeds: Sequence[Address]) -> None:
        identity = Identity("w1", spool.id, "0", "host", SLOTS, {}, [], [], utcnow())
        admission = Admission(SLOTS, identity.incarnation)
        self.trust, clock = Trust(), JudgingClock()
        courier = Courier(spool, lambda _key, _verdict: None)
        work = Work("w1", admission, self.trust, clock, {}, courier, Metrics())
        self.attach = Attach(identity, seeds, None, admission, self.trust, clock, work, courier)
        clock.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))

    def link(self, member: str, *, ttl: float) -> Link:
        """One more open stream; workers' leases live for `ttl` seconds."""
        link = Link(Address(member), None, self.attach)
        link.member = member
        welcome = pb.Welcome(member=member)
        welcome.worker_ttl.FromTimedelta(timedelta(seconds=ttl))
        self.attach.welcomed(link, welcome)
        return link


@asynccontextmanager
async def attaching(folder: Path, seeds: Sequence[Address] = ()) -> AsyncIterator[World]:
    spool = Spool(folder)
    world = World(spool, seeds)
    running = asyncio.create_task(world.attach.run(), name="attach")
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        spool.close()


def granted(link: Link) -> int:
    return link.promised - link.received


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


@pytest.mark.parametrize(("waited", "kept"), [(0.0, False), (61.0, True)])
async def test_slots_are_kept_for_a_run_that_is_too_wide_only_when_it_has_waited_long(
    tmp_path: Path, waited: float, kept: bool
) -> None:
    async with attaching(tmp_path) as world:
        wide, other = world.link("m1", ttl=60.0), world.link("m2", ttl=60.0)
        since = utcnow().timestamp() - waited
        wide.demand = [Head(3, since, SLOTS + 1, least=SLOTS + 1)]
        other.demand = [Head(1, since, SLOTS)]
        world.attach.refreshed(boottime())
        await wait_until_async(
            lambda: (granted(wide), granted(other)) == ((SLOTS, 0) if kept else (0, SLOTS)),
            5,
            "slots dealt",
        )
