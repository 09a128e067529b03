"""Faults of time: the wall clock of one daemon is moved, or runs at another rate.

    with movable_clock(world.members["m2"]) as clock, fault_run() as run:
        with moved(run.journal, clock, "+3600s"):
            …

By libfaketime, loaded into that process alone; the host's clock is never touched. The monotonic and
the boot clock stay true (`FAKETIME_DONT_FAKE_MONOTONIC`): a Python under a moved one hangs. Seen by
the `Date` of the daemon's own HTTP answers.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from faults.nemesis.journal import Fault, Journal, NoEffect
from faults.world.needs import faketime
from faults.world.service import Service
from support.wait import wait_until

TRUE = "+0 x1"
"""Without the rate an earlier one stays in force."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A daemon whose wall clock obeys a file."""

    service: Service
    file: Path

    def set(self, how: str) -> None:
        """`how`: `+3600s`, `-5s`, or `+0 x2` for the double rate from now on."""
        self.file.write_text(f"{how}\n")

    def ahead(self) -> float | None:
        """Seconds that it is ahead of the true time, to the second; None when it doesn't answer."""
        session = http.client.HTTPConnection(self.service.http, timeout=2)
        try:
            session.request("GET", "/healthz")
            date = session.getresponse().getheader("Date")
        except (OSError, http.client.HTTPException):
            return None
        finally:
            session.close()
        return parsedate_to_datetime(date).timestamp() - time.time() if date else None

    def off_by(self, least: float, most: float) -> bool:
        """Whether it is off by so many seconds, either way."""
        ahead = self.ahead()
        return ahead is not None and least <= abs(ahead) <= most


@contextmanager
def movable_clock(service: Service) -> Iterator[Clock]:
    """Restart this daemon under libfaketime, with the true time at first; undone at the end."""
    file = service.cwd / f"{service.name}.clock"
    clock = Clock(service, file)
    clock.set(TRUE)
    plain = dict(service.environ)
    service.environ = {
        **plain,
        "LD_PRELOAD": str(faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Its fix of waits by the monotonic clock has a timed wait of Python's wake 300 ms late.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
    _restart(service)
    try:
        yield clock
    finally:
        service.environ = plain
        _restart(service)


@contextmanager
def moved(journal: Journal, clock: Clock, how: str, least: float) -> Iterator[Fault]:
    """Its wall clock is off for the length of the block, by `least` seconds at least."""
    with journal.fault("clock moved", clock.service.name, how=how) as fault:
        clock.set(how)
        try:
            off = f"a clock off by {least:g} s"
            fault.effect_of(lambda: clock.off_by(least, math.inf), 20, off)
            yield fault
            if not clock.off_by(least, math.inf):
                raise NoEffect(f"{clock.service.name} did not keep {off}: {clock.ahead()} s")
        finally:
            fault.end(ahead=clock.ahead())
            clock.set(TRUE)
            wait_until(lambda: clock.off_by(0.0, 2.5), 15, "the true time again")


def _restart(service: Service) -> None:
    service.terminate(20)
    service.start()
    wait_until(service.ready, 45, f"{service.name} to be ready")
