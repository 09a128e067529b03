"""Submits whose runs are dispatched by the transaction that stores them, on a real database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from schedd.core.ids import SHARDS, Id, RunId, ShardId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Timer
from schedd.core.runs.records import Unstarted
from schedd.core.timers.cluster_pauses import Pause, Pauses
from schedd.dispatch.held_timers import Planned
from schedd.store.jobs.submits import submit_all
from schedkit.errors import OutcomeUnknown, Unavailable
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as wire_jobs
from schedproto.v1 import pool_service_pb2 as pools
from schedproto.v1 import run_service_pb2 as wire
from support.real_owner import RealOwner
from support.runs import RecordingLine, worker
from support.store import Member, firing, report
from support.wait import WAIT_TIMEOUT, wait_until, wait_until_async

SLOTS = 4
RUNNING, PENDING = common_pb2.RUN_STATE_RUNNING, common_pb2.RUN_STATE_PENDING
SHELL = job_pb2.ShellAction(argv=["true"])


@pytest.fixture
def owner(api: Any) -> RealOwner:
    return RealOwner(api.world.members[0])


@pytest.fixture
def line(owner: RealOwner) -> RecordingLine:
    return owner.attach(worker(slots=SLOTS))[0]


def submit(key: str = "", delay: timedelta = timedelta(0), **spec: Any) -> wire.SubmitRunRequest:
    request = wire.SubmitRunRequest(
        spec=job_pb2.Job(**{"shell": SHELL, **spec}), idempotency_key=key
    )
    if delay:
        request.delay.FromTimedelta(delay)
    return request


def sent(line: RecordingLine) -> list[str]:
    return [str(run.key.run_id) for run in line.assigned]


async def live(owner: RealOwner, state: State) -> list[LiveRun]:
    return await owner.me.store.owner.live_runs(map(ShardId, range(SHARDS)), [state])


async def states(api: Any) -> list[tuple[str, bool]]:
    return await api.world.sql("SELECT state, token > 0 FROM runs ORDER BY created_at, run_id")


async def test_a_submit_is_stored_as_running_and_sent_to_the_worker_with_a_free_slot(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    answer = await api("SubmitRun", submit())

    [run] = line.assigned
    assert sent(line) == [answer.run_id]
    assert (answer.state, answer.worker) == (RUNNING, "w1")
    read = await api("GetRun", wire.GetRunRequest(run_id=answer.run_id))
    assert answer == read
    assert owner.run_index.running[run.key.run_id] == run
    assert owner.free == SLOTS - 1
    [stored] = await owner.me.store.owner.live_runs([run.shard], [State.RUNNING])
    assert stored == run
    await owner.me.store.results.accept([report(run)])
    assert await states(api) == [("SUCCEEDED", True)]


async def test_its_row_is_that_of_a_run_that_was_stored_and_then_dispatched(
    api: Any, owner: RealOwner, line: RecordingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = common_pb2.Payload(json='{"n": 1}')
    await api("SubmitRun", submit(payload=payload))
    monkeypatch.setattr(owner.me.store.users.submit_hook, "store", None)
    await api("SubmitRun", submit(payload=payload))
    [waiting] = await live(owner, State.PENDING)
    owner.run_index.put_runs([waiting], owner.clock.now())
    await owner.dispatch.step()

    assert len(line.assigned) == 2
    varies = {"run_id", "job_id", "shard", "token", "created_at", "assigned_at", "start_by"}
    varies |= {"scheduled_at", "due_at", "ready_at"}
    first, second = [
        {name: value for name, value in row.items() if name not in varies}
        for [row] in await api.world.sql("SELECT to_jsonb(r) FROM runs r")
    ]
    assert first == second
    assert first["state"] == "RUNNING"
    assert await api.world.sql("SELECT count(*) FROM live") == [(2,)]


async def test_each_run_of_a_batch_is_sent_with_its_own_payload(
    api: Any, owner: RealOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, _ = owner.attach(worker(slots=30))
    payloads: dict[str, bytes] = {}
    assign = line.assign

    def record(batch: Any, known: Any) -> None:
        payloads.update({str(one.run.key.run_id): one.payload for one in batch.single()})
        assign(batch, known)

    monkeypatch.setattr(line, "assign", record)
    large = common_pb2.Payload(raw=b"x" * 5_000)
    wanted = [large, common_pb2.Payload(json="2"), None] * 10
    batch = wire.BatchSubmitRunsRequest(
        requests=[submit(**({} if one is None else {"payload": one})) for one in wanted]
    )

    answer = await api("BatchSubmitRuns", batch)

    expected = [one if one is None else one.SerializeToString() for one in wanted]
    assert len(payloads) > 1, "of one lane"
    assert payloads == {
        each.run.run_id: own
        for each, own in zip(answer.results, expected, strict=True)
        if each.run.state == RUNNING
    }


@pytest.mark.parametrize(
    "spec",
    [
        {"delivery": job_pb2.DELIVERY_AT_MOST_ONCE},
        {"placement": job_pb2.PLACEMENT_BROADCAST},
        {"placement": job_pb2.PLACEMENT_PACK},
        {"start_deadline": Duration(seconds=60)},
        {"run_timeout": Duration(seconds=60)},
        {"pool": "narrow"},
    ],
    ids=lambda spec: "-".join(spec),
)
async def test_a_run_that_its_definition_limits_waits_for_dispatch(
    api: Any, owner: RealOwner, line: RecordingLine, spec: dict[str, Any]
) -> None:
    await api("SetPool", pools.SetPoolRequest(pool=pools.Pool(name="narrow", limit=1)))

    answer = await api("SubmitRun", submit(**spec))

    assert answer.state == PENDING
    assert line.assigned == []
    assert owner.free == SLOTS


async def test_a_delayed_run_waits_until_it_is_due(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    await api("SubmitRun", submit(delay=timedelta(minutes=1)))
    assert await states(api) == [("PENDING", False)]
    assert line.assigned == []
    assert owner.free == SLOTS


async def test_a_large_payload_isnt_sent_under_the_lock_of_its_shard(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    """P1.5"""
    large = common_pb2.Payload(raw=b"x" * 200_000)
    assert (await api("SubmitRun", submit(payload=large))).state == PENDING
    assert owner.free == SLOTS


async def test_without_a_free_slot_a_run_waits_for_dispatch(api: Any, owner: RealOwner) -> None:
    line, _ = owner.attach(worker(slots=1))
    first = await api("SubmitRun", submit())
    second = await api("SubmitRun", submit())
    assert sent(line) == [first.run_id]
    assert second.state == PENDING


async def test_of_a_batch_the_urgent_runs_take_the_slots_in_one_transaction(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    lanes = owner.ownership.lanes
    urgent = {"priority": common_pb2.PRIORITY_HIGH}
    batch = wire.BatchSubmitRunsRequest(
        requests=[submit() for _ in range(20)] + [submit(**urgent) for _ in range(20)]
    )

    answer = await api("BatchSubmitRuns", batch)

    assert len(answer.results) == 40
    started = len(line.assigned)
    assert 1 <= started <= SLOTS
    assert {run.priority for run in line.assigned} == {Priority.HIGH}
    assert len({run.shard % lanes for run in line.assigned}) == 1, "one transaction, one lane"
    assert owner.free == SLOTS - started
    found = await api.world.sql("SELECT state, count(*) FROM runs GROUP BY state ORDER BY state")
    assert found == [("PENDING", 40 - started), ("RUNNING", started)]
    assert len(await api.world.sql("SELECT DISTINCT xmin::text FROM runs")) == 1


async def test_no_submit_overtakes_a_waiting_run_that_could_use_the_slot(
    api: Any, owner: RealOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Priorities hold, whatever the classes of the two."""
    monkeypatch.setattr(owner.me.store.users.submit_hook, "store", None)
    await api("SubmitRun", submit(priority=common_pb2.PRIORITY_LOW))
    monkeypatch.undo()
    [waiting] = await live(owner, State.PENDING)
    owner.run_index.put_runs([waiting], owner.clock.now())
    line, _ = owner.attach(worker(slots=SLOTS))

    answer = await api("SubmitRun", submit(priority=common_pb2.PRIORITY_HIGH))

    assert answer.state == PENDING
    await owner.dispatch.step()
    assert sent(line) == [str(waiting.key.run_id)]
    assert (await api("SubmitRun", submit())).state == RUNNING


