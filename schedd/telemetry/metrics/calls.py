"""How long PostgreSQL and etcd take, by what they are asked.

    call ──its thread is free──→ BEGIN … COMMIT, perhaps anew ──→ database
    request ──→ one endpoint, perhaps another ──→ answer ───────→ etcd

No part of it waits for the event loop, but for the answers of etcd that come by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import Counter, Histogram

from schedd.core.events import Called, Service
from schedd.telemetry.metrics.registry import CALLS, Maker

TEXTS: Final[Mapping[Service, str]] = {
    Service.DATABASE: "Of one transaction, its wait for a thread included, by the call.",
    Service.ETCD: "Of one call, by what was asked.",
}


class Calls:
    """Histograms by service and call, and how many failed."""

    def __init__(self, make: Maker) -> None:
        self.seconds: dict[Service, Histogram] = {
            service: make.histogram(f"schedd_{service}_call_seconds", text, CALLS, "call")
            for service, text in TEXTS.items()
        }
        self.failed: dict[Service, Counter] = {
            service: make.counter(
                f"schedd_{service}_calls_failed", "Of these: those that had no answer.", "call"
            )
            for service in TEXTS
        }

    def count(self, event: Called) -> None:
        """One call; from whatever thread. One that was answered has a failed series, too, of 0: the
        first failure of a series that isn't there before is none to `rate`.
        """
        self.seconds[event.service].labels(event.call).observe(event.took)
        self.failed[event.service].labels(event.call).inc(event.failed)
