"""The newest view of the cluster, read at each scrape.

While etcd is unavailable the last view stays. Leader and members are exported from it while this
member's lease is trusted; without a lease, while etcd answers. So a view that is older than any
lease never shows a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.cluster.observer import Observer


class ClusterGauges(Collector):
    """Leader, members and owned shards. `etcd_away`: seconds since a call of etcd was answered."""

    def __init__(self, cluster: Observer, etcd_away: Callable[[], float]) -> None:
        self._cluster, self._etcd_away = cluster, etcd_away

    def collect(self) -> Iterator[Metric]:
        view = self._cluster.view()
        me = self._cluster.tenure
        trusted = self._cluster.trusted()
        leads = trusted and me is not None and view.leader == me
        current = trusted or not self._etcd_away()
        members = view.members if current else ()
        live = {member.tenure for member in members}
        owned = sum(tenure in live for tenure in view.assigned.values())
        for name, help_, value in (
            ("schedd_leader", "1 where this member leads.", leads),
            ("schedd_leader_known", "1 where a leader is known.", view.leader in live),
            ("schedd_term", "The term of the current shard map.", view.term),
            ("schedd_tenure_trusted", "1 while this member may act on its lease.", trusted),
            ("schedd_shards_owned", "Shards that this member owns.", len(self._cluster.owned())),
            ("schedd_shards_assigned", "Shards that the map assigns to live members.", owned),
            (
                "schedd_members",
                "Members with a lease in etcd; 0 if etcd doesn't answer.",
                len(members),
            ),
            (
                "schedd_workers",
                "Workers with a lease in etcd, by its last answer.",
                len(view.workers),
            ),
        ):
            yield GaugeMetricFamily(name, help_, value=float(value))
