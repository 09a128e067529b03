"""Whether this member is ready, and why not: evaluated at each scrape, as for `/readyz`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.readiness import Unready


class ReadinessGauges(Collector):
    """`reasons`: why the member isn't ready; empty: it is. `failures`: of dependencies."""

    def __init__(
        self,
        reasons: Callable[[], Collection[Unready]],
        failures: Callable[[], Collection[DependencyFailure]] = tuple,
    ) -> None:
        self._reasons = reasons
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        """Return the readiness, and one sample per possible reason."""
        found = self._reasons()
        ready = float(not found)
        yield GaugeMetricFamily("schedd_ready", "1 while this member is ready.", value=ready)
        family = GaugeMetricFamily(
            "schedd_not_ready_reasons",
            "1 for each reason why this member isn't ready.",
            labels=["reason"],
        )
        for reason in Unready:
            family.add_metric([reason.value], float(reason in found))
        yield family
        yield from self._dependencies()

    def _dependencies(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "schedd_dependency_failure",
            "1 for each dependency that doesn't accept this member's writes, with the reason.",
            labels=["dependency", "reason"],
        )
        for failure in self._failures():
            family.add_metric([failure.dependency.value, failure.reason], 1.0)
        yield family
