"""Waiting and running runs of this member, and its overdue timers."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from schedd.core.cluster.queue_stats import Behind
from schedd.telemetry.metrics.registry import Maker


class Queue:
    """The ready queue after a round of dispatch, and overdue timers."""

    def __init__(self, make: Maker) -> None:
        self.paused = make.gauge("schedd_cluster_paused", "1 while the whole cluster is paused.")
        self.ready = make.gauge(
            "schedd_queue_ready", "Runs in memory that wait for a slot at this member."
        )
        self.oldest_since: float | None = None
        """By the monotonic clock; None: no run waits."""
        make.gauge(
            "schedd_queue_oldest_seconds",
            "Wait of the oldest of these runs: for a slot, its pool, or its place in the queue.",
        ).set_function(self._oldest)
        self.late = make.gauge(
            "schedd_queue_late", "Late runs among these: they wait behind runs that are due now."
        )
        self.pooled = make.gauge(
            "schedd_queue_pooled", "Runs among these that wait for room in their pool."
        )
        self.running = make.gauge("schedd_queue_running", "Running runs of this member's shards.")
        self.timers = make.gauge("schedd_timers_held", "Timers in memory, due within the horizon.")
        self.surveyed = Behind()
        """By the last reading of rows."""
        self.held: Callable[[], Behind] = Behind
        """By memory, read at each scrape: the only source while the database is unavailable."""
        make.gauge(
            "schedd_catch_up_timers",
            "Overdue timers of this member's shards, up to 10,000: the greater number of rows and"
            " memory.",
        ).set_function(lambda: max(self.surveyed.timers, self.held().timers))
        make.gauge(
            "schedd_catch_up_behind_seconds",
            "Time since the first of these timers was due; 0 if there is none.",
        ).set_function(lambda: max(self.surveyed.since, self.held().since).total_seconds())
        self.backfilled = make.gauge(
            "schedd_backfill_instants_left",
            "Scheduled times that open backfills of this member's shards haven't processed.",
        )

    def _oldest(self) -> float:
        return 0.0 if self.oldest_since is None else max(0.0, monotonic() - self.oldest_since)
