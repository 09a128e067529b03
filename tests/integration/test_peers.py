"""Between members: wake-ups that no peer delays, and frames passed on over one hop (P4.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta

import grpc
import grpc.aio
import pytest

from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.dispatch.placement import Unable
from schedd.core.ids import SHARDS, Id, JobId, RunId, ShardId, new_id
from schedd.core.jobs.definition import Definition
from schedd.core.runs.model import Assigned
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.dispatch.workers.remote_workers import LastHeartbeat
from schedd.rpc.peers.peers import Peers
from schedd.rpc.peers.wake_ups import WakeUpSender
from schedd.rpc.workers.frame_queue import MOST_IN_FRAME, WorkerFrameQueue
from schedd.rpc.workers.relay import AskedRefusals, Relay
from schedproto.v1 import job_pb2
from schedproto.v1 import peer_service_pb2 as wire
from schedproto.v1 import worker_service_pb2 as down
from support.definitions import cached_definition
from support.peers import ME, OTHER, THIRD, Cluster, Peer, a_peer
from support.runs import NOW, SetClock, running, worker
from support.wait import WAIT_TIMEOUT, wait_until_async

KNOWN = cached_definition(
    Definition(1, "default", action="shell"),
    spec=job_pb2.Job(shell=job_pb2.ShellAction(argv=["true"])),
)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with a_peer() as made:
        yield made


@dataclass
class Hung:
    """A member that takes calls and answers none."""

    endpoint: str = ""
    calls: int = 0


@pytest.fixture
async def hung() -> AsyncIterator[Hung]:
    made = Hung()

    async def forever(_request: bytes, _context: object) -> bytes:
        made.calls += 1
        await asyncio.Event().wait()
        return b""

    silent = grpc.unary_unary_rpc_method_handler(forever)
    calls = {"WakeUp": silent, "Relay": silent, "Workers": silent}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("schedd.v1.PeerService", calls),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made.endpoint = f"127.0.0.1:{port}"
    yield made
    await server.stop(None)


@pytest.fixture
def cluster(peer: Peer) -> Cluster:
    made = Cluster()
    made.members = {ME: "127.0.0.1:1", OTHER: peer.endpoint}
    return made


@pytest.fixture
async def peers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peers]:
    """Peers with deadlines that are longer than a busy machine takes."""
    monkeypatch.setattr("schedd.rpc.peers.peers.DEADLINE", WAIT_TIMEOUT)
    monkeypatch.setattr("schedd.rpc.workers.relay.ANSWER_WITHIN", WAIT_TIMEOUT)
    made = Peers(cluster, None)  # type: ignore[arg-type]  # of the port's values, those used here
    task = asyncio.create_task(made.run(), name="peers")
    yield made
    task.cancel()
    await made.close()


async def test_one_hung_peer_delays_no_wake_up_of_another(
    cluster: Cluster, peers: Peers, peer: Peer, hung: Hung
):
    """M11: each peer has its own call; the call to the hung one lasts for all of WAIT_TIMEOUT."""
    soon = WAIT_TIMEOUT / 2
    cluster.members[THIRD] = hung.endpoint
    cluster.assigned = {ShardId(n): THIRD if n % 2 else OTHER for n in range(SHARDS)}
    nudger = WakeUpSender(cluster, peers)  # type: ignore[arg-type]  # as above
    sending = asyncio.create_task(nudger.run(), name="wake_ups")
    nudger.runs_ready([ShardId(1), ShardId(2)])
    await wait_until_async(lambda: ShardId(2) in peer.loops.shards, soon, "the first nudge")
    nudger.runs_ready([ShardId(3), ShardId(4)])
    await wait_until_async(lambda: ShardId(4) in peer.loops.shards, soon, "the second nudge")
    assert not peer.loops.shards & {ShardId(1), ShardId(3)}, "those are the hung one's"
    sending.cancel()


async def test_the_channel_to_a_member_that_left_is_closed(cluster: Cluster, peers: Peers):
    relay = Relay(peers)
    assert await relay.last_heartbeat(worker().id) is None
    channel = peers._channels[cluster.members[OTHER]]
    del cluster.members[OTHER]
    peers.members_changed()
    await wait_until_async(
        lambda: channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN,
        WAIT_TIMEOUT,
        "it to be closed",
    )
    assert peers._channels == {}


async def test_frames_for_a_worker_at_another_member_reach_that_workers_stream(
    peers: Peers, peer: Peer
):
    """P4.5: with the incarnation and the token that its owner wrote."""
    one, outbox = worker(), WorkerFrameQueue()
    attached = peer.workers.attach(one, outbox)
    peer.workers.granted(attached, slots=4, received=0)
    handed = Assigned(running(1, one), None)

    assert await Relay(peers).assign([(handed, KNOWN)]) == []

    frame = await outbox.next()
    [given] = frame.assignments
    assert (given.incarnation, given.key.fencing_token) == (str(one.id), handed.run.token)
    assert attached.available == 3, "what was passed on takes a slot of those granted here"


async def test_a_worker_is_attached_nowhere_only_if_all_members_say_so(
    cluster: Cluster, peers: Peers, hung: Hung, monkeypatch: pytest.MonkeyPatch
):
    """P4.5: an assignment that may have arrived must not be given back at once."""
    handed = Assigned(running(1, worker()), None)
    assert await Relay(peers).assign([(handed, KNOWN)]) == [handed]
    cluster.members[THIRD] = hung.endpoint
    monkeypatch.setattr("schedd.rpc.peers.peers.DEADLINE", 0.5)
    assert await Relay(peers).assign([(handed, KNOWN)]) == []


async def test_a_hung_peer_is_asked_about_all_workers_at_once(
    cluster: Cluster, peers: Peers, hung: Hung
):
    cluster.members[THIRD] = hung.endpoint
    handed = [(Assigned(running(n, worker(n)), None), KNOWN) for n in range(1, 11)]
    assigning = asyncio.create_task(Relay(peers).assign(handed), name="assign")
    asked = await wait_until_async(
        lambda: hung.calls == len(handed), WAIT_TIMEOUT, "all to be asked"
    )
    assert asked, "at once: while the first still waits"
    assigning.cancel()


async def test_a_revoke_over_one_hop_is_resolved_by_the_workers_answer(
    peers: Peers, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """P4.5: not by that of the member in between."""
    one, outbox = worker(), WorkerFrameQueue()
    peer.workers.attach(one, outbox)
    run = running(1, one)

    async def answer() -> None:
        [revoke] = (await outbox.next()).revokes
        assert revoke.key.fencing_token == run.token
        peer.workers.revoke_answered(RunId(Id.parse(revoke.key.run_id)), run.token)

    answering = asyncio.create_task(answer(), name="worker")
    assert await Relay(peers).revoke(one.id, [run]) == {(run.key.run_id, run.token)}
    await answering
    assert not await Relay(peers).revoke(worker(7).id, [run])
    monkeypatch.setattr("schedd.rpc.workers.relay.ANSWER_WITHIN", 0.2)
    assert not await Relay(peers).revoke(one.id, [running(2, one)]), "its worker said nothing"


async def test_assignments_over_the_message_limit_are_relayed_in_several_messages(
    peers: Peers, peer: Peer
):
    """P4.5: a member takes none over 4 MiB, and would have answered nothing."""
    one, outbox = worker(), WorkerFrameQueue()
    peer.workers.attach(one, outbox)
    big = cached_definition(
        KNOWN.definition, spec=job_pb2.Job(shell=job_pb2.ShellAction(argv=["x" * 700_000]))
    )
    handed = [Assigned(running(n, one), None) for n in range(1, 11)]
    assert await Relay(peers).assign([(each, big) for each in handed]) == []
    given: list[str] = []
    async with asyncio.timeout(WAIT_TIMEOUT):
        while len(given) < len(handed):
            given += [each.key.run_id for each in (await outbox.next()).assignments]
    assert sorted(given) == [str(each.run.key.run_id) for each in handed]


async def test_a_frame_with_the_most_assignments_is_accepted(peers: Peers, peer: Peer):
    """P4.5: each has dozens of parts, of which a user's request may have 20,000 (`reading`)."""
    one, outbox = worker(), WorkerFrameQueue()
    peer.workers.attach(one, outbox)
    shell = job_pb2.ShellAction(argv=["true"], env={f"NAME_{n}": "value" for n in range(16)})
    known = cached_definition(KNOWN.definition, spec=job_pb2.Job(shell=shell))
    handed = [Assigned(running(n, one), None) for n in range(1, MOST_IN_FRAME + 1)]
    assert await Relay(peers).assign([(each, known) for each in handed]) == []
    async with asyncio.timeout(WAIT_TIMEOUT):
        assert len((await outbox.next()).assignments) == MOST_IN_FRAME


