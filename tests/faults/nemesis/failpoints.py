"""Faults at a named place in the code: a ticket is laid out, and the first to pass takes it.

    with killed_at(journal, world, "fire.after_commit") as victim:     a member dies there
    with killed_at(journal, world, "worker.after_end") as victim:      a worker does
    with killed_at(journal, world, "join.before_row", provoke=come):   `come()` makes a process pass

The action at a ticket is armed at the start (`daemons.MEMBER_POINTS`, `WORKER_POINTS`).
Where that is to stand still, `killed_at` kills what stands there, with all that it holds.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from faults.nemesis.journal import Journal, NoEffect
from faults.world.daemons import MEMBER_POINTS
from faults.world.service import Service
from faults.world.world import World
from support.wait import WaitTimedOut, wait_until

PASSED_WITHIN = 20.0
READY_WITHIN = 45.0
DEAD_WITHIN = 5.0
ARMED = "is armed"
"""Line at each start: a process that logged it after its death was started again."""


def nothing() -> None:
    """Leave it to the cluster: some process passes without help."""


@contextmanager
def killed_at(
    journal: Journal, world: World, point: str, provoke: Callable[[], object] = nothing
) -> Iterator[Service]:
    """The first to pass this point dies there; the service manager starts it again.

    `provoke`: makes a process pass; called when the ticket lies.
    """
    kind = "a worker" if point.startswith("worker.") else "a member"
    with journal.fault(f"kill -9 at {point}", kind) as fault:
        if MEMBER_POINTS.get(point) == "stop":
            victim = _passing(world, point, _stands, provoke)
            _kill_where_it_stands(victim)
        else:
            logged = f"failpoint {point}: kill"
            victim = _passing(world, point, lambda each, mark: _died(each, mark, logged), provoke)
        fault.took_effect(what="the ticket is gone, and the process", **{kind[2:]: victim.name})
        try:
            yield victim
        finally:
            fault.end()
            wait_until(victim.ready, READY_WITHIN, f"{victim.name} to be ready again")


@contextmanager
def stopped_at(journal: Journal, world: World, point: str) -> Iterator[Service]:
    """The first member to pass stands still there, with all it holds; continued at the end."""
    with journal.fault(f"SIGSTOP at {point}", "a member") as fault:
        began = time.monotonic()
        victim = _passing(world, point, _stands, nothing)
        fault.took_effect(what="the ticket is gone; state T", member=victim.name)
        try:
            yield victim
            if not victim.process.paused():
                raise NoEffect(f"{victim.name} did not stand still to the end")
        finally:
            fault.end(stood=round(time.monotonic() - began, 3))
            victim.resume()
            wait_until(victim.ready, READY_WITHIN, f"{victim.name} to be ready again")


def _passing(
    world: World,
    point: str,
    hit: Callable[[Service, int], bool],
    provoke: Callable[[], object],
) -> Service:
    """Lay the ticket out; who took it, seen by what happened to it: `hit`, which is given where its
    log ended before.
    """
    services = _passers(world, point)
    marks = {name: service.mark() for name, service in services.items()}
    ticket = world.tickets / point
    ticket.touch()
    provoke()

    def struck() -> Service | None:
        if ticket.exists():
            return None
        return next((each for each in services.values() if hit(each, marks[each.name])), None)

    try:
        found = wait_until(struck, PASSED_WITHIN, f"a process to pass {point}")
    except WaitTimedOut as late:
        ticket.unlink(missing_ok=True)
        raise NoEffect(str(late)) from late
    assert found is not None
    return found


def _passers(world: World, point: str) -> Mapping[str, Service]:
    return world.workers if point.startswith("worker.") else world.members


def _stands(service: Service, _mark: int) -> bool:
    return service.process.paused()


def _died(service: Service, mark: int, logged: str) -> bool:
    """Whether it said so and is dead, or was since started again."""
    _, acted, since = service.said_since(mark).partition(logged)
    return bool(acted) and (not service.alive() or ARMED in since)


def _kill_where_it_stands(service: Service) -> None:
    process = service.process
    process.send(signal.SIGKILL)
    wait_until(lambda: not process.alive(), DEAD_WITHIN, f"{service.name} to be dead")
