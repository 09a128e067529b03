"""All metrics by their names in Prometheus.

    COUNTERS, GAUGES, HISTOGRAMS   tables: name, text, labels; the recorder uses the names
    FreshGauges      values that the leader reads at intervals
    PoolMetrics      statistics that an owner reads of its pools
    ProcessMetrics   the margin of the lease, and items set aside
    ClusterGauges    leader and owned shards, from the view at each scrape
    ReadinessGauges  whether the member is ready, and why not, at each scrape as for /readyz

Invariants
- Names follow Prometheus' conventions. A label has few values, all known beforehand: never an id, a
  job or a worker. Pool names are chosen by users; their number is limited.
- State (leader, owned shards) is read at the scrape, never counted.
- Values that are read at intervals are exported only while fresh.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.cluster.observer import Observer
from schedd.core.cluster.dependency import DependencyFailure, Unready
from schedd.core.cluster.statistics import LOOK_EVERY, Behind, PoolStats
from schedd.core.ids import IncarnationId
from schedd.core.runs.lifecycle import Reason
from schedd.runtime.loop_monitor import LoopMonitor
from schedkit.lease_margin import LeaseMargin
from schedkit.set_aside import counts

PROMPT: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Buckets for durations of milliseconds, in seconds."""
LONG: Final = (
    *(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0),
)
"""Buckets for durations of up to hours, in seconds."""
CALLS: Final = (0.002, 0.01, 0.05, 0.25, 1.0, 5.0)
"""Buckets for calls with a deadline, in seconds. Few, because there are some dozen calls, and a
scrape blocks the event loop while it writes them.
"""

CALLS_FAILED: Final = "Requests to PostgreSQL or etcd that got no answer, by call."

COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "schedd_runs_fired": ("Runs created by the schedules of jobs.",),
    "schedd_runs_merged": (
        "Records of scheduled times that didn't run. Consecutive times share one record.",
    ),
    "schedd_scheduled_times_missed": ("Scheduled times that were missed.", "reason"),
    "schedd_dead_letters": ("Runs that failed for good.",),
    "schedd_runs_assigned": ("Runs dispatched to workers.",),
    "schedd_runs_ended": (
        "Attempts with an accepted result, and runs that changed their state without a result.",
        "state",
        "reason",
    ),
    "schedd_stale_results": (
        "Results rejected because a later assignment of the run has a greater token.",
    ),
    "schedd_runs_rescued": (
        "Runs of lost workers that this member started again or recorded as failed.",
    ),
    "schedd_assignments_not_started": ("Assignments that a running worker didn't start in time.",),
    "schedd_assignments_rejected": ("Assignments that workers rejected, by reason.", "reason"),
    "schedd_greater_tokens_seen": (
        (
            "Assignments rejected by a worker that has seen a greater token than this cluster has"
            " issued."
        ),
    ),
    "schedd_shards_lost": (
        "Shards that this member lost to another owner, by the step that noticed the loss.",
        "step",
    ),
    "schedd_shards_moved": ("Shards taken or released by this member.", "what"),
    "schedd_notifications_sent": ("Notifications that were delivered.", "channel"),
    "schedd_notification_attempts_failed": (
        "Failed attempts to deliver a notification.",
        "channel",
    ),
    "schedd_notifications_abandoned": (
        "Notifications that were abandoned because no delivery succeeded within a day.",
        "channel",
    ),
    "schedd_retention_deleted": ("Deleted items past their retention, by kind.", "what"),
    "schedd_result_store_failures": ("Calls of the result store that got no answer.",),
    "schedd_database_calls_failed": (CALLS_FAILED, "call"),
    "schedd_etcd_calls_failed": (CALLS_FAILED, "call"),
}
"""Name without the suffix `_total` → text, labels."""

FROM_THE_BEGINNING: Final[Mapping[str, Sequence[str]]] = {
    "schedd_scheduled_times_missed": (
        Reason.WINDOW,
        Reason.CATCH_UP_NONE,
        Reason.START_DEADLINE,
        Reason.EDITED,
        Reason.DELETED,
    ),
    "schedd_shards_moved": ("taken", "released"),
}
"""Counter → label values whose series exist from the beginning, at 0."""

