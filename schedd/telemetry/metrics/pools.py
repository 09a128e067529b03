"""What an owner reads of its pools: the one label that people choose.

Of more pools than `MOST` those of the most runs are told by name, and the rest in one: `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.core.cluster.queue_stats import PoolSurvey

MOST: Final = 50
"""Pools of one member that are told by name."""
OTHER: Final = "other"

Of = Callable[[PoolSurvey], float | None]


@dataclass(frozen=True, slots=True)
class PoolGauge:
    """One gauge of a pool: of one, and how it is told of several in one."""

    name: str
    text: str
    of: Of
    together: Callable[[Sequence[float]], float] = sum


COLUMNS: Final = (
    PoolGauge(
        "schedd_pool_slots",
        "Slots of the workers that can do every job of this pool that was looked at.",
        lambda pool: pool.slots,
        min,
    ),
    PoolGauge("schedd_pool_limit", "Runs at once that it allows.", lambda pool: pool.limit),
    PoolGauge("schedd_pool_running", "Runs of it that run.", lambda pool: pool.running),
    PoolGauge("schedd_pool_waiting", "Runs of it that wait here.", lambda pool: pool.waiting),
    PoolGauge("schedd_pool_paused", "1 while it is paused.", lambda pool: pool.paused, max),
)


class PoolMetrics(Collector):
    """The last survey."""

    def __init__(self) -> None:
        self._named: Sequence[tuple[str, Sequence[PoolSurvey]]] = ()

    def saw(self, pools: Sequence[PoolSurvey]) -> None:
        """These are this member's now."""
        ranked = sorted(pools, key=lambda pool: (-(pool.waiting + pool.running), pool.key))
        named = [(str(pool.key), [pool]) for pool in ranked[:MOST]]
        self._named = [*named, (OTHER, ranked[MOST:])] if ranked[MOST:] else named

    def collect(self) -> Iterator[Metric]:
        """A gauge a column, a sample a pool; none where it says nothing of a pool."""
        for column in COLUMNS:
            family = GaugeMetricFamily(column.name, column.text, labels=["pool"])
            for name, pools in self._named:
                values = [float(value) for pool in pools if (value := column.of(pool)) is not None]
                if values:
                    family.add_metric([name], column.together(values))
            yield family
