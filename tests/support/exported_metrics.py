"""Metrics that members and workers export, and names of metrics in PromQL expressions.

exported()          {"schedd_queue_ready": set(), "schedd_runs_ended_total": {"state", "reason"}, …}
named(expression)   the metrics and labels that an expression asks for
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedd.core.cluster.statistics import PoolStats
from schedd.core.events import ClusterWatched, DatabaseSeen, QueueStatsRead
from schedd.core.runs.pools import PoolKey
from schedd.telemetry.recorder import Telemetry
from schedkit.clock import boottime
from schedkit.set_aside import note
from support.web import StubCluster
from workerd.metrics import WorkerMetrics

THEIRS = frozenset({"job", "instance", "le"})
"""Labels that Prometheus puts there, or makes of a histogram."""
ENDS = ("", "_total", "_bucket", "_count", "_sum")

Exported = dict[str, set[str]]


def exported() -> Exported:
    """Each series of a member and of a worker with its labels, also where it has no value yet."""
    note("item", "one", "for a sample")
    telemetry = Telemetry()
    telemetry.observe(StubCluster(), "0.1")
    failure = DependencyFailure(Dependency.ETCD, "no_space", "", "", datetime.now(UTC))
    telemetry.observe_readiness(dict, lambda: [failure])
    telemetry.metrics.lease_margin.renewed(boottime() + 3, 5.0)
    telemetry.emit(QueueStatsRead((PoolStats(PoolKey("default/etl"), 1, 2, 3, 4, paused=False),)))
    telemetry.emit(DatabaseSeen(timedelta(0), 0))
    telemetry.emit(ClusterWatched(lost_members=0, lost_workers=0, stuck=0))
    worker = WorkerMetrics()
    worker.lease_margin.renewed(boottime() + 3, 15.0)
    return _of(telemetry.registry) | _of(worker.registry)


def _of(registry: CollectorRegistry) -> Exported:
    series: Exported = {}
    for metric in registry.collect():
        for sample in metric.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    for one in registry._collector_to_names:
        if isinstance(one, MetricWrapperBase):
            for end in ENDS:
                series.setdefault(one._name + end, set()).update(one._labelnames)
    return series


@dataclass(frozen=True)
class Named:
    """Metrics and labels in an expression. `recorded`: names of recording rules."""

    metrics: frozenset[str]
    recorded: frozenset[str]
    labels: frozenset[str]


def named(expression: str) -> Named:
    """Read off its text, comments left out."""
    text = re.sub(r"(?m)^\s*#.*$", "", expression)
    grouped = re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", text)
    matched = re.findall(r"[{,]\s*(\w+)\s*[=!]", text)
    return Named(
        frozenset(re.findall(r"\b(?:schedd|workerd|process)_\w+", text)),
        frozenset(re.findall(r"\bschedd:[\w:]+", text)),
        frozenset(one.strip() for each in grouped for one in each.split(",")) | set(matched),
    )


def labels_of(metrics: Iterable[str], known: Exported) -> set[str]:
    """Return the labels that any of these metrics has."""
    return set(THEIRS).union(*(known[name] for name in metrics))
