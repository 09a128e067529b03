"""Faults of identity: a second daemon under a name that is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from faults.nemesis.journal import Fault, Journal
from faults.world.service import Service


@contextmanager
def second(journal: Journal, twin: Service, told: str) -> Iterator[Fault]:
    """Another daemon of this name comes; the effect: it runs, and its log says `told`."""
    with journal.fault("second identity", twin.name) as fault:
        twin.start()
        try:
            fault.effect_of(
                lambda: twin.alive() and told in twin.log.read_text(errors="replace"),
                20,
                f"the twin to be told {told!r}",
            )
            yield fault
        finally:
            fault.end()
            twin.kill()
