"""One kind of hostile peer, at all ports it is given, until it is told to end.

    python -m faults.hostile.attack '{"kind": "malformed", "grpc": ["host:port"], …}'

`report` is a file that says again and again what became of it: what was said, how it was answered.
What is wrong is a list of deeds, each at one port or to one call, in an order by the seed: a round
is over when all of them were done. Kinds that hold connections open (`held`) count how many there
are and were at most, were refused at once, and were ended later, by kind of port.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from faults.hostile import calls, garbage, http1, http2
from faults.hostile.held import Holder

ANSWERED_WITHIN = 10.0
BODY_WITHIN = 40.0
"""A member takes 30 s for a body that doesn't end."""
SPOILT_WITHIN = 0.3
GET_RUN, WATCH = "/schedd.v1.RunService/GetRun", "/schedd.v1.RunService/WatchRuns"
ATTACH, HEALTH_WATCH = "/schedd.v1.WorkerService/Attach", calls.HEALTH[1]
CHANGES_THE_CLUSTER = ("TransferLeader", "PauseCluster", "ResumeCluster", "Rebalance", "Health/W")
"""What an empty request is enough for isn't asked with one."""
HANDS = 4
"""Deeds at a time."""
DRAWN = 3
"""How many of the messages of many parts each call gets in a round."""

APART = {"grpc.use_local_subchannel_pool": 1}
"""For a channel that shares no connection with another."""

Deed = Callable[[], Awaitable[None]]


