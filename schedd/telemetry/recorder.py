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
from schedd.telemetry.metrics import ClusterGauges, MemberMetrics, ReadinessGauges
from schedkit.clock import boottime
from schedkit.daemon.logs import listed
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
        self.metrics = MemberMetrics(self.registry)
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

    def observe_readiness(
        self,
        reasons: Callable[[], Collection[Unready]],
        failures: Callable[[], Collection[DependencyFailure]],
    ) -> None:
        """Read these at each scrape: why the member isn't ready, and failing dependencies. Once."""
        self.registry.register(ReadinessGauges(reasons, failures))

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text in the format of the Accept header, and its media type."""
        encode, media_type = choose_encoder(FORMS[OPEN_METRICS in accept.lower()])
        return encode(self.registry), media_type

    def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return `exposition`, at most a second old: frequent callers share one answer."""
        return self._scraped.get(FORMS[OPEN_METRICS in accept.lower()])

    def emit(self, event: events.Event) -> None:
        """Count the event, and log it if it is important."""
        SEEN[type(event)](self.metrics, event)
        if isinstance(event, events.DeadLettered):
            self._dead_runs.log_runs(event.runs)
        self._dead_runs.flush()


def _fired(metrics: MemberMetrics, event: events.TimersFired) -> None:
    metrics.count("schedd_runs_fired", event.runs)
    metrics.count("schedd_runs_merged", event.merged)
    latenesses = map(timedelta.total_seconds, event.latenesses)
    metrics.observe("schedd_fire_lateness_seconds", latenesses)


def _missed(metrics: MemberMetrics, event: events.RunsMissed) -> None:
    metrics.count("schedd_scheduled_times_missed", event.count, event.reason.value)
    level = logging.INFO if event.reason in REQUESTED else logging.WARNING
    log.log(level, "%d scheduled times missed: %s", event.count, event.reason.value)


def _assigned(metrics: MemberMetrics, event: events.AssignedRuns) -> None:
    metrics.count("schedd_runs_assigned", len(event.waits))
    metrics.observe("schedd_run_wait_seconds", event.waits)


def _attempt_ended(metrics: MemberMetrics, event: events.AttemptEnded) -> None:
    state = event.state.value
    metrics.count("schedd_runs_ended", 1, state, event.reason or "")
    if event.lateness is not None:
        lateness = event.lateness.total_seconds()
        metrics.observe("schedd_run_start_lateness_seconds", [lateness])
    if event.duration is not None:
        metrics.observe("schedd_run_duration_seconds", [event.duration.total_seconds()], state)


def _succeeded(metrics: MemberMetrics, event: events.RunsSucceeded) -> None:
    state = State.SUCCEEDED.value
    metrics.count("schedd_runs_ended", len(event.durations), state, "")
    metrics.observe("schedd_run_start_lateness_seconds", event.latenesses)
    metrics.observe("schedd_run_duration_seconds", event.durations, state)


def _stale(metrics: MemberMetrics, event: events.StaleResult) -> None:
    metrics.count("schedd_stale_results")
    if not event.known:  # a caller can send any number of these: the audit log counts them
        log.debug("result rejected: the run doesn't exist run_id=%s", event.run)
        return
    log.warning(
        "stale result rejected: the run has a greater token",
        extra={"run_id": event.run, "token": event.token, "worker": event.worker},
    )


def _rescued(metrics: MemberMetrics, event: events.RunsRescued) -> None:
    metrics.count("schedd_runs_rescued", len(event.runs))
    log.warning(
        "%d runs of lost workers start again or failed",
        len(event.runs),
        extra={
            "run_ids": listed(event.runs),
            "incarnations": ",".join(map(str, event.incarnations)),
        },
    )


def _not_started(metrics: MemberMetrics, event: events.AssignmentsNotStarted) -> None:
    metrics.count("schedd_assignments_not_started", len(event.runs))
    log.info(
        "%d dispatched runs didn't start in time: they are dispatched again",
        len(event.runs),
        extra={"run_ids": listed(event.runs)},
    )


def _rejected(metrics: MemberMetrics, event: events.AssignmentRejected) -> None:
    metrics.count("schedd_assignments_rejected", 1, _known(event.reason, REJECT_REASONS))
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
    metrics.count("schedd_greater_tokens_seen")
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
    metrics.attached.add(event.incarnation)
    log.info("worker %s attached", event.worker, extra=_who(event))


def _record_worker_detached(metrics: MemberMetrics, event: events.WorkerDetached) -> None:
    metrics.attached.discard(event.incarnation)
    log.info("worker %s detached", event.worker, extra=_who(event))


