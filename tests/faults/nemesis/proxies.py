"""Faults on the wire: what some hosts send to a service goes through a proxy that spoils it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults.nemesis.journal import Fault, Journal
from faults.world.network import Host
from faults.world.world import World
from schedctl.dev.processes import end, spawn
from support.wait import wait_until

PROGRAM = Path(__file__).with_name("proxy_process.py")


@contextmanager
def spoiled(
    journal: Journal,
    world: World,
    sources: Sequence[Host],
    targets: Sequence[Host],
    port: int,
    way: str,
    *,
    seconds: float = 0.0,
    after: int = 1,
) -> Iterator[Fault]:
    """From `sources` to this port of `targets` the wire is `way` (see `proxy_process`).

    Verified by the proxies' own reports: each was talked to, and has spoiled something.
    """
    names = ",".join(host.name for host in sources)
    target = f"{names} -> {','.join(host.name for host in targets)}:{port}"
    with (
        journal.fault(f"wire {way}", target, seconds=seconds, after=after) as fault,
        ExitStack() as undo,
    ):
        reports = [
            _interpose(undo, world, sources, host, port, way, seconds, after) for host in targets
        ]
        fault.effect_of(lambda: all(map(_spoils, reports)), 15, "every proxy to spoil")
        yield fault
        fault.end(spoiled=sum(map(_spoils, reports)))


def _interpose(
    undo: ExitStack,
    world: World,
    sources: Sequence[Host],
    target: Host,
    port: int,
    way: str,
    seconds: float,
    after: int,
) -> Path:
    over, network = world.proxy_host, world.network
    report = world.work / f"proxy-{target.name}.json"
    report.unlink(missing_ok=True)
    order = {
        "listen": [target.address, port],
        "to": [target.back_door, port],
        "way": way,
        "seconds": seconds,
        "bytes": after,
        "report": os.fspath(report),
    }
    network.bear(target, over)
    undo.callback(network.forget, target, over)
    argv = [*over.enter(), sys.executable, "-P", os.fspath(PROGRAM), json.dumps(order)]
    process = spawn(argv, log=world.logs / "proxies.log", cwd=world.work)
    undo.callback(end, [process])
    wait_until(report.exists, 10, f"the proxy of {target.name} to listen")
    for source in sources:
        network.detour(source, target, over)
        undo.callback(network.straighten, source, target, over)
    return report


def _spoils(report: Path) -> int:
    return int(json.loads(report.read_text())["spoiled"])
