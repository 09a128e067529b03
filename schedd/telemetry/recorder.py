"""Turn events into metrics and log lines.

    loops ──emit(event)──▶ SEEN[type of event] ──▶ counters, histograms, gauges ──▶ /metrics
                                         └──────▶ a log line, if an operator would act on it
    Cluster ──read at each scrape──▶ leader, term, shards owned, members
    readiness, overdue timers in memory ──read at each scrape──▶ gauges

Invariants
- The table has one entry for each kind of event (a test compares them with `Event`).
- `emit` is fast, never waits and never fails: loops call it during their work.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from schedd.cluster.observer import Observer
from schedd.core import events
from schedd.core.cluster.dependency import DependencyFailure, Unready
from schedd.core.cluster.statistics import Behind
from schedd.core.runs.lifecycle import Reason, State
from schedd.runtime.loop_monitor import LoopMonitor
from schedd.telemetry.metrics import ClusterGauges, MemberMetrics, ReadinessGauges
from schedkit.clock import boottime
from schedkit.daemon.logs import listed
from schedkit.lease_margin import LeaseMargin
from schedkit.ttl_cache import TtlCache
from schedproto.v1.worker_service_pb2 import Refusal

# A log line for each run that failed for good; of very many, some per second and a count.
#
# log_runs ──▶ fewer than A_SECOND in this second? ──yes──▶ its line
#     └─no─▶ counted ──flush, when the second has ended──▶ one line with the count

A_SECOND: Final = 20
"""Lines per second."""


class DeadRunLines:
    """The runs logged in this second, and the suppressed ones. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._since = clock()
        self._logged = 0
        self._suppressed = 0

    def log_runs(self, runs: Iterable[events.DeadRun]) -> None:
        """Log a line for each run, up to the limit."""
        self._start_new_second()
        for run in runs:
            if self._logged == A_SECOND:
                self._suppressed += 1
                continue
            self._logged += 1
            log.info(
                "run failed for good",
                extra={
                    "run_id": run.run,
                    "job": run.job,
                    "reason": run.reason,
                    "attempt": run.attempt,
                },
            )

    def flush(self) -> None:
        """Log how many had no line, after their second has ended."""
        if self._suppressed:
            self._start_new_second()

    def _start_new_second(self) -> None:
        now = self._clock()
        if now - self._since < 1:
            return
        if self._suppressed:
            log.info("%d more runs failed for good; see `schedctl dlq groups`", self._suppressed)
        self._since, self._logged, self._suppressed = now, 0, 0


log = logging.getLogger(__name__)

REJECT_REASONS: Final = frozenset(
    name.removeprefix("WHY_") for name in Refusal.Why.DESCRIPTOR.values_by_name
)
STEPS: Final = frozenset({"fire", "assign", "give_back", "rescue", "end_waiting"})
OTHER: Final = "other"
REQUESTED: Final = frozenset({Reason.EDITED, Reason.DELETED})
"""Reasons for missed times that a user's change caused."""

OPEN_METRICS: Final = "application/openmetrics-text"
FORMS: Final = ("", f"{OPEN_METRICS}; version=1.0.0")
"""Accept headers passed to the library: plain text, or OpenMetrics. Never a caller's own header:
answers are cached per header (`scraped`), and the library fails on some headers.
"""


class Telemetry:
    """Counts events and logs the important ones; `emit` is the `Emit` of the loops."""

    def __init__(self) -> None:
        # An unused series beside each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs has no types
        self.registry: Final = CollectorRegistry()
        self._metrics = MemberMetrics(self.registry)
        self._dead_runs = DeadRunLines()
        self._etcd_away: Callable[[], float] = lambda: 0.0
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._scraped = TtlCache(self.exposition)

    def observe(self, cluster: Observer, version: str) -> None:
        """Read this view of the cluster at each scrape, and export the version. Call it once."""
        Info("schedd_build", "Version of this member.", registry=self.registry).info(
            {"version": version}
        )
        self.registry.register(ClusterGauges(cluster, self._etcd_away))

    def observe_etcd(self, away_for: Callable[[], float]) -> None:
        """Read this at each scrape: seconds since a call of etcd was answered. Before `observe`."""
        self._etcd_away = away_for

    def observe_slots(self, slots: Callable[[], int], free: Callable[[], int]) -> None:
        """Read these at each scrape: slots of the attached workers, and the free ones."""
        self._metrics.workers.slots.set_function(slots)
        self._metrics.workers.free.set_function(free)

    def observe_readiness(
        self,
        reasons: Callable[[], Collection[Unready]],
        failures: Callable[[], Collection[DependencyFailure]],
    ) -> None:
        """Read these at each scrape: why the member isn't ready, and failing dependencies. Once."""
        self.registry.register(ReadinessGauges(reasons, failures))

    def observe_behind(self, held: Callable[[], Behind]) -> None:
        """Read this at each scrape: overdue timers in memory. The database's number is known only
        while it answers.
        """
        self._metrics.queue.held = held

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text in the format of the Accept header, and its media type."""
        encode, media_type = choose_encoder(FORMS[OPEN_METRICS in accept.lower()])
        return encode(self.registry), media_type

    def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return `exposition`, at most a second old: frequent callers share one answer."""
        return self._scraped.get(FORMS[OPEN_METRICS in accept.lower()])

    @property
    def pulse(self) -> LoopMonitor:
        """The monitor of the event loop, which runs on it."""
        return self._metrics.process.pulse

    @property
    def lease_margin(self) -> LeaseMargin:
        """The margin of the member's lease; the lease keeper records it."""
        return self._metrics.process.lease_margin

    def emit(self, event: events.Event) -> None:
        """Count the event, and log it if it is important."""
        SEEN[type(event)](self._metrics, event)
        if isinstance(event, events.DeadLettered):
            self._dead_runs.log_runs(event.runs)
        self._dead_runs.flush()


