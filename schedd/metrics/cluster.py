"""What the newest view of the cluster says, asked at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.ports import Cluster


class ClusterGauges(Collector):
    """Who leads, who is there, what is owned."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """One gauge each."""
        view = self._cluster.view()
        me = self._cluster.tenure
        trusted = self._cluster.trusted()
        leads = trusted and me is not None and view.leader == me
        live = {member.tenure for member in view.members}
        owned = sum(tenure in live for tenure in view.assigned.values())
        for name, help_, value in (
            ("schedd_leader", "1 where this member leads.", leads),
            ("schedd_leader_known", "1 where a leader is known.", view.member(view.leader)),
            ("schedd_term", "The term of the shard map that is followed.", view.term),
            ("schedd_tenure_trusted", "1 while this member may act on its lease.", trusted),
            ("schedd_shards_owned", "Shards that this member owns.", len(self._cluster.owned())),
            ("schedd_shards_assigned", "Shards that the map gives to live members.", owned),
            ("schedd_members", "Members that live, as etcd says.", len(view.members)),
            ("schedd_workers", "Workers that live, as etcd says.", len(view.workers)),
        ):
            number = value if isinstance(value, int) else bool(value)
            yield GaugeMetricFamily(name, help_, value=float(number))
