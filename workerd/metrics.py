"""The Prometheus metrics of a worker."""

from collections.abc import Iterator
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedkit.lease_margin import LeaseMargin
from schedkit.set_aside import counts


class WorkerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        self.slots = gauge("workerd_slots", "Slots of this worker.")
        self.free = gauge("workerd_slots_free", "Free slots.")
        self.used = gauge(
            "workerd_slots_used",
            "Slots in use by runs that the worker runs or has received to start later.",
        )
        self.spool = gauge(
            "workerd_spool_results", "Results in the spool that no member has acknowledged."
        )
        self.members = gauge("workerd_members_attached", "Members with a stream to this worker.")
        self.trusted = gauge(
            "workerd_trusted", "1 while the worker's lease is surely valid, else 0."
        )
        self.lease_margin = LeaseMargin()
        """Margin of the worker's lease, recorded at each refresh."""
        self.registry.register(_Lease(self.lease_margin))
        # The hot ones remember their children: finding one costs a lock.
        self.started = cache(counter("workerd_starts", "Attempts started.", ["action"]).labels)
        self.ended_attempts = cache(
            counter("workerd_outcomes", "Attempts ended.", ["outcome", "reason"]).labels
        )
        self.rejected = counter(
            "workerd_assignments_rejected",
            "Assignments rejected by this worker, by reason.",
            ["reason"],
        )
        self.answered = cache(
            counter("workerd_results_acknowledged", "Results acknowledged.", ["verdict"]).labels
        )
        self.blocks = counter(
            "workerd_handler_blocks",
            "Number of times a handler blocked its event loop for more than 1 s.",
            ["handler"],
        )
        self.blocked_for = gauge(
            "workerd_handler_blocked_seconds",
            "Seconds for which a handler has blocked its event loop; 0 if it doesn't.",
            ["handler"],
        )
        self.uploads = counter(
            "workerd_result_store_uploads",
            "Uploads of logs and large results to the result store.",
            ["kind", "outcome"],
        )


class _Lease(Collector):
    """The worker's lease, without a value if there is none, and the items set aside."""

    def __init__(self, margin: LeaseMargin) -> None:
        self._margin = margin

    def collect(self) -> Iterator[Metric]:
        ttl = self._margin.ttl or None
        yield GaugeMetricFamily("workerd_lease_ttl_seconds", "TTL of the worker's lease.", ttl)
        yield GaugeMetricFamily(
            "workerd_lease_margin_seconds",
            "Shortest time to the expiry of the worker's lease in the last minutes.",
            self._margin.least(),
        )
        aside = CounterMetricFamily(
            "workerd_items_set_aside",
            "Items that the worker couldn't process and skipped, by kind.",
            labels=["kind"],
        )
        for kind, count in sorted(counts().items()):
            aside.add_metric([kind], count)
        yield aside