def _fired(metrics: MemberMetrics, event: events.TimersFired) -> None:
    metrics.runs.fired.inc(event.runs)
    metrics.runs.merged.inc(event.merged)
    metrics.runs.fire_lateness.observe_all(map(timedelta.total_seconds, event.latenesses))


def _missed(metrics: MemberMetrics, event: events.RunsMissed) -> None:
    metrics.runs.missed.labels(event.reason.value).inc(event.count)
    level = logging.INFO if event.reason in REQUESTED else logging.WARNING
    log.log(level, "%d scheduled times missed: %s", event.count, event.reason.value)


def _assigned(metrics: MemberMetrics, event: events.AssignedRuns) -> None:
    metrics.runs.assigned.inc(len(event.waits))
    metrics.runs.wait.observe_all(event.waits)


def _record_attempt_end(metrics: MemberMetrics, event: events.AttemptEnded) -> None:
    metrics.runs.ended.labels(event.state.value, event.reason or "").inc()
    if event.lateness is not None:
        metrics.runs.start_lateness.observe(_seconds(event.lateness))
    if event.duration is not None:
        metrics.runs.duration.labels(event.state.value).observe(_seconds(event.duration))


def _succeeded(metrics: MemberMetrics, event: events.RunsSucceeded) -> None:
    metrics.runs.ended.labels(State.SUCCEEDED.value, "").inc(len(event.durations))
    metrics.runs.start_lateness.observe_all(event.latenesses)
    metrics.runs.duration.labels(State.SUCCEEDED.value).observe_all(event.durations)


def _stale(metrics: MemberMetrics, event: events.StaleResult) -> None:
    metrics.runs.stale.inc()
    if not event.known:  # a caller can send any number of these: the audit log counts them
        log.debug("result rejected: the run doesn't exist run_id=%s", event.run)
        return
    log.warning(
        "stale result rejected: the run has a greater token",
        extra={"run_id": event.run, "token": event.token, "worker": event.worker},
    )


def _rescued(metrics: MemberMetrics, event: events.RunsRescued) -> None:
    metrics.workers.runs_rescued.inc(len(event.runs))
    log.warning(
        "%d runs of lost workers start again or failed",
        len(event.runs),
        extra={
            "run_ids": listed(event.runs),
            "incarnations": ",".join(map(str, event.incarnations)),
        },
    )


def _not_started(metrics: MemberMetrics, event: events.AssignmentsNotStarted) -> None:
    metrics.workers.not_started.inc(len(event.runs))
    log.info(
        "%d dispatched runs didn't start in time: they are dispatched again",
        len(event.runs),
        extra={"run_ids": listed(event.runs)},
    )


def _rejected(metrics: MemberMetrics, event: events.AssignmentRejected) -> None:
    metrics.workers.rejected.labels(_known(event.reason, REJECT_REASONS)).inc()
    log.debug(
        "worker rejected a run",
        extra={
            "run_id": event.run,
            "token": event.token,
            "reason": event.reason,
            "worker": event.worker,
        },
    )


def _greater_token(metrics: MemberMetrics, event: events.GreaterTokenSeen) -> None:
    metrics.workers.greater_tokens.inc()
    log.error(
        "a worker has seen a greater fencing token than this cluster has issued: check whether the"
        " database was restored from a backup",
        extra={
            "run_id": event.run,
            "token": event.token,
            "greatest": event.greatest,
            "worker": event.worker,
        },
    )


def _record_worker_attached(metrics: MemberMetrics, event: events.WorkerAttached) -> None:
    metrics.workers.attached.add(event.incarnation)
    log.info("worker %s attached", event.worker, extra=_who(event))


def _record_worker_detached(metrics: MemberMetrics, event: events.WorkerDetached) -> None:
    metrics.workers.attached.discard(event.incarnation)
    log.info("worker %s detached", event.worker, extra=_who(event))


