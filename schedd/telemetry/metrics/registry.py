"""Create metrics in one registry, with few buckets."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PROMPT: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Buckets for durations of milliseconds, in seconds."""

LONG: Final = (
    *(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0),
)
"""Buckets for durations of up to hours, in seconds."""

CALLS: Final = (0.002, 0.01, 0.05, 0.25, 1.0, 5.0)
"""Buckets for calls with a deadline, in seconds. Few, because there are some dozen calls, and a
scrape blocks the event loop while it writes them.
"""


class Maker:
    """Makes the metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Create a counter; its name gets the suffix `_total`."""
        return Counter(name, text, labels, registry=self._registry)

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self._registry)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(name, text, labels, registry=self._registry, buckets=buckets)