async def test_only_assignments_that_surely_arrived_nowhere_are_returned(peers: Peers, peer: Peer):
    """Each message has its own answer."""
    big = cached_definition(
        KNOWN.definition, spec=job_pb2.Job(shell=job_pb2.ShellAction(argv=["x" * 700_000]))
    )
    handed = [Assigned(running(n, worker(1 + n % 2)), None) for n in range(1, 11)]
    peer.workers.attach(worker(1), WorkerFrameQueue())
    back = await Relay(peers).assign([(each, big) for each in handed])
    assert {each.run.incarnation for each in back} == {worker(2).id}
    assert len(back) == 5


async def test_any_number_of_revokes_is_resolved_by_the_workers_answers(peers: Peers, peer: Peer):
    one, outbox = worker(), WorkerFrameQueue()
    peer.workers.attach(one, outbox)
    runs = [running(n, one) for n in range(1, 2 * MOST_IN_FRAME + 2)]
    asked: list[str] = []

    async def answer() -> None:
        while len(asked) < len(runs):
            for revoke in (await outbox.next()).revokes:
                asked.append(revoke.key.run_id)
                peer.workers.revoke_answered(RunId(Id.parse(revoke.key.run_id)), runs[0].token)

    answering = asyncio.create_task(answer(), name="answering")
    async with asyncio.timeout(WAIT_TIMEOUT):
        assert len(await Relay(peers).revoke(one.id, runs)) == len(runs)
    await answering


