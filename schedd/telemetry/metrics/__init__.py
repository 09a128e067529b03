"""Everything that is counted, by its name in Prometheus; a module for each thing that is looked at.

    Metrics   runs      what became of instants, attempts and runs
              queue     what waits, runs and is behind
              workers   who is attached, what they refuse, what never came back
              keeping   notifications, retention, the result store
              calls     how long the database and etcd take
              vitals    what the leader reads of the database, now and then
              losses    what the leader reads of lost members, lost workers and stuck jobs
    pools     what an owner reads of its pools, now and then
              process   the event loop, the lease
    Cluster   who leads, what is owned: asked of the view at each scrape
    Readiness whether it is ready, and why not: asked as /readyz asks, at each scrape

Invariants
- Names by Prometheus' conventions; a label has few values, all known beforehand: never an id, a
  job or a worker. The one that people choose is a pool's, and of those there are so many at most.
- What is true now (who leads, what is owned) is asked of the cluster at the scrape, never counted.
- What is read now and then is told while it is fresh, and not at all afterwards.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from schedd.telemetry.metrics.calls import Calls
from schedd.telemetry.metrics.cluster import ClusterGauges as ClusterGauges
from schedd.telemetry.metrics.database_stats import Vitals
from schedd.telemetry.metrics.losses import LossMetrics
from schedd.telemetry.metrics.pools import PoolMetrics
from schedd.telemetry.metrics.process import ProcessMetrics
from schedd.telemetry.metrics.readiness import ReadinessGauges as ReadinessGauges
from schedd.telemetry.metrics.ready_queue import Queue
from schedd.telemetry.metrics.registry import Maker
from schedd.telemetry.metrics.retention import RetentionMetrics
from schedd.telemetry.metrics.runs import RunMetrics
from schedd.telemetry.metrics.workers import WorkerMetricSet


class MemberMetrics:
    """What events are counted in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = Maker(registry)
        self.runs = RunMetrics(make)
        self.queue = Queue(make)
        self.workers = WorkerMetricSet(make)
        self.keeping = RetentionMetrics(make)
        self.calls = Calls(make)
        self.vitals = Vitals()
        self.losses = LossMetrics()
        self.pools = PoolMetrics()
        self.process = ProcessMetrics(make)
        for collector in (self.vitals, self.losses, self.pools, self.process):
            registry.register(collector)
