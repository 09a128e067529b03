"""Frames and calls made from the descriptors: no member and no worker ends by any of them.

`FUZZ_MESSAGES` of them (1,000 unless it says otherwise), by a seed that is printed and that
`FUZZ_SEED` repeats: boundary values of every field, frames in the wrong order, frames and calls of
the wrong identity. While they come, the loop of the member is never blocked for long; afterwards
its memory is what it was, and work is done.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from schedclient import SyncClient
from schedctl.dev.servers.etcd import fetch
from schedd.api import calls
from schedd.core.ids import Id
from schedkit.clock import utcnow
from schedproto.v1 import job_pb2, peer_service_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.cluster import DevCluster, dev_cluster
from support.fuzzing import Fuzz, request_of
from support.raw_worker import RawWorker, hello
from support.wait import WAIT_TIMEOUT, wait_until, wait_until_async
from support.worker_process import WorkerProcess
from support.worker_process import cluster as worker_cluster

MESSAGES: Final = int(os.environ.get("FUZZ_MESSAGES", "1000"))
AT_ONCE: Final = 4
FRAMES: Final = 40
"""Of one stream, at most."""
LONGEST_BLOCK: Final = 0.2
"""Seconds."""
MOST_GROWN: Final = 96 * 1024
"""KiB of a process that stay: caches, and connections that the system hasn't closed yet."""
BUGS: Final = frozenset({"UNKNOWN", "INTERNAL"})
"""Statuses that no call should have, whatever it is asked."""
LEFT_OUT: Final = ("PauseCluster", "DrainWorker", "TransferLeader", "CreateToken")
"""Calls that any message is enough for to stop what the others are to meet."""


@pytest.fixture
def seed() -> int:
    given = os.environ.get("FUZZ_SEED")
    found = int(given) if given else 37 if os.environ.get("CI") else random.randrange(10**6)
    print(f"FUZZ_SEED={found} FUZZ_MESSAGES={MESSAGES}")
    return found


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    short = ["schedd.member_ttl=5s", "schedd.worker_ttl=3s"]
    with dev_cluster(request.session, members=1, workers=1, slots=4, overrides=short) as made:
        yield made


def processor_load() -> float:
    """How many processes want each processor: a busy loop waits so many times as long."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def rss(pid: int) -> int:
    """KiB."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def longest_block(cluster: DevCluster) -> float:
    """Of the last minute or two, in seconds."""
    answer = fetch(f"http://{cluster.entry('m1')['http']}/metrics")
    assert answer is not None
    text = answer.body.decode() if isinstance(answer.body, bytes) else answer.body
    [longest] = re.findall(r"^schedd_event_loop_longest_block_seconds (\S+)", text, re.MULTILINE)
    return float(longest)


