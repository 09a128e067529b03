"""Whether this member is ready, and why not: asked at each scrape, as `/readyz` asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.readiness import Unready


class ReadinessGauges(Collector):
    """`reasons`: those why it isn't ready; none: it is. `failures`: of dependencies."""

    def __init__(
        self,
        reasons: Callable[[], Collection[Unready]],
        failures: Callable[[], Collection[DependencyFailure]] = tuple,
    ) -> None:
        self._reasons = reasons
        self._failures = failures

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
        yield from self._dependencies()

    def _dependencies(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "schedd_dependency_failure",
            "1 for each dependency that doesn't take this member's writes, with the reason.",
            labels=["dependency", "reason"],
        )
        for failure in self._failures():
            family.add_metric([failure.dependency.value, failure.reason], 1.0)
        yield family
