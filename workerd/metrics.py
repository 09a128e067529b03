"""The Prometheus metrics of a worker."""

import functools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedkit.lease_margin import LeaseMargin
from schedkit.set_aside import counts


class WorkerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add = self.registry
        self.slots = Gauge("workerd_slots", "Slots of this worker.", registry=add)
        self.free = Gauge("workerd_slots_free", "Free slots.", registry=add)
        self.used = Gauge(
            "workerd_slots_used",
            "Slots in use by runs that the worker runs or has received to start later.",
            registry=add,
        )
        self.spool = Gauge(
            "workerd_spool_results",
            "Results in the spool that no member has acknowledged.",
            registry=add,
        )
        self.members = Gauge(
            "workerd_members_attached", "Members with a stream to this worker.", registry=add
        )
        self.trusted = Gauge(
            "workerd_trusted", "1 while the worker's lease is surely valid, else 0.", registry=add
        )
        self.lease_margin = LeaseMargin()
        """Margin of the worker's lease, recorded at each refresh."""
        self.registry.register(_Lease(self.lease_margin))
        self.starts = Counter("workerd_starts", "Attempts started.", ["action"], registry=add)
        self.outcomes = Counter(
            "workerd_outcomes", "Attempts ended.", ["outcome", "reason"], registry=add
        )
        self.rejected = Counter(
            "workerd_assignments_rejected",
            "Assignments rejected by this worker, by reason.",
            ["reason"],
            registry=add,
        )
        self.acknowledged = Counter(
            "workerd_results_acknowledged", "Results acknowledged.", ["verdict"], registry=add
        )
        self.blocks = Counter(
            "workerd_handler_blocks",
            "Number of times a handler blocked its event loop for more than 1 s.",
            ["handler"],
            registry=add,
        )
        self.blocked_for = Gauge(
            "workerd_handler_blocked_seconds",
            "Seconds for which a handler has blocked its event loop; 0 if it doesn't.",
            ["handler"],
            registry=add,
        )
        self.uploads = Counter(
            "workerd_result_store_uploads",
            "Uploads of logs and large results to the result store.",
            ["kind", "outcome"],
            registry=add,
        )

    @functools.cache  # noqa: B019 - kept as long as the process; finding a child costs a lock
    def started(self, action: str) -> Counter:
        return self.starts.labels(action)

    @functools.cache  # noqa: B019 - as above
    def ended_attempts(self, outcome: str, reason: str) -> Counter:
        return self.outcomes.labels(outcome, reason)

    @functools.cache  # noqa: B019 - as above
    def answered(self, verdict: str) -> Counter:
        return self.acknowledged.labels(verdict)


class _Lease(Collector):
    """The worker's lease, without a value if there is none, and the items set aside."""

    def __init__(self, margin: LeaseMargin) -> None:
        self._margin = margin

    def collect(self) -> Iterator[Metric]:
        ttl, margin = self._margin.ttl, self._margin.least()
        for name, text, value in (
            ("workerd_lease_ttl_seconds", "TTL of the worker's lease.", ttl or None),
            (
                "workerd_lease_margin_seconds",
                "Shortest time to the expiry of the worker's lease in the last minutes.",
                margin,
            ),
        ):
            family = GaugeMetricFamily(name, text)
            if value is not None:
                family.add_metric([], value)
            yield family
        aside = CounterMetricFamily(
            "workerd_items_set_aside",
            "Items that the worker couldn't process and skipped, by kind.",
            labels=["kind"],
        )
        for kind, count in sorted(counts().items()):
            aside.add_metric([kind], count)
        yield aside
