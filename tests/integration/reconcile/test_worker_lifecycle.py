"""The lives of workers at a member: identity, leases, loss (P6.1, P6.2). Real etcd, PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

import pytest

from schedd.cluster.leader.loss_recorder import LossRecorder
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.cluster.cluster_events import EventKind
from schedd.core.cluster.worker_liveness import WatchedDeletions
from schedd.core.ids import IncarnationId, TenureId, new_id
from schedd.core.runs.model import AuditRecord, Incarnation, Tenure
from schedd.core.runs.records import Drain
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.dispatch.workers.worker_sessions import RejectedHello, WorkerSessions
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from schedkit.clock import boottime, utcnow
from support.etcd import EtcdCluster
from support.runs import RecordingLine, SetClock, worker
from support.store import World, draft, firing, report
from support.wait import WAIT_TIMEOUT, wait_until_async

TTL = 60.0
"""Seconds that leases live, for all but the tests of a lease's end."""
SHORT = 2.0


@dataclass
class Place:
    """The parts of one member that handle workers' sessions and leases."""

    etcd: EtcdClient
    world: World
    workers: WorkerRegistry
    leases: WorkerLeases
    greeting: WorkerSessions

    async def live(self) -> set[IncarnationId]:
        return set((await self.leases.liveness([])).live)

    async def refusals(self) -> int:
        rows = await self.world.sql(
            "SELECT actor, object FROM audit WHERE reason = 'SECOND_IDENTITY'"
        )
        assert {*rows} <= {("worker/w", "worker/w")}, "who acts is named as an object is"
        return len(rows)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster(1) as cluster:
        yield cluster


@pytest.fixture
async def place(etcd: EtcdCluster, world: World) -> AsyncIterator[Place]:
    async with a_place(etcd, world, TTL) as made:
        yield made


@pytest.fixture
async def short_ttl(etcd: EtcdCluster, world: World) -> AsyncIterator[Place]:
    """Where leases end soon."""
    async with a_place(etcd, world, SHORT) as made:
        yield made


@asynccontextmanager
async def a_place(etcd: EtcdCluster, world: World, ttl: float) -> AsyncIterator[Place]:
    access = EtcdAccess(etcd.endpoints)
    async with connect(access, deadline=WAIT_TIMEOUT, root=f"{uuid4()}/") as client:
        await world.member()
        store = world.store
        workers = WorkerRegistry(SetClock(), lambda _event: None)
        leases = WorkerLeases(client, store.workers, "", ttl, lambda _incarnation: True, unwatched)
        greeting = WorkerSessions(workers, leases, store.workers, store.results, store.users)
        yield Place(client, world, workers, leases, greeting)


def unwatched() -> WatchedDeletions:
    """Return no deletions: the test asks about no worker."""
    return WatchedDeletions(0, {})


def next_incarnation(of: Incarnation, **changes: object) -> Incarnation:
    return replace(of, id=IncarnationId(new_id()), started_at=utcnow(), **changes)  # type: ignore[arg-type]  # fields by name


def new_worker(name: str = "w") -> Incarnation:
    return replace(worker(name=name, spool="here"), id=IncarnationId(new_id()))


async def test_an_accepted_worker_has_a_key_under_a_lease(place: Place):
    one = new_worker()
    assert await place.greeting.greet(one, []) is None
    assert await place.live() == {one.id}
    entry = await place.etcd.get(f"workers/w/{one.id}")
    assert entry is not None
    assert entry.lease != 0


async def test_a_second_member_finds_the_lease_and_makes_no_other(place: Place):
    one = new_worker()
    await place.greeting.greet(one, [])
    before = await place.etcd.get(f"workers/w/{one.id}")
    await place.greeting.greet(one, [])
    assert await place.etcd.get(f"workers/w/{one.id}") == before


async def test_a_drain_of_a_worker_applies_to_its_next_incarnation_too(place: Place):
    def entry(before: Drain | None, after: Drain | None) -> AuditRecord:
        return AuditRecord("ops", "drain", "worker/w", "ok")

    first, line = new_worker(), RecordingLine()
    await place.greeting.greet(first, [])
    attached = place.workers.attach(first, line)
    await place.world.store.workers.drain("w", "ops", "", entry)
    await place.greeting._look_after()
    assert line.drained == [True]
    place.workers.detach(attached)

    second, line = next_incarnation(first), RecordingLine()
    await place.greeting.greet(second, [])
    place.workers.attach(second, line)
    await place.greeting._look_after()
    assert line.drained == [True]
    await place.world.store.workers.undrain("w", entry)
    await place.greeting._look_after()
    assert line.drained == [True, False]


