"""Whether this member is ready, and why not: asked at each scrape, as `/readyz` asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from schedd.core.readiness import Unready


class ReadinessGauges(Collector):
    """`reasons`: those why it isn't ready; none: it is."""

    def __init__(self, reasons: Callable[[], Collection[Unready]]) -> None:
        self._reasons = reasons

    def collect(self) -> Iterator[Metric]:
        """The judgement, and each reason that there may be."""
        found = self._reasons()
        ready = float(not found)
        yield GaugeMetricFamily("schedd_ready", "1 while this member is ready.", value=ready)
        family = GaugeMetricFamily(
            "schedd_not_ready_reasons", "1 where that is why it isn't ready.", labels=["reason"]
        )
        for reason in Unready:
            family.add_metric([reason.value], float(reason in found))
        yield family
