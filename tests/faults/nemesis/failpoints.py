"""Faults at a named place in the code: a ticket is laid out, and whoever passes first takes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from faults.nemesis.journal import Journal, NoEffect
from faults.world.service import Service
from faults.world.world import World
from support.wait import WaitedInVain, wait_until

PASSED_WITHIN = 20.0
READY_WITHIN = 45.0


@contextmanager
def killed_at(journal: Journal, world: World, point: str) -> Iterator[Service]:
    """The first member to pass this point dies there; the service manager starts it again."""
    with journal.fault(f"kill -9 at {point}", "a member") as fault:
        lives = {m.name: m.process for m in world.members.values() if m.alive()}
        victim = _passing(world, point, lambda m: m.name in lives and not lives[m.name].alive())
        fault.took_effect(what="the ticket is gone, and the process", member=victim.name)
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
        victim = _passing(world, point, lambda member: member.process.paused())
        fault.took_effect(what="the ticket is gone; state T", member=victim.name)
        try:
            yield victim
            if not victim.process.paused():
                raise NoEffect(f"{victim.name} did not stand still to the end")
        finally:
            fault.end(stood=round(time.monotonic() - began, 3))
            victim.resume()
            wait_until(victim.ready, READY_WITHIN, f"{victim.name} to be ready again")


def _passing(world: World, point: str, hit: Callable[[Service], bool]) -> Service:
    """Lay the ticket out; the member that took it, seen by what happened to it."""
    ticket = world.tickets / point
    ticket.touch()

    def struck() -> Service | None:
        if ticket.exists():
            return None
        return next((member for member in world.members.values() if hit(member)), None)

    try:
        found = wait_until(struck, PASSED_WITHIN, f"a member to pass {point}")
    except WaitedInVain as late:
        ticket.unlink(missing_ok=True)
        raise NoEffect(str(late)) from late
    assert found is not None
    return found
