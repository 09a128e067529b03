"""Faults of identity: a second daemon under a name that is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from faults.nemesis.journal import Fault, Journal
from faults.world.service import Service


@contextmanager
def start_duplicate(journal: Journal, duplicate: Service, logged: str) -> Iterator[Fault]:
    """Start another daemon of this name; the effect: it runs, and its log has `logged`."""
    with journal.fault("second identity", duplicate.name) as fault:
        duplicate.start()
        try:
            fault.effect_of(
                lambda: duplicate.alive() and logged in duplicate.log.read_text(errors="replace"),
                20,
                f"the duplicate to log {logged!r}",
            )
            yield fault
        finally:
            fault.end()
            duplicate.kill()
