"""The body of a notification: the same facts as JSON, for programs, and as text, for people."""

import json
from datetime import UTC, datetime
from typing import Final

from schedd.core.jobs.notifications import NotificationKind, OutboxNotification

WORDS: Final = {
    NotificationKind.FAILURE: "failed",
    NotificationKind.RECOVERY: "succeeds again",
    NotificationKind.DEAD_LETTER: "left a dead letter",
    NotificationKind.LATE: "is late",
}


def body(one: OutboxNotification) -> bytes:
    """Return the body in the form of Standard Webhooks: type, timestamp, data."""
    facts = {
        "type": one.kind.value,
        "timestamp": _instant(one.occurred_at),
        "data": {
            "notification_id": str(one.notification_id),
            "namespace": one.namespace,
            "job": one.job,
            "job_id": str(one.job_id),
            "run_id": str(one.run_id),
            "state": one.state,
            "reason": one.reason or None,
            "error": one.error or None,
            "exit_code": one.exit_code,
            "attempt": one.attempt,
            "instants": one.instants,
            "worker": one.worker or None,
            "scheduled_at": _instant(one.scheduled_at),
            "due_at": _instant(one.due_at),
            "started_at": _instant(one.started_at),
            "finished_at": _instant(one.finished_at),
            "failures_in_a_row": one.failures,
            "held_back": one.held_back,
        },
    }
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()


def subject(one: OutboxNotification) -> str:
    """Return the subject as one line of plain text, whatever characters names contain."""
    line = f"{one.namespace}/{one.job} {WORDS[one.kind]}"
    # "=?" begins an encoded word, in which a mail's header could hold anything.
    return "".join(sign if sign.isprintable() else " " for sign in line).replace("=?", "= ?")


def text(one: OutboxNotification) -> str:
    facts = {
        "Job": f"{one.namespace}/{one.job}",
        "Run": f"{one.run_id} ({one.state or 'deleted'})",
        "Why": " ".join(part for part in (one.reason, one.error) if part),
        "Due": _instant(one.due_at),
        "Scheduled times": str(one.instants) if one.instants > 1 else "",
        "Started": _instant(one.started_at),
        "Finished": _instant(one.finished_at),
        "Worker": one.worker,
        "Failures in a row": str(one.failures) if one.failures else "",
        "Held back": f"{one.held_back} notifications, this one is the newest"
        if one.held_back
        else "",
        "Notification": str(one.notification_id),
    }
    lines = "\n".join(f"{name}: {value}" for name, value in facts.items() if value)
    return f"{subject(one)}\n\n{lines}\n"


def _instant(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
