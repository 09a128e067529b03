"""One kind of hostile peer, at all ports it is given, until it is told to end.

    python -m faults.hostile.attack '{"kind": "malformed", "grpc": ["host:port"], …}'

`report` is a file that says again and again what became of it: what was said, how it was answered.
Kinds that hold connections open them first (`held`), and count those that the other side has ended.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.hostile import calls, garbage, http2

ANSWERED_WITHIN = 10.0
GET_RUN, WATCH = "/schedd.v1.RunService/GetRun", "/schedd.v1.RunService/WatchRuns"
ATTACH, HEALTH_WATCH = "/schedd.v1.WorkerService/Attach", calls.HEALTH[1]
CHANGES_THE_CLUSTER = ("TransferLeader", "PauseCluster", "ResumeCluster", "Rebalance", "Health/W")
"""What an empty request is enough for isn't asked with one."""
NEVER_READ = 4_096
"""Bytes of a reader's buffer that nobody empties."""


@dataclass
class Report:
    """What was done, and how it was answered: by kind of answer, how often; `held` and `ended`:
    connections; `rounds`: how often all of it was said.
    """

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    held: int = 0
    ended: int = 0
    rounds: int = 0


@dataclass
class Attack:
    """Whom to attack, and how."""

    kind: str
    grpc: Sequence[str]
    http: Sequence[str]
    workers: Sequence[str]
    report: str
    seed: int = 0
    connections: int = 1000
    runs: Sequence[str] = ()
    said: Report = field(default_factory=Report)
    _open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "malformed": self.malformed,
            "oversized": self.oversized,
            "half-open": self.half_open,
            "idle": self.idle,
            "slow": self.slow,
        }
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell(), name="report")
            await kinds[self.kind]()
            await asyncio.Event().wait()

    # ── what is wrong ───────────────────────────────────────────────────────────────────────────

    async def malformed(self) -> None:
        """Bytes that are no request, at each port and to each call, round and round."""
        luck = random.Random(self.seed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._spoil(luck), name="spoilt frames")
            group.create_task(self._nonsense(luck), name="nonsense")
            group.create_task(self._bodies(), name="bodies")

    async def _spoil(self, luck: random.Random) -> None:
        while True:
            for address in (*self.grpc, *self.http, *self.workers):
                for name, said in http2.spoiled(luck, GET_RUN, address):
                    heard = await self._say(address, said, 0.3)
                    self.said.answers[f"spoilt: {_outcome(heard)}"] += 1
                    del name
                    await asyncio.sleep(0.02)
            self.said.rounds += 1

    async def _nonsense(self, luck: random.Random) -> None:
        while True:
            for address in self.grpc:
                async with calls.channel_to(address) as channel:
                    for path, _, _ in calls.methods():
                        for name, content in garbage.nonsense(luck):
                            status = await calls.ask(channel, path, [content])
                            self._heard("call", f"{path} {name}", status, {"INVALID_ARGUMENT"})
                            await asyncio.sleep(0.01)
                    for path in ("/x", GET_RUN + "x", "/a.B/C", "/" + "a" * 5000):
                        status = await calls.ask(channel, path, [b""])
                        self._heard("call", path[:40], status, {"UNIMPLEMENTED"})

    async def _bodies(self) -> None:
        wanted = {"400", "413"}
        while True:
            for address in self.http:
                for name, body in garbage.bodies():
                    for path in ("/api/v1/jobs", "/api/v1/runs"):
                        heard = await self._say(address, _post(path, body), ANSWERED_WITHIN)
                        self._heard("POST", f"{path} {name}", _status(heard), wanted)
                        await asyncio.sleep(0.05)

    async def oversized(self) -> None:
        """Messages past the limit, far past it, small ones that hold much; headers; bodies."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._large_calls(), name="large calls")
            group.create_task(self._large_bodies(), name="large bodies")

    async def _large_calls(self) -> None:
        wanted = {"RESOURCE_EXHAUSTED"}
        luck = random.Random(self.seed)
        readable = wanted | {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OK"}
        while True:
            for address in self.grpc:
                async with calls.channel_to(address) as channel, _gzipping(address) as packed:
                    for path, _, _ in calls.methods():
                        for size in (garbage.LIMIT + 1, 64 << 20):
                            status = await calls.ask(channel, path, [bytes(size)])
                            self._heard("call", f"{path} of {size:,} bytes", status, wanted)
                        status = await calls.ask(packed, path, [bytes(64 << 20)])
                        self._heard("call", f"{path} with a bomb", status, wanted)
                        if not any(word in path for word in CHANGES_THE_CLUSTER):
                            for name, content in garbage.flat(luck):
                                status = await calls.ask(channel, path, [content])
                                self._heard("call", f"{path} {name}", status, readable)
                                await asyncio.sleep(0.02)
                    for size in (32 << 10, 1 << 20):
                        heads = (("x-large", "a" * size),)
                        status = await calls.ask(channel, GET_RUN, [b""], metadata=heads)
                        self._heard("call", f"{size:,} bytes of headers", status, wanted)
            self.said.rounds += 1

    async def _large_bodies(self) -> None:
        endless = b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        chunked = endless + b"transfer-encoding: chunked\r\n\r\n"
        said = {
            "64 MiB": _post("/api/v1/jobs", bytes(64 << 20)),
            "endless, in chunks": chunked + (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 200,
            "endless, in chunks of a byte": chunked + b"1\r\nx\r\n" * 200_000,
            "headers of 1 MiB": b"GET / HTTP/1.1\r\nx: " + b"y" * (1 << 20) + b"\r\n\r\n",
        }
        wanted = {"400", "413", "503", "closed"}
        while True:
            for address in (*self.http, *self.workers):
                for name, content in said.items():
                    heard = await self._say(address, content, 2.0)
                    self._heard("POST", name, _status(heard), wanted | {"404", "405", "silent"})
                    await asyncio.sleep(0.1)

    # ── what is held ────────────────────────────────────────────────────────────────────────────

    async def half_open(self) -> None:
        """Connections that say nothing, or the half of what they should; and slow heads."""
        luck = random.Random(self.seed)
        halves = [b"", http2.PREFACE[:12], http2.tls_hello(luck)[:20], b"GET / HTTP/1.1\r\nhost:"]
        await self._hold((*self.grpc, *self.http, *self.workers), halves)

    async def idle(self) -> None:
        """Connections with a whole hello and nothing else, and streams that nobody reads."""
        await self._hold(self.grpc, [http2.hello()])
        watch = http2.message(b"".join(garbage.inside(1, run.encode()) for run in self.runs))
        asked = {WATCH: watch, ATTACH: b"", HEALTH_WATCH: http2.message(b"")}
        each = self.connections // (len(asked) * len(self.grpc))
        for address in self.grpc:
            for path, content in asked.items():
                said = bytearray(http2.hello({http2.INITIAL_WINDOW: 1}))
                for stream in range(1, 2 * each, 2):
                    said += http2.opening(path, address, stream)
                    said += http2.data(content, stream, end=path != ATTACH) if content else b""
                await self._keep(address, bytes(said), 0.0)
                self.said.answers[f"streams of {path}"] += each

    async def slow(self) -> None:
        """Readers of every stream that a member serves, at a byte a second, and some never."""
        watch = http2.message(b"".join(garbage.inside(1, run.encode()) for run in self.runs))
        stream = http2.opening(WATCH, "x", 1) + http2.data(watch, 1, end=True)
        web = (
            b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /api/v1/runs?pageSize=50 HTTP/1.1\r\nhost: x\r\n\r\n",
            _get_watch(self.runs),
        )
        for number in range(self.connections):
            pace = 1.0 if number % 2 else 0.0
            address = self.grpc[number % len(self.grpc)]
            await self._keep(address, http2.hello({http2.INITIAL_WINDOW: 1}) + stream, pace)
            address = self.http[number % len(self.http)]
            await self._keep(address, web[number % len(web)], pace)

    async def _hold(self, addresses: Sequence[str], said: Sequence[bytes]) -> None:
        for number in range(self.connections):
            for address in addresses:
                await self._keep(address, said[number % len(said)], 0.0)

    async def _keep(self, address: str, said: bytes, pace: float) -> None:
        """Open, say, and read nothing, or a byte each `pace` seconds."""
        host, port = address.split(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), limit=NEVER_READ)
            writer.write(said)
        except OSError:
            self.said.ended += 1
            return
        self._open.append(writer)
        self.said.held += 1
        watching = self._watch(reader, writer, pace)
        task = asyncio.create_task(watching, name="reader")
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        await asyncio.sleep(0.002)

    async def _watch(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: float
    ) -> None:
        try:
            while pace and await reader.read(1):  # noqa: ASYNC110 - its pace is the subject
                await asyncio.sleep(pace)
            await writer.wait_closed()
        except OSError:
            pass
        self.said.held -= 1
        self.said.ended += 1

    # ── what comes back ─────────────────────────────────────────────────────────────────────────

    async def _say(self, address: str, said: bytes, within: float) -> bytes | None:
        """What is answered; None when nothing is, and the connection stays open."""
        host, port = address.split(":")
        heard, closed = bytearray(), False
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return b""
        try:
            async with asyncio.timeout(within):
                writer.write(said)
                while piece := await reader.read(65_536):
                    heard += piece
                closed = True
        except TimeoutError:
            pass
        except OSError:
            closed = True
        finally:
            writer.transport.abort()
        return bytes(heard) if heard or closed else None

    def _heard(self, how: str, what: str, answer: str, wanted: set[str]) -> None:
        self.said.answers[f"{how}: {answer}"] += 1
        if answer not in wanted and len(self.said.wrong) < 50:
            self.said.wrong.append(f"{how} {what}: {answer}")

    async def _tell(self) -> None:
        file = Path(self.report)
        while True:
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(vars(self.said)))
            fresh.replace(file)
            await asyncio.sleep(0.2)


_TASKS: set[asyncio.Task[None]] = set()


def _gzipping(address: str) -> calls.grpc.aio.Channel:
    return calls.grpc.aio.insecure_channel(
        address, options=calls.HUGE, compression=calls.grpc.Compression.Gzip
    )


def _post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _get_watch(runs: Sequence[str]) -> bytes:
    query = "&".join(f"runIds={run}" for run in runs)
    return f"GET /api/v1/runs:watch?{query} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


def _status(heard: bytes | None) -> str:
    if heard is None:
        return "silent"
    return heard[9:12].decode(errors="replace") if heard.startswith(b"HTTP/1.1 ") else "closed"


def _outcome(heard: bytes | None) -> str:
    if heard is None:
        return "waited for more"
    return f"HTTP {_status(heard)}" if heard.startswith(b"HTTP/1.1") else "answered or closed"


async def _live(attack: Attack) -> None:
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    try:
        await attack.run()
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_live(Attack(**json.loads(sys.argv[1]))))
