"""All metrics by their names in Prometheus; one module per subject.

    Metrics   runs      outcomes of scheduled times, attempts and runs
              queue     waiting and running runs, overdue timers
              workers   attached workers, rejected assignments, rescued runs
              keeping   notifications, retention, the result store
              calls     duration of calls of PostgreSQL and etcd
              vitals    statistics that the leader reads from the database
              losses    lost members, lost workers and stuck jobs, read by the leader
    pools     statistics that an owner reads of its pools
              process   the event loop, the lease
    Cluster   leader and owned shards, from the view at each scrape
    Readiness whether the member is ready, and why not, at each scrape as for /readyz

Invariants
- Names follow Prometheus' conventions. A label has few values, all known beforehand: never an id, a
  job or a worker. Pool names are chosen by users; their number is limited.
- State (leader, owned shards) is read at the scrape, never counted.
- Values that are read at intervals are exported only while fresh.
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
    """The metrics that events update."""

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