@dataclass
class Report:
    """What was done, and how it was answered: by kind of answer, how often. `rounds`: how often all
    of it was done, `deeds`: of so many; `held`: connections of each kind of port, by what became
    of them.
    """

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    deeds: int = 0
    done: int = 0
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
    _holders: dict[str, list[Holder]] = field(default_factory=dict)
    _channels: dict[tuple[str, bool], calls.grpc.aio.Channel] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled."""
        deeds = {"malformed": self.malformed, "oversized": self.oversized}
        holds = {"half-open": self.half_open, "idle": self.idle, "slow": self.slow}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell(), name="report")
            if self.kind in holds:
                holds[self.kind]()
                for each in (one for holders in self._holders.values() for one in holders):
                    group.create_task(each.run(), name=f"held at {each.address}")
                    group.create_task(each.read_slowly(), name=f"slow at {each.address}")
            else:
                await self._rounds(deeds[self.kind])

    async def _rounds(self, of: Callable[[random.Random], Iterator[Deed]]) -> None:
        luck = random.Random(self.seed)
        while True:
            deeds = list(of(luck))
            luck.shuffle(deeds)
            self.said.deeds = len(deeds)
            waiting = iter(deeds)
            async with asyncio.TaskGroup() as group:
                for hand in range(HANDS):
                    group.create_task(self._do(waiting), name=f"hand {hand}")
            self.said.rounds += 1

    async def _do(self, deeds: Iterator[Deed]) -> None:
        for deed in deeds:
            await deed()
            self.said.done += 1
            await asyncio.sleep(0.005)

    # ── what is wrong ───────────────────────────────────────────────────────────────────────────

    def malformed(self, luck: random.Random) -> Iterator[Deed]:
        """Bytes that are no request: to each call of each member, and at each port."""
        for address in (*self.grpc, *self.http, *self.workers):
            for name, said in http2.spoiled(luck, GET_RUN, address):
                yield partial(self._spoil, address, name, said)
        nonsense = list(garbage.nonsense(luck))
        for address in self.grpc:
            for path, _, _ in calls.methods():
                for name, content in nonsense:
                    yield partial(self._ask, address, path, name, content, {"INVALID_ARGUMENT"})
            for path in ("/x", GET_RUN + "x", "/a.B/C", "/" + "a" * 5000):
                yield partial(self._ask, address, path, "of no method", b"", {"UNIMPLEMENTED"})
        for address in self.http:
            for name, body in garbage.bodies():
                for path in ("/api/v1/jobs", "/api/v1/runs"):
                    yield partial(self._post, address, path, name, body)

    async def _spoil(self, address: str, name: str, said: bytes) -> None:
        """What gRPC's core can't go on from it tells as INTERNAL, and has to end the connection."""
        heard, closed = await self._say(address, said, SPOILT_WITHIN)
        answer = _spoilt(heard, closed)
        if answer == "INTERNAL" and not closed:
            heard, closed = await self._say(address, said, ANSWERED_WITHIN)
            if not closed:
                self.said.wrong.append(f"{address} {name}: INTERNAL, and the connection stays")
        answer += " and ended" if answer == "INTERNAL" and closed else ""
        self.said.answers[f"spoilt: {answer}"] += 1

    async def _ask(
        self,
        address: str,
        path: str,
        name: str,
        content: bytes,
        wanted: set[str],
        packed: bool = False,
    ) -> None:
        status = await calls.ask(self._channel(address, packed), path, [content])
        self._heard("call", f"{address} {path[:60]} {name}", status, wanted)

    async def _post(self, address: str, path: str, name: str, body: bytes) -> None:
        heard, _ = await self._say(address, http1.post(path, body), ANSWERED_WITHIN)
        self._heard("POST", f"{address} {path} {name}", http1.status(heard), {"400", "413"})

    def oversized(self, luck: random.Random) -> Iterator[Deed]:
        """Messages past the limit, small ones that hold much, to each call; headers; bodies. Far
        past the limit is one call of each member: it is refused by its first bytes, as any is.
        """
        wanted = {"RESOURCE_EXHAUSTED"}
        readable = wanted | {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OK"}
        large, bomb, parts = bytes(garbage.LIMIT + 1), bytes(16 << 20), list(garbage.flat(luck))
        paths = [path for path, _, _ in calls.methods()]
        for address in self.grpc:
            for path in paths:
                yield partial(self._ask, address, path, "past the limit", large, wanted)
                yield partial(self._ask, address, path, "a bomb", bomb, wanted, packed=True)
                if not any(word in path for word in CHANGES_THE_CLUSTER):
                    for name, content in luck.sample(parts, DRAWN):
                        yield partial(self._ask, address, path, name, content, readable)
            far = luck.choice(paths)
            yield partial(self._far, address, far, wanted)
            for size in (32 << 10, 1 << 20):
                yield partial(self._large_head, address, size, wanted)
        for address in (*self.http, *self.workers):
            for name in http1.LARGE_BODIES:
                yield partial(self._large_body, address, name)

    async def _far(self, address: str, path: str, wanted: set[str]) -> None:
        for packed in (False, True):
            await self._ask(
                address, path, "far past it", bytes(http1.FAR_TOO_LARGE), wanted, packed=packed
            )

    async def _large_head(self, address: str, size: int, wanted: set[str]) -> None:
        heads = (("x-large", "a" * size),)
        async with calls.channel_to(address, **APART) as channel:
            status = await calls.ask(channel, GET_RUN, [b""], metadata=heads)
        self._heard("call", f"{address} {size:,} bytes of headers", status, wanted)

    async def _large_body(self, address: str, name: str) -> None:
        heard, closed = await self._say(address, http1.LARGE_BODIES[name](), BODY_WITHIN)
        answer = http1.status(heard) if heard or closed else "silent"
        self._heard(
            "POST", f"{address} {name}", answer, {"400", "404", "405", "408", "413", "closed"}
        )

    # ── what is held ────────────────────────────────────────────────────────────────────────────

    def half_open(self) -> None:
        """Connections that say nothing, or the half of what they should; and slow heads. What is no
        HTTP/2 gRPC ends at once, so that is one of ten there.
        """
        shake = http2.tls_hello(random.Random(self.seed))[:20]
        halves = [b"", http2.PREFACE[:12], shake, b"GET / HTTP/1.1\r\nhost:"]
        grpc = [*halves[:2] * 4, halves[0], shake]
        self._hold("grpc", self.grpc, lambda n: (grpc[n % len(grpc)], 0.0))
        self._hold("web", self.http, lambda n: (halves[n % len(halves)], 0.0))
        self._hold("workers", self.workers, lambda n: (halves[n % len(halves)], 0.0))

    def idle(self) -> None:
        """Connections with a whole hello and nothing else, and streams that nobody reads."""
        self._hold("grpc", self.grpc, lambda _: (http2.hello(), 0.0))
        watch = http2.message(b"".join(garbage.inside(1, run.encode()) for run in self.runs))
        asked = {WATCH: watch, ATTACH: b"", HEALTH_WATCH: http2.message(b"")}
        each = self.connections // (len(asked) * len(self.grpc))
        for address in self.grpc:
            streams = []
            for path, content in asked.items():
                said = bytearray(http2.hello({http2.INITIAL_WINDOW: 1}))
                for stream in range(1, 2 * each, 2):
                    said += http2.opening(path, address, stream)
                    said += http2.data(content, stream, end=path != ATTACH) if content else b""
                streams.append((bytes(said), 0.0))
                self.said.answers[f"streams of {path}"] += each
            holder = Holder(address, len(streams), lambda n, of=streams: of[n % len(of)])
            self._holders.setdefault("streams", []).append(holder)

    def slow(self) -> None:
        """Readers of every stream that a member serves, at a byte a second, and some never."""
        watch = http2.message(b"".join(garbage.inside(1, run.encode()) for run in self.runs))
        stream = http2.opening(WATCH, "x", 1) + http2.data(watch, 1, end=True)
        call = http2.hello({http2.INITIAL_WINDOW: 1}) + stream
        web = (
            b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /api/v1/runs?pageSize=50 HTTP/1.1\r\nhost: x\r\n\r\n",
            http1.get_watch(self.runs),
        )
        self._hold("grpc", self.grpc, lambda n: (call, n % 2), share=True)
        self._hold("web", self.http, lambda n: (web[n % len(web)], n % 2), share=True)

    def _hold(
        self,
        kind: str,
        addresses: Sequence[str],
        opening: Callable[[int], tuple[bytes, float]],
        *,
        share: bool = False,
    ) -> None:
        """`connections` at each of these, or to all of them together."""
        each = self.connections // len(addresses) + 1 if share else self.connections
        self._holders[kind] = [Holder(address, each, opening) for address in addresses]

    # ── what comes back ─────────────────────────────────────────────────────────────────────────

    async def _say(self, address: str, said: bytes, within: float) -> tuple[bytes, bool]:
        """What is answered, and whether the connection has ended."""
        host, port = address.split(":")
        heard, closed = bytearray(), False
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return b"", True
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
        return bytes(heard), closed

    def _heard(self, how: str, what: str, answer: str, wanted: set[str]) -> None:
        self.said.answers[f"{how}: {answer}"] += 1
        if answer not in wanted and len(self.said.wrong) < 50:
            self.said.wrong.append(f"{how} {what}: {answer}")

    def _channel(self, address: str, packed: bool) -> calls.grpc.aio.Channel:
        """To this member; those that pack what they send are apart."""
        if (address, packed) not in self._channels:
            packing = calls.grpc.Compression.Gzip if packed else None
            self._channels[address, packed] = calls.grpc.aio.insecure_channel(
                address, options=calls.HUGE, compression=packing
            )
        return self._channels[address, packed]

    async def _tell(self) -> None:
        file = Path(self.report)
        while True:
            for kind, holders in self._holders.items():
                for each in holders:
                    each.count()
                words = ("wanted", "tried", "held", "most", "refused", "ended")
                self.said.held[kind] = {
                    word: sum(getattr(each, word) for each in holders) for word in words
                }
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(vars(self.said)))
            fresh.replace(file)
            await asyncio.sleep(0.3)


def _spoilt(heard: bytes, closed: bool) -> str:
    """What came of it: a status of HTTP or of gRPC, an end, or nothing yet."""
    if heard.startswith(b"HTTP/1.1"):
        return f"HTTP {http1.status(heard)}"
    statuses = [
        http2.status_of(payload)
        for kind, _, _, payload in http2.read(bytearray(heard))
        if kind == http2.HEADERS
    ]
    names = [each.name for each in calls.grpc.StatusCode if each.value[0] in statuses]
    return names[0] if names else "ended" if closed else "waits for more"


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
