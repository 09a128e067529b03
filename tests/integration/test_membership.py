"""Members as processes, on a real etcd and a real PostgreSQL: ownership of shards in all failures.

Durations are measured by the database, which writes down when each shard changed hands
(support/shard_handovers.py): when the test got round to looking says how busy the machine is.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from schedd.core.cluster.coordination import Put
from schedd.core.cluster.membership import MAP, ClusterView, member_key, view_of
from schedd.core.cluster.shard_map import ShardMap, encode
from schedd.core.ids import SHARDS, Epoch, ShardId, TenureId, Term
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedkit.errors import Unavailable
from support.etcd import EtcdCluster
from support.member_process import MemberProcesses
from support.postgres import ScratchServer, private_postgres, restart
from support.shard_handovers import ShardHandovers, handovers_since, watch
from support.wait import WAIT_TIMEOUT, wait_until_async

TTL = 3
FAIL_OVER = TTL + 2.0
"""Seconds in which a lost member's shards must be owned again."""
HANDED_OVER = 1.0
"""Seconds in which those of a leader that is asked to end are."""
UNOWNED = 0.3
"""Seconds that each of these may be without an owner."""

_roots = itertools.count(1)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(server: ScratchServer) -> ScratchServer:
    witnessed(server)
    return server


def witnessed(server: ScratchServer) -> None:
    """Have a template of databases that write down when a shard changes hands."""
    dsn = server.create_migrated("membership_template")
    watch(server, dsn)


@dataclass
class World:
    """A cluster from outside: its processes, its keys, its rows."""

    members: MemberProcesses
    etcd: EtcdClient
    store: Stores
    hands: Callable[[float], ShardHandovers]

    async def view(self) -> ClusterView:
        """Return the view of the cluster in etcd."""
        return view_of(await self.etcd.list(""))

    async def tenures(self) -> dict[TenureId, str]:
        """The unfenced ones, with their members."""
        return {row.id: row.member for row in await self.store.membership.unfenced_tenures()}

    async def tenure(self, name: str) -> TenureId | None:
        """A member's unfenced tenure."""
        found = [tenure for tenure, member in (await self.tenures()).items() if member == name]
        return found[0] if found else None

    async def epochs(self) -> dict[ShardId, Epoch]:
        return {row.id: row.epoch for row in await self.store.membership.read_shards()}

    async def owners(self) -> Counter[str]:
        """How many shards each member owns under an unfenced tenure; "" for the rest."""
        tenures = await self.tenures()
        rows = await self.store.membership.read_shards()
        return Counter(tenures.get(row.owner, "") if row.owner else "" for row in rows)

    async def leader(self) -> str:
        """The member that leads; waits for one."""
        view = await wait_until_async(self._led, WAIT_TIMEOUT, "a leader")
        member = view.member(view.leader)
        assert member is not None
        return member.name

    async def _led(self) -> ClusterView | None:
        view = await self.view()
        return view if view.member(view.leader) else None

    async def until_owned_by(self, *names: str) -> None:
        """Wait until exactly these own all shards, each those that the leader's map gives it."""

        async def stable() -> bool:
            owners = await self.owners()
            return set(owners) == set(names) and await self._as_mapped()

        await wait_until_async(stable, WAIT_TIMEOUT, f"{names} to own all shards")

    async def _as_mapped(self) -> bool:
        try:
            view = await self.view()
        except Unavailable:  # etcd is back, our connection to it isn't yet
            return False
        rows = await self.store.membership.read_shards()
        return {row.id: row.owner for row in rows} == view.assigned

    async def said(self, words: str) -> None:
        """Wait until each of the three has said this."""
        logs = [self.members.log(name) for name in "abc"]
        await wait_until_async(
            lambda: all(words in log.read_text() for log in logs),
            WAIT_TIMEOUT,
            f"all to say {words!r}",
        )

    async def three(self) -> None:
        """Three members that share all shards."""
        for name in "abc":
            self.members.start(name)
        await self.until_owned_by("a", "b", "c")


@asynccontextmanager
async def a_world(etcd: EtcdCluster, server: ScratchServer, folder: Path) -> AsyncIterator[World]:
    """A database and a root of keys of their own."""
    root = f"members-{os.getpid()}-{next(_roots)}/"
    dsn = server.create_database(template="membership_template")
    store = Stores(Database(dsn))
    async with connect(EtcdAccess(etcd.endpoints), deadline=0.5, root=root) as client:
        with MemberProcesses(etcd.endpoints, dsn, folder, root=root, ttl=TTL) as members:
            yield World(members, client, store, partial(handovers_since, server, dsn))
    store.database.close()
    server.drop_database(dsn)