def _who(event: events.WorkerAttached | events.WorkerDetached) -> dict[str, object]:
    return {"worker": event.worker, "incarnation": event.incarnation}


def _shards_lost(metrics: MemberMetrics, event: events.ShardsLost) -> None:
    metrics.count("schedd_shards_lost", len(event.shards), _known(event.step, STEPS))
    log.warning(
        "%d shards were taken over by another member",
        len(event.shards),
        extra={"step": event.step, "shards": ",".join(map(str, sorted(event.shards)))},
    )


def _shards_moved(metrics: MemberMetrics, event: events.ShardsMoved) -> None:
    metrics.count("schedd_shards_moved", event.taken, "taken")
    metrics.count("schedd_shards_moved", event.released, "released")


def _called(metrics: MemberMetrics, event: events.Called) -> None:
    """Count one call; from any thread. A successful call creates the failed series with 0, because
    `rate` ignores the first value of a new series.
    """
    metrics.observe(f"schedd_{event.service}_call_seconds", [event.took], event.call)
    metrics.count(f"schedd_{event.service}_calls_failed", event.failed, event.call)


def _surveyed(metrics: MemberMetrics, event: events.QueueStatsRead) -> None:
    metrics.pools.set_pools(event.pools)
    metrics.surveyed = Behind(event.overdue, event.behind)
    metrics.set("schedd_backfill_runs_left", event.backfill)


def _waiting(metrics: MemberMetrics, event: events.Waiting) -> None:
    metrics.set("schedd_queue_ready", event.ready)
    oldest = event.oldest
    metrics.oldest_since = None if oldest is None else monotonic() - oldest.total_seconds()
    metrics.set("schedd_queue_catch_up", event.catch_up)
    metrics.set("schedd_queue_in_pools", event.in_pools)
    metrics.set("schedd_queue_running", event.running)
    metrics.set("schedd_timers_loaded", event.timers)


def _cluster_pause_changed(metrics: MemberMetrics, event: events.ClusterPauseChanged) -> None:
    metrics.set("schedd_cluster_paused", event.by is not None)
    if event.by is None:
        log.info("cluster resumed")
    else:
        log.warning("cluster paused by %s: %s", event.by, event.note or "no note")


def _notified(metrics: MemberMetrics, event: events.Notified) -> None:
    channel = event.channel.value.lower()
    if not event.error:
        metrics.count("schedd_notifications_sent", 1, channel)
        return
    metrics.count("schedd_notification_attempts_failed", 1, channel)
    if event.abandoned:
        metrics.count("schedd_notifications_abandoned", 1, channel)
        log.error("notification by %s abandoned: %s", channel, event.error)
    else:
        log.info("notification by %s failed, will be retried: %s", channel, event.error)


def _notifications_expired(metrics: MemberMetrics, event: events.NotificationsExpired) -> None:
    channel = event.channel.value.lower()
    metrics.count("schedd_notifications_abandoned", event.count, channel)
    log.error(
        "%d notifications by %s abandoned after a day without a delivery attempt: their receivers"
        " accept fewer notifications than are sent",
        event.count,
        channel,
    )


def _deleted(metrics: MemberMetrics, event: events.Deleted) -> None:
    for what, count in (("run", event.runs), ("log", event.logs), ("object", event.objects)):
        if count:
            metrics.count("schedd_retention_deleted", count, what)


SEEN: Final[Mapping[type[events.Event], Callable[[MemberMetrics, Any], None]]] = {
    events.TimersFired: _fired,
    events.RunsMissed: _missed,
    events.DeadLettered: lambda metrics, event: metrics.count(
        "schedd_dead_letters", len(event.runs)
    ),
    events.AssignedRuns: _assigned,
    events.AttemptEnded: _attempt_ended,
    events.RunsSucceeded: _succeeded,
    events.EndedUnreported: lambda metrics, event: metrics.count(
        "schedd_runs_ended", event.count, event.state.value, event.reason or ""
    ),
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
    events.DatabaseSeen: lambda metrics, event: metrics.vitals.add_reading(event),
    events.ClusterWatched: lambda metrics, event: metrics.losses.add_reading(event),
    events.Called: _called,
    events.Waiting: _waiting,
    events.ClusterPauseChanged: _cluster_pause_changed,
    events.Notified: _notified,
    events.NotificationsExpired: _notifications_expired,
    events.NotificationsWait: lambda metrics, event: metrics.set(
        "schedd_notifications_waiting", event.count
    ),
    events.Deleted: _deleted,
    events.ResultStoreAway: lambda metrics, _: metrics.count("schedd_result_store_failures"),
}
"""The function for each kind of event."""


def _known(word: str, known: frozenset[str]) -> str:
    return word if word in known else OTHER