GAUGES: Final[Mapping[str, str]] = {
    "schedd_cluster_paused": "1 while the whole cluster is paused.",
    "schedd_queue_ready": "Runs in memory that wait for a slot at this member.",
    "schedd_queue_oldest_seconds": (
        "Wait of the oldest run in memory: for a slot, for its pool, or for runs before it."
    ),
    "schedd_queue_catch_up": "Late runs in memory, which wait behind runs that are due now.",
    "schedd_queue_in_pools": "Waiting runs in memory whose job has a pool.",
    "schedd_queue_running": "Running runs of this member's shards.",
    "schedd_timers_loaded": "Timers in memory, due within the next 10 s.",
    "schedd_catch_up_timers": "Overdue timers of this member's shards, up to 10,000.",
    "schedd_catch_up_behind_seconds": (
        "Time since the oldest overdue timer of this member's shards was due; else 0."
    ),
    "schedd_backfill_runs_left": (
        "Scheduled times that open backfills of this member's shards haven't processed yet."
    ),
    "schedd_workers_attached": "Workers attached to this member.",
    "schedd_slots": "Slots of attached workers that accept runs.",
    "schedd_slots_free": (
        "Free slots of attached workers that accept runs, by their last heartbeats."
    ),
    "schedd_notifications_waiting": (
        "Undelivered notifications of this member's shards, up to 10,000."
    ),
    "schedd_event_loop_longest_block_seconds": (
        "Longest block of the member's event loop, in the last one or two minutes."
    ),
    "schedd_event_loop_longest_own_block_seconds": (
        "Longest block caused by the member's own work: processor time during the block."
    ),
    "schedd_lease_ttl_seconds": "TTL of the member's lease; 0: no lease yet.",
}

HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...], tuple[str, ...]]]] = {
    "schedd_fire_lateness_seconds": (
        "Time from the due time of a run until the run is stored; 0 if it is stored before.",
        PROMPT,
        (),
    ),
    "schedd_run_wait_seconds": ("Time for which ready runs waited to be dispatched.", PROMPT, ()),
    "schedd_run_start_lateness_seconds": (
        "Time from the due time of a run to the start of its first attempt.",
        PROMPT,
        (),
    ),
    "schedd_run_duration_seconds": ("Duration of one attempt.", LONG, ("state",)),
    "schedd_database_call_seconds": (
        "Duration of a transaction with its wait for a thread, by call.",
        CALLS,
        ("call",),
    ),
    "schedd_etcd_call_seconds": ("Duration of a request to etcd, by call.", CALLS, ("call",)),
}
"""Name → text, buckets, labels. A duration of a call includes no wait for the event loop, except
for answers of etcd that arrive on it.
"""


class BatchHistogram(Histogram):
    """A histogram that counts many values in one call."""

    def observe_all(self, values: Iterable[float]) -> None:
        """Observe each value; a negative one counts as 0."""
        ordered = sorted(values)
        self._sum.inc(sum(ordered[bisect_left(ordered, 0.0) :]))
        counted = 0
        for bound, bucket in zip(self._upper_bounds, self._buckets, strict=True):
            below = bisect_right(ordered, bound, lo=counted)
            if below > counted:
                bucket.inc(below - counted)
                counted = below


