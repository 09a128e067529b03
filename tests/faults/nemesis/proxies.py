"""Faults on the wire: what some hosts send to a service goes through proxies that spoil it.

    with led(world, workers, members, GRPC) as wire, fault_run() as run:   # whole, as yet
        with spoiled(run.journal, wire, "truncate", size=2000):
            …

Streams live long, so a fault must strike those that are open: they are led through the proxies
first, while nothing is judged, and every one of them must then have been struck.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from faults.nemesis import proxy_process
from faults.nemesis.journal import Journal, NoEffect
from faults.nemesis.proxy_process import LOOK, Effects
from faults.world.network import Host
from faults.world.postgres import PORT as POSTGRES
from faults.world.world import World
from schedctl.dev.servers.processes import end, spawn
from support.wait import wait_until

COMMAND = (sys.executable, "-P", "-m", proxy_process.__name__)
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[2])}
LED_WITHIN = 30.0
STRUCK_WITHIN = 20.0


@dataclass(frozen=True, slots=True)
class Proxy:
    """Process in front of one service."""

    orders: Path
    report_file: Path

    def order(self, way: str, seconds: float = 0.0, size: int = 1, seed: int = 0) -> None:
        """Tell it what to do from now on; returns when it does."""
        order = {"way": way, "seconds": seconds, "bytes": size, "seed": seed}
        fresh = self.orders.with_suffix(".new")
        fresh.write_text(json.dumps(order))
        fresh.replace(self.orders)
        wait_until(lambda: self.report().way == way, 10 * LOOK + 5, f"the wire to be {way}")

    def report(self) -> Effects:
        """Return the effects of the order in force so far."""
        return Effects(**json.loads(self.report_file.read_text()))


@dataclass(frozen=True, slots=True)
class Wire:
    """Between `sources` and a port of `targets`; a proxy for each target."""

    sources: Sequence[Host]
    targets: Sequence[Host]
    port: int
    proxies: Sequence[Proxy]

    def __str__(self) -> str:
        names = (",".join(host.name for host in hosts) for hosts in (self.sources, self.targets))
        return f"{' -> '.join(names)}:{self.port}"

    def done(self) -> Effects:
        """Return the effects of all proxies together since the last order."""
        return total([proxy.report() for proxy in self.proxies])


@contextmanager
def led(
    world: World, sources: Sequence[Host], targets: Sequence[Host], port: int
) -> Iterator[Wire]:
    """From `sources` to this port of `targets` all goes by way of proxies, plain as yet.

    They speak PostgreSQL's protocol at its port, and HTTP/2 at any other.

    What was open is reset, at the begin and at the end; so it belongs around a run, not into it.
    """
    with ExitStack() as undo:
        proxies = [_interpose(undo, world, sources, host, port) for host in targets]

        def through() -> bool:
            return all(proxy.report().open >= len(sources) for proxy in proxies)

        wait_until(through, LED_WITHIN, "every source to talk through every proxy")
        world.await_ready(LED_WITHIN)
        yield Wire(sources, targets, port, proxies)


@contextmanager
def spoiled(
    journal: Journal, wire: Wire, way: str, *, seconds: float = 0.0, size: int = 1, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """The wire is `way` (see `proxy_process`) for the length of the block.

    Verified by what the proxies count, at the begin and over the whole (see `lacking`). Gives these
    counts, as `Effects` names them, when the block has been left.
    """
    counts: dict[str, Any] = {}
    with journal.fault(f"wire {way}", str(wire), seconds=seconds, bytes=size) as fault:
        for proxy in wire.proxies:
            proxy.order(way, seconds, size, seed)
        fault.effect_of(
            lambda: not lacking(wire.done(), seconds, wire), STRUCK_WITHIN, f"{way} on every wire"
        )
        try:
            yield counts
        finally:
            done = wire.done()
            counts.update(asdict(done))
            fault.end(**counts)
            for proxy in wire.proxies:
                proxy.order("plain")
        if lack := lacking(done, seconds, wire):
            raise NoEffect(f"the wire was not {way} enough: {lack}; {done}")


def lacking(done: Effects, seconds: float, wire: Wire) -> str:
    """Which of the effects that the order promises can't be seen; empty when all can.

    From each source to each target one connection that was open was struck, at least; both ways
    were; each silence and each cut lay inside a frame; a silence held something back both ways;
    and nothing slow came earlier than `seconds`.
    """
    pairs = len(wire.sources) * len(wire.targets)
    struck = done.struck_up + done.struck_down
    held_back = done.way not in ("slow", "stall") or (done.bytes_up and done.bytes_down)
    wanted = {
        f"{done.found_struck} connections struck of {pairs} open": done.found_struck >= pairs,
        "nothing of what clients say was struck": done.struck_up > 0,
        "nothing of what servers say was struck": done.struck_down > 0,
        "some were struck between two frames": done.way == "slow" or done.in_frame == struck,
        "not a byte was held back": bool(held_back),
        f"a piece was late by {done.least_late} s alone": (
            done.way != "slow" or (done.least_late or 0.0) >= seconds
        ),
    }
    return "; ".join(lack for lack, seen in wanted.items() if not seen)


def total(reports: Sequence[Effects]) -> Effects:
    """The sum of all, and the least of what is late."""
    summed = Effects(reports[0].way)
    for name in asdict(summed).keys() - {"way", "least_late"}:
        setattr(summed, name, sum(getattr(report, name) for report in reports))
    late = [report.least_late for report in reports if report.least_late is not None]
    summed.least_late = round(min(late), 3) if late else None
    return summed


def _interpose(
    undo: ExitStack, world: World, sources: Sequence[Host], target: Host, port: int
) -> Proxy:
    over, network = world.proxy_host, world.network
    files = [world.work / f"proxy-{target.name}.{what}" for what in ("orders", "report")]
    for file in files:
        file.unlink(missing_ok=True)
    proxy = Proxy(*files)
    settings = {
        "listen": [target.address, port],
        "to": [target.back_door, port],
        "protocol": "postgres" if port == POSTGRES else "http2",
        "orders": os.fspath(proxy.orders),
        "report": os.fspath(proxy.report_file),
    }
    network.add_address(target, over)
    undo.callback(network.forget, target, over)
    argv = [*over.enter(), *COMMAND, json.dumps(settings)]
    process = spawn(argv, log=world.logs / "proxies.log", cwd=world.work, env=ENVIRONMENT)
    undo.callback(end, [process])
    wait_until(proxy.report_file.exists, 10, f"the proxy of {target.name} to listen")
    for source in sources:
        network.detour(source, target, over)
        undo.callback(network.straighten, source, target, over)
    return proxy
