"""What this worker tells Prometheus."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedkit.lease_margin import Slack
from schedkit.set_aside import counts


class WorkerMetrics:
    """All series of one worker, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add = self.registry
        self.slots = Gauge("workerd_slots", "Slots in all.", registry=add)
        self.free = Gauge("workerd_slots_free", "Slots that nothing holds.", registry=add)
        self.used = Gauge("workerd_slots_used", "Slots held, armed or running.", registry=add)
        self.spool = Gauge(
            "workerd_spool_results", "Results that no member has stored yet.", registry=add
        )
        self.members = Gauge("workerd_members_attached", "Members attached to.", registry=add)
        self.trusted = Gauge("workerd_trusted", "1 while the lease surely lives.", registry=add)
        self.slack = Slack()
        """Of the worker's lease; who hears that it was refreshed notes it."""
        self.registry.register(_Lease(self.slack))
        self.starts = Counter("workerd_starts", "Attempts started.", ["action"], registry=add)
        self.outcomes = Counter(
            "workerd_outcomes", "Attempts ended.", ["outcome", "reason"], registry=add
        )
        self.refusals = Counter("workerd_refusals", "Assignments not taken.", ["why"], registry=add)
        self.settled = Counter(
            "workerd_results_settled", "Results acknowledged.", ["verdict"], registry=add
        )
        self.blocks = Counter(
            "workerd_handler_blocks",
            "Times that a handler blocked its event loop for longer than a second.",
            ["handler"],
            registry=add,
        )
        self.blocked_for = Gauge(
            "workerd_handler_blocked_seconds",
            "How long a handler has been blocking its event loop; 0 when it doesn't.",
            ["handler"],
            registry=add,
        )
        self.kept = Counter(
            "workerd_kept",
            "Logs and results that were to go to the result store.",
            ["what", "outcome"],
            registry=add,
        )

    @functools.cache  # noqa: B019 - lives as long as the process; finding a child costs a lock
    def started(self, action: str) -> Counter:
        """Attempts of one kind of action."""
        return self.starts.labels(action)

    @functools.cache  # noqa: B019 - as above
    def ended(self, outcome: str, reason: str) -> Counter:
        """Attempts that ended one way."""
        return self.outcomes.labels(outcome, reason)

    @functools.cache  # noqa: B019 - as above
    def answered(self, verdict: str) -> Counter:
        """Results that were answered one way."""
        return self.settled.labels(verdict)


class _Lease(Collector):
    """The lease as the worker has seen it, without a value where there was none; and what was set
    aside.
    """

    def __init__(self, slack: Slack) -> None:
        self._slack = slack

    def collect(self) -> Iterator[Metric]:
        ttl, slack = self._slack.ttl, self._slack.least()
        for name, text, value in (
            ("workerd_lease_ttl_seconds", "That the worker's lease is granted for.", ttl or None),
            (
                "workerd_lease_slack_seconds",
                "The least trust in the worker's lease that was left in the last minute or two.",
                slack,
            ),
        ):
            family = GaugeMetricFamily(name, text)
            if value is not None:
                family.add_metric([], value)
            yield family
        aside = CounterMetricFamily(
            "workerd_items_set_aside", "Items that could not be handled, by kind.", labels=["kind"]
        )
        for kind, count in sorted(counts().items()):
            aside.add_metric([kind], count)
        yield aside
