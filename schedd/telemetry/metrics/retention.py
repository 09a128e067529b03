"""Notifications, retention and the result store."""

from __future__ import annotations

from schedd.telemetry.metrics.registry import Maker


class RetentionMetrics:
    """Notifications, retention, the result store."""

    def __init__(self, make: Maker) -> None:
        self.notified = make.counter(
            "schedd_notifications_sent", "Notifications that were delivered.", "way"
        )
        self.notify_failed = make.counter(
            "schedd_notification_tries_failed", "Failed tries to deliver a notification.", "way"
        )
        self.notify_given_up = make.counter(
            "schedd_notifications_given_up",
            "Notifications not delivered within a day, and given up.",
            "way",
        )
        self.notifications_wait = make.gauge(
            "schedd_notifications_waiting",
            "Undelivered notifications of this member's shards, up to 10,000.",
        )
        self.deleted = make.counter(
            "schedd_retention_deleted", "Deleted items past their retention, by kind.", "what"
        )
        self.store_away = make.counter(
            "schedd_result_store_failures", "Calls without an answer of the result store."
        )
