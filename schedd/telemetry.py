"""Events into metrics and logs: what is counted, and what people care to read.

    loops ──emit(event)──▶ SEEN[type of event] ──▶ counters, histograms, gauges ──▶ /metrics
                                         └──────▶ a line of log, where somebody would act on it
    Cluster ──asked at each scrape──▶ leader, term, shards owned, members

Invariants
- One line of the table for each kind of event (a test compares them with `Event`).
- `emit` is quick, never waits and never fails: loops call it in the midst of their work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from schedd.core.events import (
    AssignedRuns,
    Braked,
    DeadLettered,
    Deleted,
    Ended,
    Event,
    Fired,
    GreaterTokenSeen,
    Missed,
    NeverStarted,
    NotificationsExpired,
    NotificationsWait,
    Notified,
    Refused,
    ResultStoreAway,
    RunsRescued,
    ShardsLost,
    StaleResult,
    Waiting,
    WorkerCame,
    WorkerWent,
)
from schedd.metrics import ClusterGauges, Metrics
from schedd.ports import Cluster
from schedd.pulse import Pulse
from schedkit.momentary import Momentary
from schedproto.v1.worker_service_pb2 import Refusal

log = logging.getLogger(__name__)

REFUSALS: Final = frozenset(
    name.removeprefix("WHY_") for name in Refusal.Why.DESCRIPTOR.values_by_name
)
STEPS: Final = frozenset({"fire", "assign", "give_back", "rescue", "end_waiting"})
OTHER: Final = "other"

OPEN_METRICS: Final = "application/openmetrics-text"
FORMS: Final = ("", f"{OPEN_METRICS}; version=1.0.0")
"""What is asked of the library: plain text, or OpenMetrics. Never what a caller says: its answers
are kept (`scraped`), one for each version that anybody makes up, and some of them raise.
"""


class Telemetry:
    """Counts what happens and says what matters; `emit` is the `Emit` of the loops."""

    def __init__(self) -> None:
        # A series beside each counter that nobody looks at.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs has no types
        self.registry: Final = CollectorRegistry()
        self._metrics = Metrics(self.registry)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._scraped = Momentary(self.exposition)

    def observe(self, cluster: Cluster, version: str) -> None:
        """Ask this view of the cluster at each scrape, and say what runs here. Once."""
        Info("schedd_build", "What runs here.", registry=self.registry).info({"version": version})
        self.registry.register(ClusterGauges(cluster))

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text in the form that the Accept header asks for, and its media type."""
        encode, media_type = choose_encoder(FORMS[OPEN_METRICS in accept.lower()])
        return encode(self.registry), media_type

    def scraped(self, accept: str) -> tuple[bytes, str]:
        """As `exposition`, at most a second old: who asks 1,000 times is answered from one."""
        return self._scraped.of(FORMS[OPEN_METRICS in accept.lower()])

    @property
    def pulse(self) -> Pulse:
        """Of the event loop; to be run on it."""
        return self._metrics.pulse

    def emit(self, event: Event) -> None:
        """Count it, and say it where people care."""
        SEEN[type(event)](self._metrics, event)


def _fired(metrics: Metrics, event: Fired) -> None:
    metrics.fired.inc(event.runs)
    metrics.folded.inc(event.folds)
    _observe(metrics.fire_lateness, event.latenesses)


def _missed(metrics: Metrics, event: Missed) -> None:
    metrics.missed.labels(event.reason.value).inc(event.count)
    log.warning("%d instants are missed: %s", event.count, event.reason.value)


def _dead_lettered(metrics: Metrics, event: DeadLettered) -> None:
    metrics.dead_letters.inc(event.count)


def _assigned(metrics: Metrics, event: AssignedRuns) -> None:
    metrics.assigned.inc(event.count)
    _observe(metrics.wait, event.waits)


def _ended(metrics: Metrics, event: Ended) -> None:
    metrics.ended.labels(event.state.value, event.reason or "").inc()
    if event.lateness is not None:
        metrics.start_lateness.observe(_seconds(event.lateness))
    if event.duration is not None:
        metrics.duration.labels(event.state.value).observe(_seconds(event.duration))


def _stale(metrics: Metrics, event: StaleResult) -> None:
    metrics.stale.inc()
    log.warning(
        "a late result was refused: the run went on under a greater token",
        extra={"run_id": event.run, "token": event.token, "worker": event.worker},
    )