async def test_a_newcomer_from_the_same_spool_ends_the_earlier_incarnation_at_once(place: Place):
    """P6.6: it holds the spool's lock, so the earlier one is gone; no TTL is waited for."""
    first = new_worker()
    second = next_incarnation(first)
    await place.greeting.greet(first, [])
    assert await place.greeting.greet(second, []) is None
    assert await place.live() == {second.id}


async def test_a_second_worker_with_another_spool_is_rejected_while_the_first_runs(place: Place):
    first = new_worker()
    duplicate = next_incarnation(first, spool_id="elsewhere")
    await place.greeting.greet(first, [])
    turned = await place.greeting.greet(duplicate, [])
    assert isinstance(turned, RejectedHello)
    assert (turned.status, turned.reason) == ("ALREADY_EXISTS", "SECOND_IDENTITY")
    assert await place.live() == {first.id}
    for _ in range(3):  # it retries each second
        assert isinstance(
            await place.greeting.greet(next_incarnation(duplicate), []), RejectedHello
        )
    assert await place.refusals() == 1, "once is enough"
    await place.leases.end("w", first.id)
    assert await place.greeting.greet(next_incarnation(duplicate), []) is None


async def test_a_worker_rejected_for_its_name_is_never_recorded_as_lost(short_ttl: Place):
    """The rejected one has no key. A row would end each TTL as a loss of the live worker."""
    store = short_ttl.world.store
    losses = LossRecorder(short_ttl.leases, store.workers, store.membership)
    first = new_worker()
    await short_ttl.greeting.greet(first, [])
    duplicate = next_incarnation(first, spool_id="elsewhere")
    until = boottime() + 2.5 * SHORT
    while boottime() < until:
        assert await short_ttl.leases.refresh([first])
        turned = await short_ttl.greeting.greet(duplicate, [])
        assert turned is not None
        assert turned.reason == "SECOND_IDENTITY"
        await losses.step()
        assert [one.id for one in await store.workers.registered()] == [first.id]
        await asyncio.sleep(SHORT / 10)
    assert await store.membership.events_after(0) == []


async def test_events_recorded_before_the_leaders_first_scan_of_losses_are_logged(
    place: Place, caplog: pytest.LogCaptureFixture
):
    """The new leader fences the previous one as soon as its term begins."""
    membership, [me] = place.world.store.membership, place.world.members
    term = await membership.raise_term(await membership.read_term(), me.tenure)
    assert term is not None
    before = Tenure(TenureId(new_id()), "m0", utcnow())
    await membership.open_tenure(before)
    assert await membership.fence([before.id], term)

    with caplog.at_level(logging.INFO, "schedd.cluster.leader.loss_recorder"):
        await LossRecorder(place.leases, place.world.store.workers, membership).step()

    assert [record.message for record in caplog.records] == ["leader changed", "member lost"]


async def test_a_lost_worker_with_a_name_taken_meanwhile_receives_its_loss_first(place: Place):
    """The worker then ends its runs."""
    first = new_worker()
    await place.greeting.greet(first, [])
    await place.world.store.workers.lose([first.id], EventKind.WORKER_LOST)
    await place.leases.end("w", first.id)
    assert await place.greeting.greet(next_incarnation(first, spool_id="elsewhere"), []) is None
    turned = await place.greeting.greet(first, [])
    assert turned is not None
    assert turned.reason == "INCARNATION_LOST"


async def test_a_worker_that_returns_is_recorded_once_its_key_exists(place: Place):
    first = new_worker()
    await place.greeting.greet(first, [])
    await place.world.store.workers.lose([first.id], EventKind.WORKER_LOST)
    second = next_incarnation(first)
    for _ in range(2):
        await place.greeting.greet(second, [])
    events = await place.world.store.membership.events_after(0)
    assert [event.kind for event in events] == [EventKind.WORKER_LOST, EventKind.WORKER_RETURNED]


async def test_an_earlier_incarnation_stays_until_its_spooled_results_are_resolved(place: Place):
    """P6.6: lost at once, its finished runs would be run again."""
    first = new_worker()
    await place.greeting.greet(first, [])
    [me] = place.world.members
    job = await place.world.job()
    [run] = (await me.fire(firing(job))).runs
    [out] = await me.assigned(draft(run, worker="w", incarnation=first.id))
    second = next_incarnation(first)
    await place.greeting.greet(second, [(out.key, out.token)])
    await place.greeting._look_after()
    assert await place.live() == {first.id, second.id}
    await place.world.store.results.accept([report(out)])
    await place.greeting._look_after()
    assert await place.live() == {second.id}