def _who(event: events.WorkerAttached | events.WorkerDetached) -> dict[str, object]:
    return {"worker": event.worker, "incarnation": event.incarnation}


def _shards_lost(metrics: MemberMetrics, event: events.ShardsLost) -> None:
    metrics.workers.shards_lost.labels(_known(event.step, STEPS)).inc(len(event.shards))
    log.warning(
        "%d shards were taken over by another member",
        len(event.shards),
        extra={"step": event.step, "shards": ",".join(map(str, sorted(event.shards)))},
    )


def _shards_moved(metrics: MemberMetrics, event: events.ShardsMoved) -> None:
    metrics.workers.shards_moved.labels("taken").inc(event.taken)
    metrics.workers.shards_moved.labels("released").inc(event.released)


def _surveyed(metrics: MemberMetrics, event: events.QueueStatsRead) -> None:
    metrics.pools.set_pools(event.pools)
    metrics.queue.surveyed = Behind(event.overdue, event.behind)
    metrics.queue.backfilled.set(event.backfill)


def _waiting(metrics: MemberMetrics, event: events.Waiting) -> None:
    metrics.queue.ready.set(event.ready)
    oldest = event.oldest
    metrics.queue.oldest_since = None if oldest is None else monotonic() - oldest.total_seconds()
    metrics.queue.catch_up.set(event.catch_up)
    metrics.queue.in_pools.set(event.in_pools)
    metrics.queue.running.set(event.running)
    metrics.queue.timers.set(event.timers)


def _cluster_pause_changed(metrics: MemberMetrics, event: events.ClusterPauseChanged) -> None:
    metrics.queue.paused.set(event.by is not None)
    if event.by is None:
        log.info("cluster resumed")
    else:
        log.warning("cluster paused by %s: %s", event.by, event.note or "no note")


def _notified(metrics: MemberMetrics, event: events.Notified) -> None:
    channel = event.channel.value.lower()
    if not event.error:
        metrics.keeping.notified.labels(channel).inc()
        return
    metrics.keeping.notify_failed.labels(channel).inc()
    if event.abandoned:
        metrics.keeping.notify_abandoned.labels(channel).inc()
        log.error("notification by %s abandoned: %s", channel, event.error)
    else:
        log.info("notification by %s failed, will be retried: %s", channel, event.error)


def _notifications_expired(metrics: MemberMetrics, event: events.NotificationsExpired) -> None:
    channel = event.channel.value.lower()
    metrics.keeping.notify_abandoned.labels(channel).inc(event.count)
    log.error(
        "%d notifications by %s abandoned after a day without a delivery attempt: their receivers"
        " accept fewer notifications than are sent",
        event.count,
        channel,
    )


def _deleted(metrics: MemberMetrics, event: events.Deleted) -> None:
    for what, count in (("run", event.runs), ("log", event.logs), ("object", event.objects)):
        if count:
            metrics.keeping.deleted.labels(what).inc(count)


SEEN: Final[Mapping[type[events.Event], Callable[[MemberMetrics, Any], None]]] = {
    events.TimersFired: _fired,
    events.RunsMissed: _missed,
    events.DeadLettered: lambda metrics, event: metrics.runs.dead_letters.inc(len(event.runs)),
    events.AssignedRuns: _assigned,
    events.AttemptEnded: _record_attempt_end,
    events.RunsSucceeded: _succeeded,
    events.EndedUnreported: lambda metrics, event: metrics.runs.ended.labels(
        event.state.value, event.reason or ""
    ).inc(event.count),
    events.StaleResult: _stale,
    events.RunsRescued: _rescued,
    events.AssignmentsNotStarted: _not_started,
    events.AssignmentRejected: _rejected,
    events.GreaterTokenSeen: _greater_token,
    events.WorkerAttached: _record_worker_attached,
    events.WorkerDetached: _record_worker_detached,
    events.ShardsLost: _shards_lost,
    events.ShardsMoved: _shards_moved,
    events.QueueStatsRead: _surveyed,
    events.DatabaseSeen: lambda metrics, event: metrics.vitals.add_reading(event.vitals),
    events.ClusterWatched: lambda metrics, event: metrics.losses.add_reading(event),
    events.Called: lambda metrics, event: metrics.calls.count(event),
    events.Waiting: _waiting,
    events.ClusterPauseChanged: _cluster_pause_changed,
    events.Notified: _notified,
    events.NotificationsExpired: _notifications_expired,
    events.NotificationsWait: lambda metrics, event: metrics.keeping.notifications_wait.set(
        event.count
    ),
    events.Deleted: _deleted,
    events.ResultStoreAway: lambda metrics, _: metrics.keeping.store_away.inc(),
}
"""The function for each kind of event."""


def _seconds(length: timedelta) -> float:
    return max(0.0, length.total_seconds())


def _known(word: str, known: frozenset[str]) -> str:
    """Return the word as a label; an unknown one is `other`."""
    return word if word in known else OTHER
