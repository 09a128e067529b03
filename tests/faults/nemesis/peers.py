"""Faults that come over the wire from strangers: hostile peers, and descriptors that run out.

    with attacked(run.journal, world, "malformed", seed=7) as report:
        run.wait(15)
    report().answers

The attacker is a process on a host of its own that gives way to others: what it computes would be
computed elsewhere. What it does isn't taken on trust: it counts what it was answered.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from faults.hostile import attack
from faults.nemesis.journal import Journal, NoEffect
from faults.world.daemons import GRPC, HTTP, address
from faults.world.service import Service
from faults.world.world import World
from schedctl.dev.servers.processes import end, spawn

COMMAND = ("nice", "-n", "19", sys.executable, "-P", "-m", attack.__name__)
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[2])}
SHARE = "5"
"""As of `nice`, but of the whole session."""
HELD_WITHIN = 90.0
STRANGERS = 64

Report = dict[str, Any]


@contextmanager
def attacked(
    journal: Journal,
    world: World,
    kind: str,
    *,
    enough: Callable[[Report], bool],
    runs: Sequence[str] = (),
    seed: int = 0,
    connections: int = 1000,
) -> Iterator[Callable[[], Report]]:
    """Every port of every daemon has such peers (`attack`) for the length of the block. Verified by
    what they report: `enough` says when it is.
    """
    host, file = world.spares[0], world.work / f"{kind}.report"
    file.unlink(missing_ok=True)
    order = {
        "kind": kind,
        "grpc": [address(each.host, GRPC) for each in world.members.values()],
        "http": [address(each.host, HTTP) for each in world.members.values()],
        "workers": [address(each.host, HTTP) for each in world.workers.values()],
        "report": os.fspath(file),
        "seed": seed,
        "connections": connections,
        "runs": list(runs),
    }

    def report() -> Report:
        found: Report = json.loads(file.read_text()) if file.exists() else {}
        return found

    with journal.fault(f"{kind} peers", "every port", seed=seed) as fault:
        process = spawn(
            [*host.enter(), *COMMAND, json.dumps(order)],
            log=world.logs / "peers.log",
            cwd=world.work,
            env=ENVIRONMENT,
        )
        _give_way(process.pid)
        try:
            fault.effect_of(lambda: enough(report() or _NOTHING), HELD_WITHIN, f"{kind} peers")
            yield report
            if not process.alive():
                raise NoEffect("the attacker has ended before its time")
        finally:
            fault.end(**{key: report().get(key) for key in ("held", "done", "rounds")})
            end([process])


def _give_way(pid: int) -> None:
    """Where each session has its share of the machine, `nice` counts within a session alone: this
    process, which is one, gets a third of what any of those has that it attacks. The lowest share
    of all would be none where others keep the machine busy.
    """
    file = Path(f"/proc/{pid}/autogroup")
    if file.exists():
        file.write_text(SHARE, encoding="ascii")


_NOTHING: Report = {"answers": {}, "wrong": [], "held": {}, "done": 0, "rounds": 0}


@contextmanager
def without_descriptors(
    journal: Journal, world: World, service: Service, spare: int = 4
) -> Iterator[None]:
    """The process has only so many descriptors to spare, and strangers at its ports who take them:
    what it would open past that, it can't.
    """
    before = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
    limit = _descriptors(service) + spare
    detail = {"limit": limit, "strangers": 2 * STRANGERS}
    with journal.fault("no descriptors", service.name, **detail) as fault, ExitStack() as strangers:
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            for port in (GRPC, HTTP) * STRANGERS:
                stranger = strangers.enter_context(world.spares[0].socket())
                stranger.connect((service.host.address, port))
            fault.effect_of(lambda: _descriptors(service) >= limit - 1, 30, "no descriptor left")
            yield
        finally:
            fault.end()
            resource.prlimit(service.pid, resource.RLIMIT_NOFILE, before)


def _descriptors(service: Service) -> int:
    return len(list(Path(f"/proc/{service.pid}/fd").iterdir()))
