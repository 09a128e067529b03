"""What the newest view of the cluster says, asked at each scrape.

The last view stays while etcd is away. Who leads and who lives is said from it for as long as this
member's lease is trusted, and by a member without one as long as etcd answers it: nobody leads by
a view that is older than any lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.ports import Cluster


class ClusterGauges(Collector):
    """Who leads, who is there, what is owned. `etcd_away`: for how many seconds no call of etcd was
    answered.
    """

    def __init__(self, cluster: Cluster, etcd_away: Callable[[], float]) -> None:
        self._cluster, self._etcd_away = cluster, etcd_away

    def collect(self) -> Iterator[Metric]:
        """One gauge each."""
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
            ("schedd_term", "The term of the shard map that is followed.", view.term),
            ("schedd_tenure_trusted", "1 while this member may act on its lease.", trusted),
            ("schedd_shards_owned", "Shards that this member owns.", len(self._cluster.owned())),
            ("schedd_shards_assigned", "Shards that the map gives to live members.", owned),
            (
                "schedd_members",
                "Members that live, as etcd says; 0 if it says nothing.",
                len(members),
            ),
            ("schedd_workers", "Workers that live, as etcd said last.", len(view.workers)),
        ):
            yield GaugeMetricFamily(name, help_, value=float(value))