@pytest.fixture
async def world(etcd: EtcdCluster, server: ScratchServer, tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(etcd, server, tmp_path) as made:
        yield made


async def test_three_members_own_every_shard_exactly_once(world: World) -> None:
    await world.three()
    owners = await world.owners()
    assert sum(owners.values()) == SHARDS
    assert all(60 <= count <= 110 for count in owners.values()), owners
    view = await world.view()
    rows = await world.store.membership.read_shards()
    assert {row.id: row.owner for row in rows} == view.assigned
    assert view.term == await world.store.membership.read_term()


async def test_a_killed_member_is_fenced_and_its_shards_are_taken_in_time(world: World) -> None:
    await world.three()
    leader = await world.leader()
    [victim, other] = {"a", "b", "c"} - {leader}
    tenure, before = await world.tenure(victim), await world.epochs()
    killed = time.time()
    world.members[victim].send(signal.SIGKILL)
    await world.until_owned_by(leader, other)
    assert world.hands(killed).took <= FAIL_OVER
    assert tenure not in await world.tenures()
    after = await world.epochs()
    assert all(after[shard] >= before[shard] for shard in before)


async def test_a_killed_leader_is_followed_by_another_in_time(world: World) -> None:
    await world.three()
    leader, term = await world.leader(), await world.store.membership.read_term()
    killed = time.time()
    world.members[leader].send(signal.SIGKILL)
    others = {"a", "b", "c"} - {leader}
    await world.until_owned_by(*others)
    assert world.hands(killed).took <= FAIL_OVER
    assert await world.leader() in others
    assert await world.store.membership.read_term() > term


async def test_a_leader_that_is_asked_to_end_hands_over_at_once(
    world: World, figure: Callable[[str], None]
) -> None:
    await world.three()
    leader = await world.leader()
    others = {"a", "b", "c"} - {leader}
    asked = time.time()
    world.members[leader].send(signal.SIGTERM)
    await world.until_owned_by(*others)
    hands = world.hands(asked)
    figure(
        f"planned hand-over: all moved after {hands.took * 1e3:.0f} ms,"
        f" {hands.unowned * 1e3:.0f} ms unowned"
    )
    assert hands.took < HANDED_OVER
    assert hands.unowned < UNOWNED
    process = world.members[leader]
    assert await wait_until_async(lambda: not process.alive(), WAIT_TIMEOUT, f"{leader} to end")
    assert await world.leader() in others
    assert await world.etcd.get(member_key(leader)) is None
    assert leader not in (await world.tenures()).values()


async def test_a_member_stopped_past_its_lease_is_replaced_and_returns_with_a_new_tenure(
    world: World,
) -> None:
    await world.three()
    leader = await world.leader()
    others = {"a", "b", "c"} - {leader}
    tenure = await world.tenure(leader)
    world.members[leader].send(signal.SIGSTOP)
    await world.until_owned_by(*others)
    epochs = await world.epochs()
    world.members[leader].send(signal.SIGCONT)
    await world.until_owned_by("a", "b", "c")
    assert await world.tenure(leader) not in (None, tenure)
    after = await world.epochs()
    assert all(after[shard] >= epochs[shard] for shard in epochs)


async def test_a_member_whose_lease_is_revoked_returns_with_a_new_tenure(
    world: World,
) -> None:
    await world.three()
    tenure = await world.tenure("a")
    entry = await world.etcd.get(member_key("a"))
    assert entry is not None
    await world.etcd.revoke(entry.lease)

    async def back() -> bool:
        return await world.tenure("a") not in (None, tenure)

    await wait_until_async(back, WAIT_TIMEOUT, "a to come back")
    await world.until_owned_by("a", "b", "c")


async def test_a_second_daemon_of_a_name_waits_and_says_so(world: World) -> None:
    world.members.start("a")
    await world.until_owned_by("a")
    tenure = await world.tenure("a")
    second = world.members.start("second", identity="a")
    await wait_until_async(
        lambda: "waiting until its lease expires" in world.members.log("second").read_text(),
        WAIT_TIMEOUT,
        "the second to say so",
    )
    assert second.alive()
    assert await world.tenure("a") == tenure
    assert list((await world.tenures()).values()) == ["a"]
    world.members["a"].send(signal.SIGTERM)

    async def followed() -> bool:
        return await world.tenure("a") not in (None, tenure)

    await wait_until_async(followed, WAIT_TIMEOUT, "the second to serve")
    await world.until_owned_by("a")


async def test_an_outage_of_etcd_ends_the_tenures_and_all_members_return(
    server: ScratchServer, tmp_path: Path
) -> None:
    with EtcdCluster(1) as etcd:
        async with a_world(etcd, server, tmp_path) as world:
            await world.three()
            before = set(await world.tenures())
            etcd.members[0].kill()
            await world.said("lease in etcd was lost: ")
            etcd.members[0].restart()
            await world.until_owned_by("a", "b", "c")
            assert not before & set(await world.tenures())


async def test_a_restart_of_the_database_ends_no_tenure_and_no_term(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    with private_postgres(copied=True, synchronous_commit="on") as server:
        witnessed(server)
        async with a_world(etcd, server, tmp_path) as world:
            await world.three()
            before = await world.tenures(), await world.store.membership.read_term()
            server.process.send(signal.SIGKILL)
            await world.said("retrying in")
            restart(server)
            await world.said("available again")
            await world.until_owned_by("a", "b", "c")
            assert (await world.tenures(), await world.store.membership.read_term()) == before


async def test_a_map_of_a_lower_term_is_ignored_and_replaced(world: World) -> None:
    await world.three()
    tenure, epochs = await world.tenure("a"), await world.epochs()
    assert tenure is not None
    stale = ShardMap(Term(1), {ShardId(at): tenure for at in range(SHARDS)})
    await world.etcd.txn((), [Put(MAP, encode(stale))])
    term = await world.store.membership.read_term()

    async def replaced() -> bool:
        return (await world.view()).term == term

    await wait_until_async(replaced, WAIT_TIMEOUT, "the leader to write its map again")
    assert await world.epochs() == epochs
