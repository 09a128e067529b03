"""The process itself: its event loop, and the lease that it lives by."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.runtime.loop_monitor import LoopMonitor
from schedd.telemetry.metrics.registry import Maker
from schedkit.lease_margin import Slack
from schedkit.set_aside import counts


class ProcessMetrics(Collector):
    """Its pulse, and the slack of its lease: asked at each scrape."""

    def __init__(self, make: Maker) -> None:
        self.pulse, self.slack = LoopMonitor(), Slack()
        make.gauge(
            "schedd_event_loop_longest_block_seconds",
            "The longest that the event loop stood still in the last minute or two.",
        ).set_function(lambda: self.pulse.longest)
        make.gauge(
            "schedd_event_loop_longest_own_block_seconds",
            "The processor time of the member in such a block, at most the block: its own work.",
        ).set_function(lambda: self.pulse.longest_by_own_work)
        make.gauge(
            "schedd_lease_ttl_seconds", "That the member's lease is granted for; 0: none yet."
        ).set_function(lambda: self.slack.ttl)

    def collect(self) -> Iterator[Metric]:
        """The slack, without a value where there was no lease; and what was set aside."""
        family = GaugeMetricFamily(
            "schedd_lease_slack_seconds",
            "The least trust in the member's lease that was left in the last minute or two.",
        )
        if (least := self.slack.least()) is not None:
            family.add_metric([], least)
        yield family
        aside = CounterMetricFamily(
            "schedd_items_set_aside", "Items that could not be handled, by kind.", labels=["kind"]
        )
        for kind, count in sorted(counts().items()):
            aside.add_metric([kind], count)
        yield aside
