"""Lost members and workers, and jobs that no worker can run, exported while fresh."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.core.events import ClusterWatched

FRESH: Final = 60.0
"""Seconds after which no value is exported: another member leads, or the reading fails."""


class LossMetrics(Collector):
    """The last reading."""

    def __init__(self) -> None:
        self._seen: tuple[float, ClusterWatched] | None = None

    def saw(self, watched: ClusterWatched) -> None:
        """Take a new reading."""
        self._seen = monotonic(), watched

    def collect(self) -> Iterator[Metric]:
        """Return one gauge each, without a value where no reading is fresh."""
        seen = self._seen
        fresh = seen[1] if seen is not None and monotonic() - seen[0] < FRESH else None
        for name, help_, value in (
            (
                "schedd_lost_members",
                "Members that were lost within the retention and have not returned.",
                fresh.lost_members if fresh else None,
            ),
            (
                "schedd_lost_workers",
                "Lost workers that have not returned, without drained workers.",
                fresh.lost_workers if fresh else None,
            ),
            (
                "schedd_stuck_jobs",
                "Jobs whose runs wait although no worker has the handler or the labels.",
                fresh.stuck if fresh else None,
            ),
        ):
            gauge = GaugeMetricFamily(name, help_)
            if value is not None:
                gauge.add_metric([], value)
            yield gauge
