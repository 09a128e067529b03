"""A member's key: put where none is, written while it is one's own, missed when it has gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedd.cluster.member import MemberIdentity
from schedd.cluster.observer import Observer
from schedd.cluster.registration import REPORT_EVERY, SPARE, Name, Registration
from schedd.cluster.tenure import TenureOver
from schedd.core.cluster.coordination import Delete, Put
from schedd.core.cluster.membership import decode_member, encode_member, member_key
from schedd.core.ids import Id, TenureId, new_id
from support.fakes import FakeCoordination, FakeEtcd

ME = MemberIdentity("a", "a:7420", "a:7421").view(TenureId(Id.from_int(1)))
DUPLICATE = replace(ME, tenure=TenureId(new_id()), grpc="elsewhere:7420")
KEY = member_key("a")


class World:
    def __init__(self) -> None:
        self.etcd = FakeCoordination(FakeEtcd())

    async def registration(self) -> Registration:
        lease = await self.etcd.grant(5)
        return Registration(self.etcd, Observer(self.etcd), ME, lease.id)

    async def take_name(self) -> None:
        """Another daemon of the name has the key now."""
        await self.etcd.txn((), [Delete(KEY)])
        lease = await self.etcd.grant(5)
        await self.etcd.txn((), [Put(KEY, encode_member(DUPLICATE), lease.id)])

    async def registered(self) -> TenureId | None:
        entry = await self.etcd.get(KEY)
        return decode_member(entry).tenure if entry else None


async def test_a_name_taken_meanwhile_is_left_to_its_holder() -> None:
    """M12: both may have seen that it was free."""
    world = World()
    registration = await world.registration()
    await world.take_name()
    assert not await registration.put()
    assert await world.registered() == DUPLICATE.tenure


async def test_a_member_never_overwrites_the_key_of_another() -> None:
    """M12: of two who thought that it was free, the one who lost it ends its tenure."""
    world = World()
    registration = await world.registration()
    assert await registration.put()
    await world.take_name()
    registration.draining()
    with pytest.raises(TenureOver):
        await registration.step()
    assert await world.registered() == DUPLICATE.tenure


@pytest.mark.parametrize("taken", [True, False])
async def test_a_member_missing_from_the_view_checks_its_key(taken: bool) -> None:
    world = World()
    registration = await world.registration()
    assert await registration.put()
    await registration.step()  # not seen yet, and there: nothing to be said
    await world.take_name() if taken else await world.etcd.txn((), [Delete(KEY)])
    with pytest.raises(TenureOver):
        await registration.step()


async def test_a_running_daemon_of_the_same_name_is_reported_every_ten_minutes() -> None:
    """M12: the operator finds it where all refusals are; a key that a crash left runs out."""
    world, reported, time = World(), list[str](), [0.0]

    async def tell(first: str) -> None:
        reported.append(first)

    name = Name(world.etcd, "a", lease=5.0, on_duplicate=tell, clock=lambda: time[0])
    await world.take_name()
    for time[0] in range(3):
        assert not await name.free()
    for time[0] in range(60, 60 + 10 + int(SPARE) + 1):  # etcd was away in between
        assert not await name.free()
    assert not reported, "a lease that no process keeps lasts as long"
    assert not name.taken_by
    for time[0] in range(73, 100):
        assert not await name.free()
    duplicate = f"tenure {DUPLICATE.tenure} at elsewhere:7420"
    assert (reported, name.taken_by) == ([duplicate], duplicate)
    for time[0] in range(100, 75 + int(REPORT_EVERY)):
        assert not await name.free()
    assert reported == [duplicate, duplicate]
    await world.etcd.txn((), [Delete(KEY)])
    assert await name.free()
    assert not name.taken_by
