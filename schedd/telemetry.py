"""Events into metrics and logs: the one file that knows Prometheus, and what people care to read.

    loops ──emit(event)──▶ Telemetry ──▶ counters, histograms, gauges ──▶ /metrics
                               └──────▶ a line of log, where somebody would act on it
    Cluster ──asked at each scrape──▶ leader, term, shards owned, members

Invariants
- Names by Prometheus' conventions; a label has few values, all known beforehand: never an id, a
  job or a worker.
- `emit` is quick, never waits and never fails: loops call it in the midst of their work.
- What is true now (who leads, what is owned) is asked of the cluster at the scrape, never counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final, assert_never

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schedd.core.events import (
    AssignedRuns,
    Ended,
    Event,
    Fired,
    GreaterTokenSeen,
    NeverStarted,
    Refused,
    RunsRescued,
    ShardsLost,
    StaleResult,
    Waiting,
    WorkerCame,
    WorkerWent,
)
from schedd.core.ids import IncarnationId
from schedd.ports import Cluster
from schedproto.v1.worker_service_pb2 import Refusal

log = logging.getLogger(__name__)

PROMPT: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Buckets of what should take milliseconds, in seconds."""

LONG: Final = (
    *(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0),
)
"""Buckets of what may take hours, in seconds."""

REFUSALS: Final = frozenset(
    name.removeprefix("WHY_") for name in Refusal.Why.DESCRIPTOR.values_by_name
)
STEPS: Final = frozenset({"fire", "assign", "give_back", "rescue", "end_waiting"})
OTHER: Final = "other"


class Telemetry:
    """Counts what happens and says what matters; `emit` is the `Emit` of the loops."""

    def __init__(self) -> None:
        # A series beside each counter that nobody looks at.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs has no types
        self.registry: Final = CollectorRegistry()
        self._metrics = _Metrics(self.registry)
        self._attached: set[IncarnationId] = set()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def observe(self, cluster: Cluster, version: str) -> None:
        """Ask this view of the cluster at each scrape, and say what runs here. Once."""
        Info("schedd_build", "What runs here.", registry=self.registry).info({"version": version})
        self.registry.register(ClusterGauges(cluster))

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text in the form that the Accept header asks for, and its media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type

    def emit(self, event: Event) -> None:
        """Count it, and say it where people care."""
        metrics = self._metrics
        match event:
            case Fired():
                metrics.fired.inc(event.runs)
                metrics.folded.inc(event.folds)
                _observe(metrics.fire_lateness, event.latenesses)
            case AssignedRuns():
                metrics.assigned.inc(event.count)
                _observe(metrics.wait, event.waits)
            case Ended():
                self._ended(event)
            case StaleResult():
                metrics.stale.inc()
                log.warning(
                    "a late result was refused: the run went on under a greater token",
                    extra={"run_id": event.run, "token": event.token, "worker": event.worker},
                )
            case RunsRescued():
                metrics.rescued.inc(event.count)
                log.warning(
                    "%d runs of lost workers moved on",
                    event.count,
                    extra={"incarnations": ",".join(map(str, event.incarnations))},
                )
            case NeverStarted():
                metrics.never_started.inc(event.count)
                log.info("%d assignments never started and went back", event.count)
            case Refused():
                metrics.refusals.labels(_known(event.why, REFUSALS)).inc()
                log.debug(
                    "a worker refused a run", extra={"why": event.why, "worker": event.worker}
                )
            case GreaterTokenSeen():
                metrics.greater_tokens.inc()
                log.error(
                    "a worker has seen a token greater than any this cluster knows of;"
                    " was the database restored? the shard is taken anew",
                    extra={
                        "run_id": event.run,
                        "token": event.token,
                        "greatest": event.greatest,
                        "worker": event.worker,
                    },
                )
            case WorkerCame() | WorkerWent():
                self._worker(event)
            case ShardsLost():
                metrics.shards_lost.labels(_known(event.step, STEPS)).inc(len(event.shards))
                log.warning(
                    "%d shards are no longer this member's",
                    len(event.shards),
                    extra={"step": event.step, "shards": ",".join(map(str, sorted(event.shards)))},
                )
            case Waiting():
                metrics.ready.set(event.ready)
                metrics.running.set(event.running)
                metrics.timers.set(event.timers)
            case _:
                assert_never(event)

    def _ended(self, event: Ended) -> None:
        self._metrics.ended.labels(event.state.value, event.reason or "").inc()
        if event.lateness is not None:
            self._metrics.start_lateness.observe(_seconds(event.lateness))
        if event.duration is not None:
            self._metrics.duration.labels(event.state.value).observe(_seconds(event.duration))

    def _worker(self, event: WorkerCame | WorkerWent) -> None:
        came = isinstance(event, WorkerCame)
        (self._attached.add if came else self._attached.discard)(event.incarnation)
        self._metrics.attached.set(len(self._attached))
        log.info(
            "worker %s %s",
            event.worker,
            "attached" if came else "is gone from here",
            extra={"incarnation": event.incarnation},
        )


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


class _Metrics:
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
        self.attached = gauge("schedd_workers_attached", "Workers attached to this member.")
        self.ready = gauge("schedd_queue_ready", "Runs that wait here for a slot.")
        self.running = gauge("schedd_queue_running", "Runs of this member's shards that run.")
        self.timers = gauge("schedd_timers_held", "Timers held in memory, due within the horizon.")


def _observe(histogram: Histogram, lengths: Iterable[timedelta]) -> None:
    for length in lengths:
        histogram.observe(_seconds(length))


def _seconds(length: timedelta) -> float:
    return max(0.0, length.total_seconds())


def _known(word: str, known: frozenset[str]) -> str:
    """The word as a label; one that nobody foresaw is `other`."""
    return word if word in known else OTHER