class MemberMetrics:
    """The metrics of the tables, by name, and values that are read at each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            name: Counter(name, text, labels, registry=registry)
            for name, (text, *labels) in COUNTERS.items()
        }
        self._gauges = {name: Gauge(name, text, registry=registry) for name, text in GAUGES.items()}
        self._histograms = {
            name: BatchHistogram(name, text, labels, registry=registry, buckets=buckets)
            for name, (text, buckets, labels) in HISTOGRAMS.items()
        }
        for name, values in FROM_THE_BEGINNING.items():
            for value in values:
                self.count(name, 0, value)
        self.vitals, self.losses, self.pools = vitals(), losses(), PoolMetrics()
        self.pulse, self.lease_margin = LoopMonitor(), LeaseMargin()
        process = ProcessMetrics(self.lease_margin)
        for collector in (self.vitals, self.losses, self.pools, process):
            registry.register(collector)
        self.attached: set[IncarnationId] = set()
        self.oldest_since: float | None = None
        """When the oldest run began to wait, by the monotonic clock; None: no run waits."""
        self.surveyed = Behind()
        """Overdue timers, by the last reading of rows."""
        self.held: Callable[[], Behind] = Behind
        """Returns overdue timers by memory at each scrape: the only source while the database is
        unavailable.
        """
        self._read_at_scrapes()

    def _read_at_scrapes(self) -> None:
        read: dict[str, Callable[[], float]] = {
            "schedd_queue_oldest_seconds": lambda: (
                0.0 if self.oldest_since is None else max(0.0, monotonic() - self.oldest_since)
            ),
            "schedd_catch_up_timers": lambda: max(self.surveyed.timers, self.held().timers),
            "schedd_catch_up_behind_seconds": lambda: max(
                self.surveyed.since, self.held().since
            ).total_seconds(),
            "schedd_workers_attached": lambda: len(self.attached),
            "schedd_event_loop_longest_block_seconds": lambda: self.pulse.longest,
            "schedd_event_loop_longest_own_block_seconds": lambda: self.pulse.longest_by_own_work,
            "schedd_lease_ttl_seconds": lambda: self.lease_margin.ttl,
        }
        for name, value_of in read.items():
            self.read(name, value_of)

    def count(self, name: str, by: float = 1, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def set(self, name: str, value: float) -> None:
        self._gauges[name].set(value)

    def read(self, name: str, value_of: Callable[[], float]) -> None:
        """Read the value of a gauge at each scrape."""
        self._gauges[name].set_function(value_of)

    def observe(self, name: str, values: Iterable[float], *labels: str) -> None:
        """Observe values in a histogram; a negative one counts as 0."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe_all(values)


class ProcessMetrics(Collector):
    """The margin of the lease, and the items set aside, read at each scrape."""

    def __init__(self, lease_margin: LeaseMargin) -> None:
        self._lease_margin = lease_margin

    def collect(self) -> Iterator[Metric]:
        """Return the margin, without a value if there was no lease, and the items set aside."""
        family = GaugeMetricFamily(
            "schedd_lease_margin_seconds",
            "Shortest time to the expiry of the member's lease, in the last one or two minutes.",
        )
        if (least := self._lease_margin.least()) is not None:
            family.add_metric([], least)
        yield family
        aside = CounterMetricFamily(
            "schedd_items_set_aside",
            "Items that the member couldn't process and skipped, by kind.",
            labels=["kind"],
        )
        for kind, count in sorted(counts().items()):
            aside.add_metric([kind], count)
        yield aside


# Values that the leader reads at intervals; only the leader exports them, while fresh.


class FreshGauges(Collector):
    """Gauges of the last reading, without a value once it is older than `fresh_for` seconds:
    another member leads, or the reading fails. A gauge: name, text, and its value of a reading.
    """

    def __init__(
        self, fresh_for: float, *gauges: tuple[str, str, Callable[[Any], float | None]]
    ) -> None:
        self._fresh_for, self._gauges = fresh_for, gauges
        self._seen: tuple[float, object] | None = None

    def add_reading(self, reading: object) -> None:
        self._seen = monotonic(), reading

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        fresh = seen is not None and monotonic() - seen[0] < self._fresh_for
        for name, text, value_of in self._gauges:
            gauge = GaugeMetricFamily(name, text)
            if seen is not None and fresh and (value := value_of(seen[1])) is not None:
                gauge.add_metric([], value)
            yield gauge


VITALS_FRESH: Final = 3 * LOOK_EVERY.total_seconds()


def vitals() -> FreshGauges:
    return FreshGauges(
        VITALS_FRESH,
        (
            "schedd_database_oldest_transaction_seconds",
            "Age of the oldest open transaction that vacuum must wait for.",
            lambda vitals: vitals.oldest.total_seconds(),
        ),
        (
            "schedd_dead_letters_waiting",
            "Dead letters that aren't resolved, up to 10,000.",
            lambda vitals: vitals.dead_letters,
        ),
    )


def losses() -> FreshGauges:
    return FreshGauges(
        60.0,
        (
            "schedd_lost_members",
            "Members that were lost and have not returned, within the retention of losses.",
            lambda watched: watched.lost_members,
        ),
        (
            "schedd_lost_workers",
            "Workers that were lost and have not returned; drained workers aren't counted.",
            lambda watched: watched.lost_workers,
        ),
        (
            "schedd_stuck_jobs",
            "Jobs whose runs wait because no worker can run them.",
            lambda watched: watched.stuck,
        ),
    )


