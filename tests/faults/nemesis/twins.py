"""Faults of identity: a second daemon under a name that is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from faults.nemesis.journal import Fault, Journal
from faults.world.service import Service


@contextmanager
def second(journal: Journal, twin: Service, logged: str) -> Iterator[Fault]:
    """Start another daemon of this name; the effect: it runs, and its log has `logged`."""
    with journal.fault("second identity", twin.name) as fault:
        twin.start()
        try:
            fault.effect_of(
                lambda: twin.alive() and logged in twin.log.read_text(errors="replace"),
                20,
                f"the twin to log {logged!r}",
            )
            yield fault
        finally:
            fault.end()
            twin.kill()
