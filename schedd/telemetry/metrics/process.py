"""The process: its event loop, and the lease of the member."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.runtime.loop_monitor import LoopMonitor
from schedd.telemetry.metrics.registry import Maker
from schedkit.lease_margin import Slack
from schedkit.set_aside import counts


class ProcessMetrics(Collector):
    """Blocks of the event loop, and the slack of the lease, read at each scrape."""

    def __init__(self, make: Maker) -> None:
        self.pulse, self.slack = LoopMonitor(), Slack()
        make.gauge(
            "schedd_event_loop_longest_block_seconds",
            "Longest block of the event loop in the last one or two minutes.",
        ).set_function(lambda: self.pulse.longest)
        make.gauge(
            "schedd_event_loop_longest_own_block_seconds",
            "Longest block by the member's own work: processor time used during the block.",
        ).set_function(lambda: self.pulse.longest_by_own_work)
        make.gauge(
            "schedd_lease_ttl_seconds", "TTL of the member's lease; 0: no lease yet."
        ).set_function(lambda: self.slack.ttl)

    def collect(self) -> Iterator[Metric]:
        """Return the slack, without a value if there was no lease, and the items set aside."""
        family = GaugeMetricFamily(
            "schedd_lease_slack_seconds",
            "Least remaining trust in the member's lease in the last one or two minutes.",
        )
        if (least := self.slack.least()) is not None:
            family.add_metric([], least)
        yield family
        aside = CounterMetricFamily(
            "schedd_items_set_aside", "Items that could not be processed, by kind.", labels=["kind"]
        )
        for kind, count in sorted(counts().items()):
            aside.add_metric([kind], count)
        yield aside