async def test_a_cancel_is_relayed_over_one_hop(peers: Peers, peer: Peer):
    """P4.5: the harder one holds."""
    one, outbox = worker(), WorkerFrameQueue()
    peer.workers.attach(one, outbox)
    relay = Relay(peers)
    sending = asyncio.create_task(relay.run(), name="cancels")
    relay.cancel(running(1, one), kill=True)
    relay.cancel(running(1, one), kill=False)  # asked again, more gently: the harder one holds
    async with asyncio.timeout(WAIT_TIMEOUT):
        frame = await outbox.next()
    assert [each.kill for each in frame.cancels] == [True]
    sending.cancel()


async def test_answers_of_a_worker_at_another_member_arrive_over_one_hop(peers: Peers, peer: Peer):
    one = worker()
    attached = peer.workers.attach(one, WorkerFrameQueue())
    run = running(1, one)
    holding = Holdings.from_keys([(run.key.run_id, run.token)])
    at = NOW + timedelta(seconds=1)
    peer.workers.record_heartbeat(attached, at, holding, free=1, since_refresh=0, draining=False)

    assert await Relay(peers).last_heartbeat(one.id) == LastHeartbeat(at, holding)


async def test_any_member_returns_the_refusals_that_the_shards_owner_knows(
    cluster: Cluster, peers: Peers, peer: Peer
):
    """The owner dispatches its runs, and it alone receives their refusals."""
    one, job, shard = worker(), JobId(new_id()), ShardId(1)
    here = WorkerRegistry(SetClock(), lambda _event: None)
    refusals = AskedRefusals(cluster, here, peers)  # type: ignore[arg-type]
    peer.workers.attach(one, WorkerFrameQueue())
    peer.workers.unable(one.id, job, Unable(2, "no such limits"))

    assert await refusals.refusals_of_job(shard, job, 2) == {}, (
        "no member owns it, and no refusal arrived here"
    )
    cluster.assigned = {shard: OTHER}
    assert await refusals.refusals_of_job(shard, job, 2) == {one.id: "no such limits"}
    assert await refusals.refusals_of_job(shard, job, 3) == {}, (
        "another generation, which it hasn't seen"
    )
    assert await refusals.refusals_of_job(shard, JobId(new_id()), 2) == {}
    cluster.assigned = {shard: ME}
    assert await refusals.refusals_of_job(shard, job, 2) == {}


