"""What is told of runs, and what is kept of them."""

from __future__ import annotations

from schedd.telemetry.metrics.registry import Maker


class RetentionMetrics:
    """Notifications, retention, the result store."""

    def __init__(self, make: Maker) -> None:
        self.notified = make.counter(
            "schedd_notifications_sent", "Notifications that were delivered.", "way"
        )
        self.notify_failed = make.counter(
            "schedd_notification_tries_failed", "Tries to deliver one that failed.", "way"
        )
        self.notify_given_up = make.counter(
            "schedd_notifications_given_up", "Notifications that nobody took in a day.", "way"
        )
        self.notifications_wait = make.gauge(
            "schedd_notifications_waiting",
            "Notifications of this member's shards that aren't delivered, up to 10,000.",
        )
        self.deleted = make.counter(
            "schedd_retention_deleted", "What wasn't kept any longer, by what it was.", "what"
        )
        self.store_away = make.counter(
            "schedd_result_store_failures", "Calls that the result store didn't answer."
        )
