"""Statistics that the leader reads from the database; only the leader exports them, while fresh."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.core.cluster.database_stats import LOOK_EVERY, DatabaseVitals

FRESH: Final = 3 * LOOK_EVERY.total_seconds()
"""Seconds after which no value is exported: another member leads, or the reading fails."""


class Vitals(Collector):
    """The last reading."""

    def __init__(self) -> None:
        self._seen: tuple[float, DatabaseVitals] | None = None

    def saw(self, vitals: DatabaseVitals) -> None:
        """Take a new reading."""
        self._seen = monotonic(), vitals

    def collect(self) -> Iterator[Metric]:
        """Return one gauge each, without a value where no reading is fresh."""
        oldest = GaugeMetricFamily(
            "schedd_database_oldest_transaction_seconds",
            "Age of the oldest open transaction that vacuum must wait for.",
        )
        letters = GaugeMetricFamily(
            "schedd_dead_letters_waiting", "Dead letters that aren't resolved, up to 10,000."
        )
        if (vitals := self._fresh()) is not None:
            oldest.add_metric([], vitals.oldest.total_seconds())
            letters.add_metric([], vitals.dead_letters)
        yield oldest
        yield letters

    def _fresh(self) -> DatabaseVitals | None:
        if self._seen is None or monotonic() - self._seen[0] >= FRESH:
            return None
        return self._seen[1]
