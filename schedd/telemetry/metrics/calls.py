"""Duration of calls of PostgreSQL and etcd, by call.

    call ──waits for a thread──→ BEGIN … COMMIT, with retries ──→ database
    request ──→ one endpoint, perhaps another ──→ answer ───────→ etcd

The measured time has no wait for the event loop, except for answers of etcd that arrive on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import Counter, Histogram

from schedd.core.events import Called, Service
from schedd.telemetry.metrics.registry import CALLS, Maker

TEXTS: Final[Mapping[Service, str]] = {
    Service.DATABASE: "Duration of one transaction, by call, with its wait for a thread.",
    Service.ETCD: "Duration of one call of etcd, by call.",
}


class Calls:
    """Histograms by service and call, and counters of failed calls."""

    def __init__(self, make: Maker) -> None:
        self.seconds: dict[Service, Histogram] = {
            service: make.histogram(f"schedd_{service}_call_seconds", text, CALLS, "call")
            for service, text in TEXTS.items()
        }
        self.failed: dict[Service, Counter] = {
            service: make.counter(
                f"schedd_{service}_calls_failed", "Calls without an answer, by call.", "call"
            )
            for service in TEXTS
        }

    def count(self, event: Called) -> None:
        """Count one call; from any thread. A successful call creates the failed series with 0,
        because `rate` ignores the first value of a new series.
        """
        self.seconds[event.service].labels(event.call).observe(event.took)
        self.failed[event.service].labels(event.call).inc(event.failed)