async def test_a_member_returns_its_own_refusals_if_the_owner_is_unavailable_or_older(
    cluster: Cluster, peers: Peers
):
    one, job, shard = worker(), JobId(new_id()), ShardId(1)
    here = WorkerRegistry(SetClock(), lambda _event: None)
    here.attach(one, WorkerFrameQueue())
    here.unable(one.id, job, Unable(2, "no such limits"))
    cluster.members[THIRD] = "127.0.0.1:1"
    cluster.assigned = {shard: THIRD}
    refusals = AskedRefusals(cluster, here, peers)  # type: ignore[arg-type]
    assert await refusals.refusals_of_job(shard, job, 2) == {one.id: "no such limits"}


async def test_only_frames_about_runs_are_relayed(peers: Peers, peer: Peer):
    one, outbox = worker(), WorkerFrameQueue()
    peer.workers.attach(one, outbox)
    await Relay(peers)._ask_each(one.id, [down.MemberFrame(drain=down.Drain())])
    outbox.demand([])
    assert not (await outbox.next()).HasField("drain")


async def test_a_workers_view_comes_from_the_member_that_receives_its_heartbeats(
    peers: Peers, peer: Peer
):
    """All of it, as that member tells it itself."""
    one = worker()
    attached = peer.workers.attach(one, WorkerFrameQueue())
    peer.workers.record_heartbeat(
        attached,
        NOW,
        Holdings(bytes(8 * 24), spooled=bytes(3 * 24)),
        free=2,
        since_refresh=1.5,
        draining=True,
        disk=(5, 7),
        refusal_reason="its disk is full",
    )
    [there] = peer.workers.workers()
    [view] = await Relay(peers).views([one, worker(2)])
    assert view.silent >= there.silent
    assert view.lease_age >= there.lease_age >= 1.5
    ages = {"lease_age": view.lease_age, "silent": view.silent}
    assert view == replace(there, **ages)


async def test_about_a_thousand_workers_each_member_is_asked_once(
    cluster: Cluster, peers: Peers, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """As by a member that has just started, to which none has come yet."""
    workers = [worker(number) for number in range(1, 1001)]
    for one in workers[1:]:
        peer.workers.attach(one, WorkerFrameQueue())
    asked: list[int] = []
    ask = peers.call

    async def counted(
        endpoint: str, request: wire.WorkersRequest, answer: type[wire.WorkersResponse]
    ) -> wire.WorkersResponse:
        asked.append(len(request.incarnations))
        return await ask(endpoint, request, answer)

    monkeypatch.setattr(peers, "call", counted)
    here = WorkerRegistry(SetClock(), lambda _event: None)
    here.elsewhere = Relay(peers)
    found = await here.views(workers)
    assert [view.heartbeats_missing for view in found] == [True] + [False] * 999
    assert asked == [1000]


async def test_a_hung_peer_does_not_delay_views_of_other_peers(
    cluster: Cluster, peers: Peers, peer: Peer, hung: Hung, monkeypatch: pytest.MonkeyPatch
):
    peer.workers.attach(worker(), WorkerFrameQueue())
    cluster.members[THIRD] = hung.endpoint
    monkeypatch.setattr("schedd.rpc.peers.peers.DEADLINE", 0.5)
    async with asyncio.timeout(WAIT_TIMEOUT):
        [view] = await Relay(peers).views([worker()])
    assert view.incarnation == worker()
    assert hung.calls == 1


async def test_the_view_of_the_member_with_the_last_heartbeat_is_used(
    cluster: Cluster, peers: Peers, peer: Peer
):
    async with a_peer() as third:
        cluster.members[THIRD] = third.endpoint
        for at, silent, running_there in ((peer, 60.0, 8), (third, 1.0, 2)):
            attached = at.workers.attach(worker(), WorkerFrameQueue(), running=running_there)
            attached.spoke_at -= silent
        [view] = await Relay(peers).views([worker()])
    assert view.running == 2


async def test_a_question_about_an_invalid_worker_is_refused(peers: Peers, peer: Peer):
    async with grpc.aio.insecure_channel(peer.endpoint) as channel:
        call = channel.unary_unary("/schedd.v1.PeerService/Workers")
        with pytest.raises(grpc.aio.AioRpcError, match="must have 16"):
            await call(wire.WorkersRequest(incarnations=[b"short"]).SerializeToString())
