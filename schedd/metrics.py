"""Everything that is counted, by its name in Prometheus.

Invariants
- Names by Prometheus' conventions; a label has few values, all known beforehand: never an id, a
  job or a worker.
- What is true now (who leads, what is owned) is asked of the cluster at the scrape, never counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.core.ids import IncarnationId
from schedd.core.lifecycle import Reason
from schedd.ports import Cluster
from schedd.pulse import Pulse

PROMPT: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Buckets of what should take milliseconds, in seconds."""

MISSED_FOR: Final = (Reason.WINDOW, Reason.CATCH_UP_NONE, Reason.START_DEADLINE)
"""Why instants are missed: each is there from the beginning on, at 0."""

LONG: Final = (
    *(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0),
)
"""Buckets of what may take hours, in seconds."""


class Metrics:
    """Everything that is counted, by its name in Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=registry, buckets=buckets)

        self.fired = counter("schedd_runs_fired", "Runs inserted by their schedule.")
        self.folded = counter(
            "schedd_runs_folded", "Rows that account for instants that didn't run."
        )
        self.missed = counter(
            "schedd_instants_missed", "Instants for which nothing runs any more.", "reason"
        )
        for reason in MISSED_FOR:
            self.missed.labels(reason.value)
        self.dead_letters = counter("schedd_dead_letters", "Runs that failed for good.")
        self.fire_lateness = histogram(
            "schedd_fire_lateness_seconds", "From due to inserted; early is 0.", PROMPT
        )
        self.assigned = counter("schedd_runs_assigned", "Runs handed out to workers.")
        self.wait = histogram("schedd_run_wait_seconds", "From ready to handed out.", PROMPT)
        self.ended = counter(
            "schedd_runs_ended", "Attempts whose result was accepted.", "state", "reason"
        )
        self.start_lateness = histogram(
            "schedd_run_start_lateness_seconds", "From due to the start of the handler.", PROMPT
        )
        self.duration = histogram(
            "schedd_run_duration_seconds", "Of one attempt, start to end.", LONG, "state"
        )
        self.stale = counter("schedd_stale_results", "Results refused for a greater token.")
        self.rescued = counter("schedd_rescued_runs", "Runs of lost workers that moved on.")
        self.never_started = counter(
            "schedd_never_started", "Assignments that their live worker never started."
        )
        self.refusals = counter("schedd_refusals", "Assignments that workers didn't take.", "why")
        self.greater_tokens = counter(
            "schedd_greater_tokens_seen",
            "Refusals by a worker that has seen a greater token than this cluster knows of.",
        )
        self.shards_lost = counter(
            "schedd_shards_lost", "Shards found to be another's, by the step that found it.", "step"
        )
        self.attached: set[IncarnationId] = set()
        gauge("schedd_workers_attached", "Workers attached to this member.").set_function(
            lambda: len(self.attached)
        )
        self.paused = gauge("schedd_cluster_paused", "1 while the whole cluster is paused.")
        self.ready = gauge("schedd_queue_ready", "Runs that wait here for a slot.")
        self.oldest_since: float | None = None
        """Of the monotonic clock; None: nothing waits."""
        gauge(
            "schedd_queue_oldest_seconds",
            "For how long the oldest of these has waited: for a slot, its pool, or its turn.",
        ).set_function(self._oldest)
        self.late = gauge(
            "schedd_queue_late", "Of these: late ones, caught up with behind what is due now."
        )
        self.pooled = gauge(
            "schedd_queue_pooled", "Of these: those of pools, which wait for room there."
        )
        self.running = gauge("schedd_queue_running", "Runs of this member's shards that run.")
        self.timers = gauge("schedd_timers_held", "Timers held in memory, due within the horizon.")
        self.notified = counter(
            "schedd_notifications_sent", "Notifications that were delivered.", "way"
        )
        self.notify_failed = counter(
            "schedd_notification_tries_failed", "Tries to deliver one that failed.", "way"
        )
        self.notify_given_up = counter(
            "schedd_notifications_given_up", "Notifications that nobody took in a day.", "way"
        )
        self.deleted = counter(
            "schedd_retention_deleted", "What wasn't kept any longer, by what it was.", "what"
        )
        self.store_away = counter(
            "schedd_result_store_failures", "Calls that the result store didn't answer."
        )
        self.notifications_wait = gauge(
            "schedd_notifications_waiting",
            "Notifications of this member's shards that aren't delivered, up to 10,000.",
        )
        self.pulse = Pulse()
        gauge(
            "schedd_event_loop_longest_block_seconds",
            "The longest that the event loop stood still in the last minute or two.",
        ).set_function(lambda: self.pulse.longest)

    def _oldest(self) -> float:
        return 0.0 if self.oldest_since is None else max(0.0, monotonic() - self.oldest_since)


class ClusterGauges(Collector):
    """What the newest view of the cluster says, at each scrape."""

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