@pytest.mark.timeout(7200)
async def test_no_message_ends_a_member_or_a_worker(
    place: DevCluster, seed: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    member, worker = place.process("m1"), place.process("w1")
    assert place.schedctl("submit", "--wait", "--", "true").returncode == 0
    known, key = _known(place)
    luck = random.Random(seed)
    fuzz = Fuzz(luck, known)
    ups, asks = Up(place.endpoints[0], fuzz, key), Asks(place.endpoints[0], fuzz)
    await asyncio.gather(ups.send(MESSAGES // 40), asks.send(MESSAGES // 40))  # caches are filled
    before = rss(member.pid)
    blocks = Blocks(place)
    async with blocks.watched():
        await asyncio.gather(ups.send(MESSAGES // 2), asks.send(MESSAGES // 2))
    figure(
        f"fuzz, seed {seed}: {ups.sent:,} frames up, {asks.sent:,} calls, streams ended by"
        f" {dict(ups.ended.most_common(4))}, calls by {dict(asks.answers.most_common(6))};"
        f" longest block {blocks.longest:.3f} s ({blocks.crowding:.1f} processes"
        " want each processor);"
        f" {before // 1024} MiB before, {rss(member.pid) // 1024} MiB after"
    )
    assert asks.bugs == []
    assert place.process("m1") == member, "the member ended"
    assert place.process("w1") == worker, "the worker ended"
    # Whatever is out of its bounds is set aside by the table of its bounds, without an exception.
    assert place.log("m1").count("Traceback") == 0, place.log("m1")[-4_000:]
    assert blocks.longest < LONGEST_BLOCK * blocks.crowding
    wait_until(
        lambda: rss(member.pid) < before + MOST_GROWN,
        4 * WAIT_TIMEOUT,
        "the member's memory to return",
    )
    done = place.schedctl("submit", "--wait", "--", "true")
    assert done.returncode == 0, done.stderr


def _known(place: DevCluster) -> tuple[dict[str, Sequence[Any]], pb.AssignmentKey]:
    """Return existing names and ids, and the key of a run in progress."""
    with SyncClient(place.endpoints) as client:
        client.jobs.create("held", on_demand=True, shell={"argv": ["sleep", "3600"]})
        client.jobs.trigger("held")

    def running() -> Any:
        found = place.json("run", "list", "--job", "held")
        return next((one for one in found if one["state"].lower() == "running"), None)

    live = wait_until(running, WAIT_TIMEOUT, "a run to run")
    key = pb.AssignmentKey(run_id=live["runId"], fencing_token=int(live["fencingToken"]))
    key.scheduled_at.FromJsonString(live["scheduledAt"])
    known: dict[str, Sequence[Any]] = {
        "run_id": [key.run_id, str(Id.from_int(1))],
        "fencing_token": [key.fencing_token, key.fencing_token + 1],
        "incarnation": [live["incarnation"]] if live.get("incarnation") else [str(Id.from_int(2))],
        "job_id": [live["jobId"]],
        "job": ["held"],
        "worker": ["w1", "fuzz-1"],
        "namespace": ["default"],
        "name": ["made"],
    }
    return known, key


class Blocks:
    """The longest block of the member's loop while it is watched."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self.longest, self.crowding = 0.0, 1.0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch(), name="blocks")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._look()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(10)
            await self._look()

    async def _look(self) -> None:
        self.longest = max(self.longest, await asyncio.to_thread(longest_block, self._cluster))
        self.crowding = max(self.crowding, processor_load())


class Up:
    """Frames of workers that were never there."""

    def __init__(self, endpoint: str, fuzz: Fuzz, key: pb.AssignmentKey) -> None:
        self._endpoint, self._fuzz, self._key = endpoint, fuzz, key
        self.sent = 0
        self.ended: Counter[str] = Counter()

    async def send(self, count: int) -> None:
        """So many frames, over several streams at a time."""
        until = self.sent + count
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._streams(until), name="frames up")

    async def _streams(self, until: int) -> None:
        while self.sent < until:
            async with RawWorker(self._endpoint, self._hello()) as worker:
                if self._fuzz.luck.random() < 0.9:  # else it doesn't wait for its welcome
                    await wait_until_async(
                        lambda worker=worker: worker.frames or worker.status,
                        WAIT_TIMEOUT,
                        "a welcome",
                    )
                for _ in range(self._fuzz.luck.randrange(1, FRAMES)):
                    if worker.status is not None or self.sent >= until:
                        break
                    await worker.send(self.frame())
                    self.sent += 1
                self.ended[worker.status[0] if worker.status else "left"] += 1

    def _hello(self) -> pb.Hello:
        luck = self._fuzz.luck
        name = luck.choice(["fuzz-1", "fuzz-2", "fuzz-3", "w1"])
        if luck.random() < 0.2:
            made = self._fuzz.message(pb.Hello)
            if luck.random() < 0.5:
                made.worker, made.spool_id = name, name
            return made
        return hello(name, slots=luck.choice([0, 1, 1_000]))

    def frame(self) -> pb.WorkerFrame:
        """Return a random frame; now and then one of the run in progress."""
        luck = self._fuzz.luck
        frame = self._fuzz.message(pb.WorkerFrame)
        if luck.random() < 0.9:
            frame.ClearField("hello")
        if luck.random() < 0.95:
            frame.ClearField("goodbye")
        if frame.HasField("heartbeat") and luck.random() < 0.7:
            beat = frame.heartbeat
            beat.held.running, beat.held.waiting = self._fuzz.held(), self._fuzz.held()
            if luck.random() < 0.8:
                beat.worker_cluster_time.FromDatetime(utcnow())
                beat.ClearField("holdings")
        for batch in frame.result_batches:
            if luck.random() < 0.7:
                self._fuzz.columns(batch)
            if luck.random() < 0.5:
                batch.incarnation = luck.choice(self._fuzz.known["incarnation"])
        for items in (frame.results, frame.refusals, frame.revoke_answers, frame.progress):
            for item in items:
                if luck.random() < 0.5:
                    item.key.CopyFrom(self._key)
                if luck.random() < 0.1:
                    item.key.scheduled_at.seconds = 253_370_764_800
        return frame


class Asks:
    """Calls of users and of members."""

    def __init__(self, endpoint: str, fuzz: Fuzz) -> None:
        self._endpoint, self._fuzz = endpoint, fuzz
        self.sent = 0
        self.answers: Counter[str] = Counter()
        self.bugs: list[str] = []
        peers = peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"].methods
        self._methods = [m for m in (*calls.methods(), *peers) if m.name not in LEFT_OUT]

    async def send(self, count: int) -> None:
        """So many calls, several at a time."""
        until = self.sent + count
        async with (
            grpc.aio.insecure_channel(self._endpoint) as channel,
            asyncio.TaskGroup() as all_,
        ):
            for _ in range(AT_ONCE):
                all_.create_task(self._calls(channel, until), name="calls")

    async def _calls(self, channel: grpc.aio.Channel, until: int) -> None:
        while self.sent < until:
            method = self._fuzz.luck.choice(self._methods)
            request = self._fuzz.message(request_of(method.input_type))
            self.sent += 1
            status = await _ask(channel, method, request.SerializeToString())
            self.answers[status] += 1
            if status in BUGS:
                self.bugs.append(f"{method.full_name}: {status}: {str(request)[:300]}")


async def _ask(channel: grpc.aio.Channel, method: MethodDescriptor, request: bytes) -> str:
    service = method.containing_service
    assert service is not None
    path = f"/{service.full_name}/{method.name}"
    try:
        if method.server_streaming:
            call: Any = channel.unary_stream(path)(request, timeout=0.3)
            try:
                async for _ in call:
                    break
            finally:
                call.cancel()
        else:
            asked: Any = channel.unary_unary(path)
            await asked(request, timeout=20)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@pytest.mark.timeout(3600)
async def test_no_frame_of_a_member_ends_a_worker(
    seed: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    count, sent = MESSAGES // 5, 0
    async with worker_cluster(tmp_path, slots="4") as (member, worker):
        member.acknowledge_results = True
        stream = await member.attached()
        known = {
            "run_id": [member.key().run_id for _ in range(5)],
            "fencing_token": [1 << 32, (1 << 32) + 1],
            "incarnation": [stream.hello.incarnation],
            "argv": ["true"],
            "grpc": [member.address],
        }
        fuzz = Fuzz(random.Random(seed), known)
        pid, before = worker.pid, rss(worker.pid)
        streams = 1
        while sent < count:
            if stream.ended:
                streams += 1
                stream = await member.attached(len(member.streams), grants=False)
            frame = _down(fuzz, member.now)
            await stream.send(**{field.name: value for field, value in frame.ListFields()})
            sent += 1
            if sent % 20 == 0:
                await asyncio.sleep(0.01)
        await _works(member, worker)
        assert worker.pid == pid
        figure(
            f"fuzz, seed {seed}: {sent:,} frames down over {streams} streams;"
            f" worker {before // 1024} MiB before, {rss(pid) // 1024} MiB after"
        )
        wait_until(
            lambda: rss(pid) < before + MOST_GROWN,
            4 * WAIT_TIMEOUT,
            "the worker's memory to return",
        )


def _down(fuzz: Fuzz, now: Callable[[], Any]) -> pb.MemberFrame:
    luck = fuzz.luck
    frame = fuzz.message(pb.MemberFrame)
    if luck.random() < 0.97:
        frame.ClearField("members")  # or it looks for workers' members at addresses of no one
    if luck.random() < 0.95:
        frame.heartbeat_answer.lost = False
    if luck.random() < 0.9:
        frame.ClearField("drain")
    # A rejected frame ends its stream, and the worker waits up to 5 s before the next one.
    if luck.random() < 0.998:
        frame.ClearField("welcome")
        if frame.HasField("heartbeat_answer"):
            frame.heartbeat_answer.cluster_time.FromDatetime(now())
    for batch in frame.run_batches:
        if luck.random() < 0.7:
            fuzz.columns(batch)
    for batch in frame.ack_batches:
        if luck.random() < 0.7:
            fuzz.columns(batch)
    for assignment in (*frame.assignments, *(batch.common for batch in frame.run_batches)):
        assignment.ClearField("http")
        assignment.ClearField("grpc")
        if luck.random() < 0.7:
            assignment.shell.CopyFrom(job_pb2.ShellAction(argv=["true"]))
            assignment.start_by.FromDatetime(now())
            assignment.start_by.seconds += 5
    return frame


async def _works(member: Any, worker: WorkerProcess) -> None:
    """Whatever came, it attaches again and runs what it is given."""
    del worker
    for _ in range(20):
        stream = await member.attached(len(member.streams), grants=False)
        await stream.send(drain=pb.Drain(undrain=True))
        key = await stream.assign(argv=["true"], start_within=10)
        try:
            await stream.result_of(key, timeout=10)
        except AssertionError:
            continue
        return
    raise AssertionError("the worker takes no work any more")