async def test_a_lost_incarnation_is_notified_and_rejected_from_then_on(place: Place):
    one = new_worker()
    await place.greeting.greet(one, [])
    place.workers.attach(one, RecordingLine())
    await place.world.store.workers.lose([one.id], None)
    await place.greeting._look_after()
    assert await place.live() == set()
    answers: list[tuple[bool, bool]] = []
    place.greeting.record_heartbeat(
        one, TTL, lambda *, refreshed, lost: answers.append((refreshed, lost))
    )
    assert answers == [(False, True)]
    turned = await place.greeting.greet(one, [])
    assert isinstance(turned, RejectedHello)
    assert turned.reason == "INCARNATION_LOST"
    assert await place.live() == set()


async def test_a_lease_without_refreshes_ends_and_a_heartbeat_restores_the_key(short_ttl: Place):
    one = new_worker()
    await short_ttl.greeting.greet(one, [])

    async def gone() -> bool:
        return await short_ttl.live() == set()

    await wait_until_async(gone, WAIT_TIMEOUT, "the key of a silent worker to go")
    assert await short_ttl.leases.refresh([one])
    assert await short_ttl.live() == {one.id}


async def test_a_heartbeat_never_restores_a_worker_that_another_member_recorded_as_lost(
    place: Place,
):
    """P6.2: this member hasn't received the loss yet."""
    one = new_worker()
    await place.greeting.greet(one, [])
    await place.world.store.workers.lose([one.id], None)
    await place.leases.end("w", one.id)
    assert not await place.leases.refresh([one])
    assert await place.live() == set()


async def test_the_end_of_a_stream_keeps_the_lease(place: Place):
    """P6.1: the worker may be attached to every other member."""
    one = new_worker()
    await place.greeting.greet(one, [])
    place.greeting.forget_incarnation(one.id)
    await asyncio.sleep(0)
    entry = await place.etcd.get(f"workers/w/{one.id}")
    assert entry is not None
    assert await place.etcd.keepalive_once(entry.lease) > 0
    assert await place.leases.refresh([one])


async def test_heartbeats_keep_the_lease_for_longer_than_its_ttl(short_ttl: Place):
    one = new_worker()
    await short_ttl.greeting.greet(one, [])
    loop = asyncio.get_running_loop()
    until = loop.time() + 3 * SHORT
    while loop.time() < until:
        assert await short_ttl.leases.refresh([one])
        assert await short_ttl.live() == {one.id}
        await asyncio.sleep(SHORT / 4)


async def test_the_designated_member_refreshes_first_and_another_steps_in(place: Place):
    one = new_worker()
    store = place.world.store.workers
    other = WorkerLeases(place.etcd, store, "", TTL, lambda _incarnation: False, unwatched)
    assert not place.leases.due(one.id, TTL * 0.3)
    assert place.leases.due(one.id, TTL * 0.34)
    assert not other.due(one.id, TTL * 0.34)
    assert other.due(one.id, TTL * 0.51)


async def test_a_goodbye_removes_the_key_and_ends_the_incarnation(place: Place):
    """P6.1: only the worker itself says goodbye; no member waits for its TTL."""
    one = new_worker()
    await place.greeting.greet(one, [])
    await place.greeting.goodbye(one)
    assert await place.live() == set()
    [stored] = await place.world.store.workers.incarnations([one.id])
    assert stored.lost_at is not None


async def test_one_of_two_simultaneous_newcomers_is_rejected(place: Place):
    """P6.6: another spool is another worker, and one name serves one."""
    first = new_worker()
    duplicate = next_incarnation(first, spool_id="elsewhere")
    answers = await asyncio.gather(
        place.greeting.greet(first, []), place.greeting.greet(duplicate, [])
    )
    assert sum(answer is None for answer in answers) == 1
    welcome = first if answers[0] is None else duplicate
    assert await place.live() == {welcome.id}


async def test_a_key_without_a_valid_id_is_ignored(place: Place):
    one = new_worker()
    await place.greeting.greet(one, [])
    await place.etcd.put("workers/w/not-an-id", b"?")
    assert await place.live() == {one.id}


async def test_old_incarnations_of_a_worker_are_deleted_except_the_newest(
    place: Place,
):
    name, store = "many", place.world.store
    now = utcnow()
    made = [replace(new_worker(name), started_at=now - timedelta(days=100 + n)) for n in range(4)]
    for one in made:
        await store.workers.register(one)
    await place.world.sql(
        "UPDATE incarnations SET lost_at = clock_timestamp() - interval '91 days'"
        f" WHERE worker = '{name}' RETURNING 1"
    )
    await place.world.sql(
        f"UPDATE incarnations SET lost_at = clock_timestamp() WHERE id = '{made[0].id}' RETURNING 1"
    )
    await store.keep_house()
    assert [one.id for one in await store.workers.incarnations([one.id for one in made])] == [
        made[0].id
    ]