def _rescued(metrics: Metrics, event: RunsRescued) -> None:
    metrics.rescued.inc(event.count)
    log.warning(
        "%d runs of lost workers moved on",
        event.count,
        extra={"incarnations": ",".join(map(str, event.incarnations))},
    )


def _never_started(metrics: Metrics, event: NeverStarted) -> None:
    metrics.never_started.inc(event.count)
    log.info("%d assignments never started and went back", event.count)


def _refused(metrics: Metrics, event: Refused) -> None:
    metrics.refusals.labels(_known(event.why, REFUSALS)).inc()
    log.debug("a worker refused a run", extra={"why": event.why, "worker": event.worker})


def _greater_token(metrics: Metrics, event: GreaterTokenSeen) -> None:
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


def _came(metrics: Metrics, event: WorkerCame) -> None:
    metrics.attached.add(event.incarnation)
    log.info("worker %s attached", event.worker, extra={"incarnation": event.incarnation})


def _went(metrics: Metrics, event: WorkerWent) -> None:
    metrics.attached.discard(event.incarnation)
    log.info("worker %s is gone from here", event.worker, extra={"incarnation": event.incarnation})


def _shards_lost(metrics: Metrics, event: ShardsLost) -> None:
    metrics.shards_lost.labels(_known(event.step, STEPS)).inc(len(event.shards))
    log.warning(
        "%d shards are no longer this member's",
        len(event.shards),
        extra={"step": event.step, "shards": ",".join(map(str, sorted(event.shards)))},
    )


def _waiting(metrics: Metrics, event: Waiting) -> None:
    metrics.ready.set(event.ready)
    oldest = event.oldest
    metrics.oldest_since = None if oldest is None else monotonic() - oldest.total_seconds()
    metrics.late.set(event.late)
    metrics.pooled.set(event.pooled)
    metrics.running.set(event.running)
    metrics.timers.set(event.timers)


def _braked(metrics: Metrics, event: Braked) -> None:
    metrics.paused.set(event.by is not None)
    if event.by is None:
        log.info("the cluster isn't paused any more")
    else:
        log.warning("the cluster is paused by %s: %s", event.by, event.note or "no note")


def _notified(metrics: Metrics, event: Notified) -> None:
    way = event.way.value.lower()
    if not event.error:
        metrics.notified.labels(way).inc()
        return
    metrics.notify_failed.labels(way).inc()
    if event.given_up:
        metrics.notify_given_up.labels(way).inc()
        log.error("a notification by %s is given up: %s", way, event.error)
    else:
        log.info("a notification by %s failed, and is tried again: %s", way, event.error)


def _notifications_expired(metrics: Metrics, event: NotificationsExpired) -> None:
    way = event.way.value.lower()
    metrics.notify_given_up.labels(way).inc(event.count)
    log.error(
        "%d notifications by %s waited for a day without a try, and are given up: more come to"
        " their receivers than these take",
        event.count,
        way,
    )


def _notifications_wait(metrics: Metrics, event: NotificationsWait) -> None:
    metrics.notifications_wait.set(event.count)


def _deleted(metrics: Metrics, event: Deleted) -> None:
    for what, count in (("run", event.runs), ("log", event.logs), ("object", event.objects)):
        if count:
            metrics.deleted.labels(what).inc(count)


def _store_away(metrics: Metrics, _: ResultStoreAway) -> None:
    metrics.store_away.inc()


SEEN: Final[Mapping[type[Event], Callable[[Metrics, Any], None]]] = {
    Fired: _fired,
    Missed: _missed,
    DeadLettered: _dead_lettered,
    AssignedRuns: _assigned,
    Ended: _ended,
    StaleResult: _stale,
    RunsRescued: _rescued,
    NeverStarted: _never_started,
    Refused: _refused,
    GreaterTokenSeen: _greater_token,
    WorkerCame: _came,
    WorkerWent: _went,
    ShardsLost: _shards_lost,
    Waiting: _waiting,
    Braked: _braked,
    Notified: _notified,
    NotificationsExpired: _notifications_expired,
    NotificationsWait: _notifications_wait,
    Deleted: _deleted,
    ResultStoreAway: _store_away,
}
"""What is done with each kind of event."""


def _observe(histogram: Histogram, lengths: Iterable[timedelta]) -> None:
    for length in lengths:
        histogram.observe(_seconds(length))


def _seconds(length: timedelta) -> float:
    return max(0.0, length.total_seconds())


def _known(word: str, known: frozenset[str]) -> str:
    """The word as a label; one that nobody foresaw is `other`."""
    return word if word in known else OTHER
