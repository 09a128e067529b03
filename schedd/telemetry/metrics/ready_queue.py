"""What waits at this member, what runs, and what it is behind with."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from schedd.core.cluster.queue_stats import Behind
from schedd.telemetry.metrics.registry import Maker


class Queue:
    """The queue after a round of dispatch, and the timers behind it."""

    def __init__(self, make: Maker) -> None:
        self.paused = make.gauge("schedd_cluster_paused", "1 while the whole cluster is paused.")
        self.ready = make.gauge(
            "schedd_queue_ready", "Runs that wait here for a slot, of those that memory holds."
        )
        self.oldest_since: float | None = None
        """Of the monotonic clock; None: nothing waits."""
        make.gauge(
            "schedd_queue_oldest_seconds",
            "For how long the oldest of these has waited: for a slot, its pool, or its turn.",
        ).set_function(self._oldest)
        self.late = make.gauge(
            "schedd_queue_late", "Of these: late ones, caught up with behind what is due now."
        )
        self.pooled = make.gauge(
            "schedd_queue_pooled", "Of these: those of pools, which wait for room there."
        )
        self.running = make.gauge("schedd_queue_running", "Runs of this member's shards that run.")
        self.timers = make.gauge(
            "schedd_timers_held", "Timers held in memory, due within the horizon."
        )
        self.surveyed = Behind()
        """As the rows said last."""
        self.held: Callable[[], Behind] = Behind
        """Asked at each scrape: as memory says, which is all there is without the database."""
        make.gauge(
            "schedd_catch_up_timers",
            "Timers of this member's shards whose instants should have been fired, up to 10,000."
            " Of the rows or of memory, whichever says more.",
        ).set_function(lambda: max(self.surveyed.timers, self.held().timers))
        make.gauge(
            "schedd_catch_up_behind_seconds",
            "For how long the first of these has been due; 0 where there is none.",
        ).set_function(lambda: max(self.surveyed.since, self.held().since).total_seconds())
        self.backfilled = make.gauge(
            "schedd_backfill_instants_left",
            "Instants that the open backfills of this member's shards still look at.",
        )

    def _oldest(self) -> float:
        return 0.0 if self.oldest_since is None else max(0.0, monotonic() - self.oldest_since)