async def test_no_submit_overtakes_a_run_of_the_transaction_before_it(
    api: Any, owner: RealOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of that run queues it before slots are chosen for the next transaction."""
    began, released = threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        began.set()
        assert released.wait(WAIT_TIMEOUT)
        return submit_all(*arguments)

    def queue(runs: Sequence[LiveRun], _definitions: object) -> None:
        owner.run_index.put_runs(runs, owner.clock.now())

    monkeypatch.setattr("schedd.store.user_store.submit_all", held)
    monkeypatch.setattr(api.nudged, "runs_created", queue)
    calls = owner.me.store.users.submits
    urgent = asyncio.create_task(api("SubmitRun", submit(priority=common_pb2.PRIORITY_HIGH)))
    await asyncio.to_thread(began.wait, WAIT_TIMEOUT)
    other = asyncio.create_task(api("SubmitRun", submit(priority=common_pb2.PRIORITY_LOW)))
    await wait_until_async(
        lambda: calls._waiting, WAIT_TIMEOUT, "a call that waits for the transaction"
    )
    line, _ = owner.attach(worker(slots=1))
    released.set()

    assert (await urgent).state == PENDING
    assert (await other).state == PENDING
    assert line.assigned == []
    await owner.dispatch.step()
    assert sent(line) == [(await urgent).run_id]


async def test_of_a_batch_no_run_takes_slots_that_a_more_urgent_one_waits_for(
    api: Any, owner: RealOwner
) -> None:
    """The urgent run is limited by its definition, so it waits for dispatch."""
    owner.ownership.lanes = 1
    line, _ = owner.attach(worker(slots=2))
    urgent = {"priority": common_pb2.PRIORITY_HIGH, "slots": 2}
    limited = submit(start_deadline=Duration(seconds=60), **urgent)
    batch = wire.BatchSubmitRunsRequest(requests=[submit(), limited])

    answer = await api("BatchSubmitRuns", batch)

    assert [each.run.state for each in answer.results] == [PENDING, PENDING]
    assert line.assigned == []
    assert owner.free == 2


async def test_a_definition_whose_run_waits_for_a_worker_isnt_kept_as_that_of_a_dispatched_one(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    """Definitions of waiting runs fill at most half of the cache."""
    await api("SubmitRun", submit(shell=None, grpc=job_pb2.GrpcAction(endpoint="localhost:1")))
    [waiting] = await live(owner, State.PENDING)
    assert not owner.definition_cache.knows(waiting.job_id)


@pytest.mark.parametrize("late", [False, True])
async def test_no_submit_takes_the_slot_that_a_due_timer_waits_for(
    api: Any, owner: RealOwner, late: bool
) -> None:
    """P3.4: the timer's run is fired into it."""
    job = job_pb2.Job(name="hourly", shell=SHELL, every=Duration(seconds=3600))
    await api("CreateJob", wire_jobs.CreateJobRequest(job=job))
    record = await api.services.store.get_job("default", "hourly")
    job_id, now = record.definition.job_id, owner.clock.now()
    known = (await owner.definition_cache.newest([job_id]))[job_id]
    timer = Timer(job_id, record.shard, 1, now, now)
    step = firing(record, at=now)
    step = replace(step, runs=(replace(step.runs[0], ready_at=now if late else None),))
    owner.run_index.held_timers.hold([Planned([(timer, known)], step)])
    line, _ = owner.attach(worker(slots=1))

    assert (await api("SubmitRun", submit())).state == PENDING
    owner.run_index.held_timers.release(owner.clock.now())
    assert (await api("SubmitRun", submit())).state == RUNNING
    assert len(line.assigned) == 1


async def test_a_run_that_no_worker_can_do_delays_no_submit(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    await api("SubmitRun", submit(shell=None, grpc=job_pb2.GrpcAction(endpoint="localhost:1")))
    [waiting] = await live(owner, State.PENDING)
    owner.run_index.put_runs([waiting], owner.clock.now())
    await owner.dispatch.step()
    assert (await api("SubmitRun", submit())).state == RUNNING


async def test_until_all_waiting_runs_were_read_a_submit_waits_for_dispatch(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    """A run of a shard that was just taken over may go before it."""
    owner.ownership.drop([ShardId(3)])
    owner.ownership.gain({ShardId(3): owner.me.epochs[ShardId(3)]})
    assert (await api("SubmitRun", submit())).state == PENDING
    owner.run_index.were_read([ShardId(3)])
    assert (await api("SubmitRun", submit())).state == RUNNING


async def test_a_submit_doesnt_wait_for_the_owners_other_transactions(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    with owner.ownership.in_flight(0), owner.ownership.in_flight(1):
        assert (await api("SubmitRun", submit())).state == PENDING
    assert line.assigned == []


async def test_a_repeated_call_returns_the_first_run_and_starts_nothing(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    first = await api("SubmitRun", submit("order-42"))
    again = await api("SubmitRun", submit("order-42"))
    batch = wire.BatchSubmitRunsRequest(requests=[submit("order-42"), submit("order-42")])
    repeated = (await api("BatchSubmitRuns", batch)).results

    assert again.run_id == first.run_id
    assert [each.run.run_id for each in repeated] == [first.run_id] * 2
    assert sent(line) == [first.run_id]
    assert owner.free == SLOTS - 1
    assert await states(api) == [("RUNNING", True)]


async def test_during_a_cluster_pause_a_submit_starts_nothing(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    """P3.11: the row decides, whether this member knows of the pause or not."""
    await api.world.sql("UPDATE cluster SET paused = true")
    answer = await api("SubmitRun", submit())
    assert answer.state == PENDING
    present = Pause(owner.clock.now(), "tester", "maintenance")
    owner.cluster_pause.pauses = Pauses(1, (present,))
    await api("SubmitRun", submit())
    assert await states(api) == [("PENDING", False)] * 2
    assert line.assigned == []
    assert owner.free == SLOTS


async def test_an_owner_without_trust_in_its_lease_starts_nothing(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    owner.trust = False
    assert (await api("SubmitRun", submit())).state == PENDING
    assert line.assigned == []


async def test_an_owner_that_was_replaced_before_the_fence_stores_the_run_as_pending(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    """P1.1, P1.2: it draws no token for a shard that it lost, and drops the shard."""
    other = await api.world.member(take=False)
    await owner.me.store.membership.release(owner.me.claim(*range(SHARDS)))
    await other.take()

    answer = await api("SubmitRun", submit())

    assert answer.state == PENDING
    assert await states(api) == [("PENDING", False)]
    assert line.assigned == []
    assert owner.free == SLOTS
    [(shard,)] = await api.world.sql("SELECT shard FROM runs")
    assert shard not in owner.ownership.epochs


async def test_a_submit_waits_for_no_session_that_has_locked_its_shard(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    """P1.1: without the lock, the run is stored as PENDING. The shard isn't lost."""
    other = await api.world.member(take=False)
    held, released = threading.Event(), threading.Event()

    def hold(connection: Any) -> None:
        connection.exec_driver_sql("SELECT FROM shards FOR NO KEY UPDATE")
        held.set()
        assert released.wait(WAIT_TIMEOUT)

    holding = asyncio.create_task(other.store.database.call(hold))
    await asyncio.to_thread(held.wait, WAIT_TIMEOUT)

    assert (await api("SubmitRun", submit())).state == PENDING
    released.set()
    await holding
    assert line.assigned == []
    assert owner.free == SLOTS
    assert len(owner.ownership.epochs) == SHARDS
    assert (await api("SubmitRun", submit())).state == RUNNING


async def test_a_takeover_between_fence_and_commit_waits_and_finds_the_dispatched_run(
    api: Any, owner: RealOwner, line: RecordingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1.1: the shard's row is locked until the COMMIT."""
    other = await api.world.member(take=False)
    loop, released = asyncio.get_running_loop(), asyncio.Event()

    async def release() -> None:
        await other.store.database.call(
            lambda c: c.exec_driver_sql("UPDATE shards SET owner = NULL")
        )
        released.set()

    tasks: list[Any] = []

    def depose() -> None:
        tasks.append(asyncio.run_coroutine_threadsafe(release(), loop))
        wait_until(lambda: blocked(other), WAIT_TIMEOUT, "a takeover that waits for the fence")
        assert not released.is_set()

    monkeypatch.setattr("schedd.store.owner.BEFORE_SUBMIT", depose)

    answer = await api("SubmitRun", submit())

    assert answer.state == RUNNING
    [run] = line.assigned
    await asyncio.wrap_future(tasks[0])
    await other.take()
    assert await other.store.owner.live_runs([run.shard], [State.RUNNING]) == [run]
    await other.store.results.accept([report(run)])
    assert await states(api) == [("SUCCEEDED", True)]


def blocked(member: Member) -> bool:
    """Return whether a session waits for a lock of another one."""
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
    return bool(member.store.database.transact(lambda c: c.exec_driver_sql(waiting).first()))


async def test_after_a_commit_in_doubt_nothing_is_sent_and_the_run_is_given_back(
    api: Any, owner: RealOwner, line: RecordingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1.4: the scan finds the row, whose assignment never started (P4.3)."""

    async def no_answer() -> None:
        raise OutcomeUnknown("no answer to COMMIT")

    monkeypatch.setattr("schedd.dispatch.submits.AFTER_COMMIT", no_answer)
    with pytest.raises(OutcomeUnknown):
        await api("SubmitRun", submit("order-42"))
    monkeypatch.undo()

    assert line.assigned == []
    assert owner.free == SLOTS
    assert owner.run_index.running == {}
    [run] = await live(owner, State.RUNNING)
    unstarted = Unstarted(run.key, run.shard, run.token)
    [back] = await owner.transactor.rows([unstarted], owner.me.store.owner.give_back)
    assert (back.state, back.token) == (State.PENDING, run.token)
    again = await api("SubmitRun", submit("order-42"))
    assert again.run_id == str(run.key.run_id)
    owner.run_index.put_runs([replace(back, ready_at=owner.clock.now())], owner.clock.now())
    await api.world.sql("UPDATE runs SET ready_at = due_at")
    await owner.dispatch.step()
    [sent_run] = line.assigned
    assert (sent_run.key, sent_run.token > run.token) == (run.key, True)


async def test_a_transaction_that_failed_leaves_no_run_and_frees_the_slot(
    api: Any, owner: RealOwner, line: RecordingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise Unavailable("the database has gone")

    monkeypatch.setattr("schedd.store.owner.BEFORE_SUBMIT", fail)
    with pytest.raises(Unavailable):
        await api("SubmitRun", submit())
    assert await states(api) == []
    assert line.assigned == []
    assert owner.free == SLOTS


async def test_a_run_of_a_worker_that_left_after_the_commit_becomes_ready_again(
    api: Any, owner: RealOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4.5: no member has the worker, so it never received the token."""
    line, attached = owner.attach(worker(slots=SLOTS))

    async def leave() -> None:
        owner.workers.detach(attached)

    monkeypatch.setattr("schedd.dispatch.submits.AFTER_COMMIT", leave)
    answer = await api("SubmitRun", submit())
    monkeypatch.undo()

    assert line.assigned == []
    [(state, token)] = await api.world.sql("SELECT state, token FROM runs")
    assert (state, token > 0) == ("PENDING", True)
    run_id = RunId(Id.parse(answer.run_id))
    assert run_id in owner.run_index.waiting or run_id in owner.run_index.ready
    again, _ = owner.attach(worker(2, slots=SLOTS))
    await asyncio.sleep(0.1)  # its backoff
    await owner.dispatch.step()
    assert sent(again) == [answer.run_id]


async def test_a_call_succeeds_although_its_run_cant_be_given_back_now(
    api: Any, owner: RealOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stored: the scan gives it back later."""
    _, attached = owner.attach(worker(slots=SLOTS))

    async def leave() -> None:
        owner.workers.detach(attached)

    async def away(*_: object) -> list[Any]:
        raise Unavailable("the database has gone")

    monkeypatch.setattr("schedd.dispatch.submits.AFTER_COMMIT", leave)
    monkeypatch.setattr(type(owner.me.store.owner), "give_back", away)
    answer = await api("SubmitRun", submit())
    assert answer.state == RUNNING
    assert await states(api) == [("RUNNING", True)]


async def test_a_run_canceled_right_after_its_submit_ends_canceled(
    api: Any, owner: RealOwner, line: RecordingLine
) -> None:
    answer = await api("SubmitRun", submit())
    await api("CancelRun", wire.CancelRunRequest(run_id=answer.run_id))
    [run] = line.assigned
    assert api.lines.cancelled == [run.key.run_id]
    await owner.me.store.results.accept([report(run)])
    assert await states(api) == [("CANCELLED", True)]
