"""Statistics that an owner reads of its pools. The pool name is the only label that users choose.

If there are more than `MOST` pools, those with the most runs have series by name; the rest share
the series `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.core.cluster.queue_stats import PoolSurvey

MOST: Final = 50
"""The most pools of one member with their own series."""
OTHER: Final = "other"

Of = Callable[[PoolSurvey], float | None]


@dataclass(frozen=True, slots=True)
class PoolGauge:
    """One gauge of a pool, and how the values of several pools are combined."""

    name: str
    text: str
    of: Of
    together: Callable[[Sequence[float]], float] = sum


COLUMNS: Final = (
    PoolGauge(
        "schedd_pool_slots",
        "Slots of the workers that can run every job of this pool that was examined.",
        lambda pool: pool.slots,
        min,
    ),
    PoolGauge("schedd_pool_limit", "Concurrency limit of the pool.", lambda pool: pool.limit),
    PoolGauge("schedd_pool_running", "Running runs of the pool.", lambda pool: pool.running),
    PoolGauge(
        "schedd_pool_waiting",
        "Runs of the pool that wait at this member.",
        lambda pool: pool.waiting,
    ),
    PoolGauge("schedd_pool_paused", "1 while the pool is paused.", lambda pool: pool.paused, max),
)


class PoolMetrics(Collector):
    """The last reading."""

    def __init__(self) -> None:
        self._named: Sequence[tuple[str, Sequence[PoolSurvey]]] = ()

    def saw(self, pools: Sequence[PoolSurvey]) -> None:
        """Take the current pools of this member."""
        ranked = sorted(pools, key=lambda pool: (-(pool.waiting + pool.running), pool.key))
        named = [(str(pool.key), [pool]) for pool in ranked[:MOST]]
        self._named = [*named, (OTHER, ranked[MOST:])] if ranked[MOST:] else named

    def collect(self) -> Iterator[Metric]:
        """Return one gauge per column, with a sample per pool that has a value."""
        for column in COLUMNS:
            family = GaugeMetricFamily(column.name, column.text, labels=["pool"])
            for name, pools in self._named:
                values = [float(value) for pool in pools if (value := column.of(pool)) is not None]
                if values:
                    family.add_metric([name], column.together(values))
            yield family