# Statistics that an owner reads of its pools. The pool name is the only label that users choose.
#
# If there are more than `MOST_POOLS` pools, those with the most runs have series by name; the rest
# share the series `other`.

MOST_POOLS: Final = 50
"""The most pools of one member with their own series."""
OTHER_POOLS: Final = "other"

POOL_GAUGES: Final[
    Sequence[tuple[str, str, Callable[[PoolStats], float | None], Callable[[list[float]], float]]]
] = (
    (
        "schedd_pool_slots",
        "Slots of the workers that can run all examined jobs of the pool.",
        lambda pool: pool.slots,
        min,
    ),
    ("schedd_pool_limit", "Concurrency limit of the pool.", lambda pool: pool.limit, sum),
    ("schedd_pool_running", "Running runs of the pool.", lambda pool: pool.running, sum),
    (
        "schedd_pool_waiting",
        "Runs of the pool that wait at this member.",
        lambda pool: pool.waiting,
        sum,
    ),
    ("schedd_pool_paused", "1 while the pool is paused.", lambda pool: pool.paused, max),
)
"""Gauges of a pool: name, text, value, and how the values of several pools are combined."""


class PoolMetrics(Collector):
    def __init__(self) -> None:
        self._named: Sequence[tuple[str, Sequence[PoolStats]]] = ()

    def set_pools(self, pools: Sequence[PoolStats]) -> None:
        ranked = sorted(pools, key=lambda pool: (-(pool.waiting + pool.running), pool.key))
        named = [(str(pool.key), [pool]) for pool in ranked[:MOST_POOLS]]
        self._named = [*named, (OTHER_POOLS, ranked[MOST_POOLS:])] if ranked[MOST_POOLS:] else named

    def collect(self) -> Iterator[Metric]:
        for gauge, text, value_of, together in POOL_GAUGES:
            family = GaugeMetricFamily(gauge, text, labels=["pool"])
            for name, pools in self._named:
                values = [float(value) for pool in pools if (value := value_of(pool)) is not None]
                if values:
                    family.add_metric([name], together(values))
            yield family


# The newest view of the cluster, read at each scrape.
#
# While etcd is unavailable the last view stays. Leader and members are exported from it while this
# member's lease is trusted; without a lease, while etcd answers. So a view that is older than any
# lease never shows a leader.


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
            ("schedd_leader", "1 if this member is the leader, else 0.", leads),
            (
                "schedd_leader_known",
                "1 if this member knows a running leader, else 0.",
                view.leader in live,
            ),
            ("schedd_term", "Term of the leader that wrote the current shard map.", view.term),
            (
                "schedd_tenure_trusted",
                "1 while this member's lease in etcd is surely valid, else 0.",
                trusted,
            ),
            ("schedd_shards_owned", "Shards that this member owns.", len(self._cluster.owned())),
            ("schedd_shards_assigned", "Shards that the leader assigns to live members.", owned),
            (
                "schedd_members",
                "Members with a lease in etcd; 0 if etcd doesn't answer.",
                len(members),
            ),
            (
                "schedd_workers",
                "Workers with a lease in etcd, by etcd's last answer.",
                len(view.workers),
            ),
        ):
            yield GaugeMetricFamily(name, help_, value=float(value))


# Whether this member is ready, and why not: evaluated at each scrape, as for `/readyz`.


class ReadinessGauges(Collector):
    """`reasons`: why the member isn't ready; empty: it is. `failures`: of dependencies."""

    def __init__(
        self,
        reasons: Callable[[], Collection[Unready]],
        failures: Callable[[], Collection[DependencyFailure]] = tuple,
    ) -> None:
        self._reasons = reasons
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        found = self._reasons()
        ready = float(not found)
        yield GaugeMetricFamily("schedd_ready", "1 while this member is ready.", value=ready)
        family = GaugeMetricFamily(
            "schedd_not_ready_reasons",
            "1 for each reason why this member isn't ready, else 0.",
            labels=["reason"],
        )
        for reason in Unready:
            family.add_metric([reason.value], float(reason in found))
        yield family
        yield from self._dependencies()

    def _dependencies(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "schedd_dependency_failure",
            "1 for PostgreSQL or etcd if it doesn't accept this member's writes, with the reason.",
            labels=["dependency", "reason"],
        )
        for failure in self._failures():
            family.add_metric([failure.dependency.value, failure.reason], 1.0)
        yield family
