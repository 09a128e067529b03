"""The tables: the columns of each, and the name that `-o name` prints."""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from schedclient import (
    AccessToken,
    Attempt,
    AuditEntry,
    Backfill,
    Calendar,
    DeadLetter,
    DeadLetterGroup,
    Finding,
    Instant,
    Job,
    Member,
    Pool,
    Redrive,
    Run,
    Shard,
    ShardMove,
    Worker,
)
from schedctl.output import Column, ValueTable
from schedd.core.dispatch.worker_refusals import refusal_of
from schedkit.sources import actor_with_token
from schedkit.text import duration
from schedproto.v1 import job_pb2


def schedule_of(job: Job) -> str:
    if job.cron:
        return " | ".join(job.cron)
    if job.every is not None:
        anchor = cast("job_pb2.Job", job.message).anchor
        return f"every {written(job.every)}" + (f" from {anchor}" if anchor else "")
    if job.after is not None:
        when = (job.after.when or "SUCCESS").lower()
        return f"after {', '.join(job.after.jobs)}" + f" ({when})" * (when != "success")
    return "at " + job.at.isoformat().replace("+00:00", "Z") if job.at else "on demand"


def written(length: timedelta) -> str:
    """Return a duration as it is written in options: `1h30m`."""
    return duration.render(length)


def written_rate(rate: float) -> str:
    """Return a rate as it is written in options: `10/s`, `6/m`."""
    return f"{rate:g}/s" if rate >= 1 else f"{rate * 60:g}/m"


def why_of(entry: AuditEntry) -> str:
    """Return the reason code of an audit entry, and the note of the actor."""
    return ": ".join(filter(None, (entry.reason, _note(entry.after))))


def _note(after: str | None) -> str:
    """Return the note in an entry's `after`, which is its `note` or its `reason`."""
    try:
        value = json.loads(after or "null")
    except (ValueError, RecursionError):
        return ""
    note = value.get("note") or value.get("reason") if isinstance(value, dict) else None
    return note if isinstance(note, str) else ""


def last_line(text: str | None) -> str:
    """Return the last line of an error, which names it in a traceback."""
    lines = (text or "").strip().splitlines()
    return ("… " if len(lines) > 1 else "") + lines[-1] if lines else ""


UNKNOWN: Final = "–"


def _known(figure: Any) -> Any:
    return UNKNOWN if figure is None else figure


def _worker_state(worker: Worker) -> str:
    """Return the state, and the reason why a live worker gets no runs."""
    if worker.heartbeats_missing and worker.state in ("LIVE", "DRAINING"):
        return f"{worker.state}, NO HEARTBEAT"
    if worker.refusal_reason:
        return f"{worker.state}, {refusal_of(worker.refusal_reason).state}"
    return worker.state


def _of_live(cell: Callable[[Member], str]) -> Callable[[Member], str]:
    return lambda one: UNKNOWN if one.state == "LOST" else cell(one)


def of_whom(submitted: bool | None) -> str:
    """Return the value of `--of` for a group of dead letters; empty: both kinds."""
    return "" if submitted is None else "submitted" if submitted else "job"


def state_of(job: Job) -> str:
    """Return active, PAUSED, or done: no scheduled time remains."""
    if job.paused:
        return "PAUSED"
    return "active" if job.on_demand or job.after or job.next_run_at else "done"


def excluded(calendar: Calendar) -> str:
    """Return the rules of a calendar in short form."""
    parts = [
        (len(calendar.dates), "date"),
        (len(calendar.ranges), "range"),
        (len(calendar.cron), "cron expression"),
    ]
    counts = [f"{count:,} {what}{'s' if count > 1 else ''}" for count, what in parts if count]
    return ", ".join([*([" ".join(calendar.weekdays)] if calendar.weekdays else []), *counts])


def lateness(run: Run) -> str:
    return "" if run.lateness_ms is None else f"{run.lateness_ms} ms"


JOBS: Final = ValueTable[Job](
    lambda one: one.name,
    Column("NAME", lambda job: job.name),
    Column("SCHEDULE", schedule_of),
    Column("ZONE", lambda job: job.time_zone or "UTC", wide=True),
    Column("ACTION", lambda job: job.action),
    Column("PRIORITY", lambda job: job.priority or "MEDIUM"),
    Column("POOL", lambda job: job.pool, wide=True),
    Column("STATE", state_of),
    Column("NEXT", lambda job: job.next_run_at),
    Column("GENERATION", lambda job: job.generation, wide=True),
    Column("LABELS", lambda job: job.labels, wide=True),
    Column("ID", lambda job: job.job_id, wide=True),
)


def progress(run: Run) -> str:
    """Return the progress that the run reported: `30 of 120 (25%), the first page`."""
    reported = run.progress
    if reported is None:
        return ""
    percent = f"{reported.fraction:.0%}"
    done = f"{reported.done:g} of {reported.total:g} ({percent})"
    counted = percent if reported.total == 1 else done
    return f"{counted}, {reported.note}" if reported.note else counted


_STATE: Final[Sequence[Column[Run | Attempt]]] = (
    Column("STATE", lambda one: one.state),
    Column("REASON", lambda one: one.reason),
)
_HOW_IT_ENDED: Final[Sequence[Column[Run | Attempt]]] = (
    Column("EXIT", lambda one: one.exit_code),
    Column("ERROR", lambda one: one.error, cut=True),
)
RUNS: Final = ValueTable[Run](
    lambda one: one.run_id,
    Column("RUN", lambda run: run.run_id),
    Column("JOB", lambda run: run.job),
    *_STATE,
    Column("PRIORITY", lambda run: run.priority, wide=True),
    Column("SCHEDULED", lambda run: run.scheduled_at),
    Column("STARTED", lambda run: run.started_at, wide=True),
    Column("FINISHED", lambda run: run.finished_at, wide=True),
    Column("ATTEMPT", lambda run: run.attempt),
    Column("ASSIGNMENTS", lambda run: run.assignments, wide=True),
    Column("WORKER", lambda run: run.worker),
    Column("EXIT", lambda run: run.exit_code),
    Column("LATE", lateness),
    Column("COUNT", lambda run: run.count, wide=True),
    Column("TRIGGER", lambda run: run.trigger, wide=True),
    Column("TOKEN", lambda run: run.fencing_token or "", wide=True),
)
CHILDREN: Final = ValueTable[Run](
    lambda one: one.run_id,
    Column("CHILD", lambda run: run.run_id),
    Column("FOR WORKER", lambda run: run.target),
    *_STATE,
    Column("ATTEMPT", lambda run: run.attempt),
    *_HOW_IT_ENDED,
)
ATTEMPTS: Final = ValueTable[Attempt](
    lambda one: str(one.fencing_token),
    Column("ATTEMPT", lambda one: one.attempt),
    *_STATE,
    Column("WORKER", lambda one: one.worker),
    Column("TOKEN", lambda one: one.fencing_token),
    Column("ASSIGNED", lambda one: one.assigned_at),
    Column("STARTED", lambda one: one.started_at),
    Column("FINISHED", lambda one: one.finished_at),
    *_HOW_IT_ENDED,
)
DEAD: Final = ValueTable[DeadLetter](
    lambda one: one.run.run_id,
    Column("RUN", lambda one: one.run.run_id),
    Column("JOB", lambda one: one.run.job),
    Column("REASON", lambda one: one.run.reason),
    Column("ATTEMPT", lambda one: one.run.attempt),
    Column("DIED", lambda one: one.died_at),
    Column("FINGERPRINT", lambda one: one.fingerprint),
    Column("REDRIVE", lambda one: one.redrive_id, wide=True),
    Column("ERROR", lambda one: one.run.error, wide=True),
)
RESOLVED: Final = ValueTable[DeadLetter](
    DEAD.name,
    *DEAD.columns,
    Column("RESOLVED", lambda one: one.resolution),
    Column("AS", lambda one: one.redriven_as),
    Column("AT", lambda one: one.resolved_at, wide=True),
    Column("BY", lambda one: one.resolved_by, wide=True),
    Column("NOTE", lambda one: one.note, wide=True),
)
DEAD_GROUPS: Final = ValueTable[DeadLetterGroup](
    lambda one: one.fingerprint,
    Column("COUNT", lambda one: one.count),
    Column("QUEUED", lambda one: one.queued, wide=True),
    Column("JOB", lambda one: one.job),
    Column("OF", lambda one: of_whom(one.submitted)),
    Column("REASON", lambda one: one.reason),
    Column("EXIT", lambda one: one.exit_code, wide=True),
    Column("FIRST", lambda one: one.first_died_at, wide=True),
    Column("LAST", lambda one: one.last_died_at),
    Column("FINGERPRINT", lambda one: one.fingerprint),
    Column("RUN", lambda one: one.run_id),
    Column("ERROR", lambda one: last_line(one.error), cut=True),  # last: others need no padding
)
REDRIVES: Final = ValueTable[Redrive](
    lambda one: one.redrive_id,
    Column("REDRIVE", lambda one: one.redrive_id),
    Column("JOB", lambda one: one.job),
    Column("OF", lambda one: of_whom(one.submitted)),
    Column("FINGERPRINT", lambda one: one.fingerprint),
    Column("STATE", lambda one: one.state),
    Column("RATE", lambda one: written_rate(one.rate)),
    Column("TOTAL", lambda one: one.total),
    Column("CREATED", lambda one: one.created),
    Column("LEFT", lambda one: one.left),
    Column("OMITTED", lambda one: one.omitted, wide=True),
    Column("RUNS", lambda one: one.runs),
    Column("PAYLOAD", lambda one: "edited" if one.payload_edited else "", wide=True),
    Column("CREATED", lambda one: one.created_at, wide=True),
    Column("BY", lambda one: one.created_by, wide=True),
    Column("STOPPED", lambda one: one.stopped_at, wide=True),
    Column("STOPPED BY", lambda one: one.stopped_by, wide=True),
    Column("FINISHED", lambda one: one.finished_at, wide=True),
)
MEMBERS: Final = ValueTable[Member](
    lambda one: one.name,
    Column("NAME", lambda one: one.name),
    Column("ROLE", lambda one: one.role or UNKNOWN),
    Column("STATE", lambda one: one.state),
    Column("SHARDS", lambda one: one.shards),
    Column("WEIGHT", lambda one: UNKNOWN if one.state == "LOST" else one.weight),
    Column("GRPC", lambda one: one.grpc),
    Column("HTTP", lambda one: one.http),
    Column("VERSION", lambda one: one.version),
    Column("LOST", lambda one: one.lost_at),
    Column("WORKERS", _of_live(lambda one: "attached" if one.attached else "none"), wide=True),
    Column(
        "DATABASE", _of_live(lambda one: "answers" if one.database else "unavailable"), wide=True
    ),
    Column("TZDATA", lambda one: one.tzdata, wide=True),
    Column("TENURE", lambda one: one.tenure, wide=True),
)
SHARDS: Final = ValueTable[Shard](
    lambda one: str(one.shard),
    Column("SHARD", lambda one: one.shard),
    Column("OWNER", lambda one: one.owner),
    Column("ASSIGNED", lambda one: one.assigned),
    Column("EPOCH", lambda one: one.epoch),
    Column("TENURE", lambda one: one.tenure, wide=True),
)
WORKERS: Final = ValueTable[Worker](
    lambda one: one.name,
    Column("NAME", lambda one: one.name),
    Column("STATE", _worker_state),
    Column("SLOTS", lambda one: one.slots or UNKNOWN),
    Column("FREE", lambda one: _known(one.free)),
    Column("RUNNING", lambda one: _known(one.running)),
    Column("LABELS", lambda one: one.labels),
    Column("LEASE AGE", lambda one: _known(one.lease_age)),
    Column("LOST", lambda one: one.lost_at),
    Column("HOST", lambda one: one.host, wide=True),
    Column("STARTED", lambda one: one.started_at, wide=True),
    Column("HANDLERS", lambda one: one.handlers, wide=True),
    Column("EXECUTORS", lambda one: one.executors, wide=True),
    Column("NAMESPACES", lambda one: one.namespaces or "all", wide=True),
    Column("VERSION", lambda one: one.version, wide=True),
    Column("INCARNATION", lambda one: one.incarnation, wide=True),
    Column("UNSTORED", lambda one: _known(one.unstored_results), wide=True),
    Column("REFUSAL REASON", lambda one: one.refusal_reason, wide=True),
    Column("DRAINED", lambda one: one.drained_at, wide=True),
    Column("BY", lambda one: one.drained_by, wide=True),
    Column("REASON", lambda one: one.drain_reason, wide=True),
)
AUDIT: Final = ValueTable[AuditEntry](
    lambda one: one.object,
    Column("AT", lambda one: one.at),
    Column("ACTOR", lambda one: actor_with_token(one.actor, one.source or "")),
    Column("ACTION", lambda one: one.action),
    Column("OBJECT", lambda one: one.object),
    Column("OUTCOME", lambda one: one.outcome),
    Column("REASON", why_of, cut=True),
    Column("RUN", lambda one: one.run_id, wide=True),
    Column("TOKEN", lambda one: one.fencing_token or "", wide=True),
    Column("WORKER", lambda one: one.worker, wide=True),
    Column("SOURCE", lambda one: one.source, wide=True),
    Column("BEFORE", lambda one: one.before, wide=True),
    Column("AFTER", lambda one: one.after, wide=True),
)

TOKENS: Final = ValueTable[AccessToken](
    lambda one: one.token_id,
    Column("TOKEN", lambda one: one.token_id),
    Column("NAME", lambda one: one.name),
    Column("ROLE", lambda one: one.role),
    Column("NAMESPACES", lambda one: ",".join(one.namespaces)),
    Column("EXPIRES", lambda one: one.expires_at),
    Column("REVOKED", lambda one: one.revoked_at),
    Column("CREATED", lambda one: one.created_at, wide=True),
    Column("BY", lambda one: one.created_by, wide=True),
    Column("REVOKED BY", lambda one: one.revoked_by, wide=True),
    Column("CREATOR", lambda one: one.creator_id, wide=True),
)

SHARD_MOVES: Final = ValueTable[ShardMove](
    lambda one: str(one.shard),
    Column("SHARD", lambda one: one.shard),
    Column("FROM", lambda one: one.old_owner or "none"),
    Column("TO", lambda one: one.new_owner or "none"),
)

FINDINGS: Final = ValueTable[Finding](
    lambda one: f"{one.area}: {one.check}",
    Column("SEVERITY", lambda one: one.severity),
    Column("AREA", lambda one: one.area),
    Column("CHECK", lambda one: one.check),
    Column("SUBJECT", lambda one: one.subject),
    Column("WHAT", lambda one: one.what),
    Column("WHY", lambda one: one.why),
    Column("DO", lambda one: one.remedy),
)

CALENDARS: Final = ValueTable[Calendar](
    lambda one: one.name,
    Column("NAME", lambda one: one.name),
    Column("VERSION", lambda one: one.version),
    Column("EXCLUDES", excluded),
    Column("ROLL", lambda one: one.roll or "NONE"),
    Column("ZONE", lambda one: one.time_zone or "the job's", wide=True),
    Column("JOBS", lambda one: one.jobs),
    Column("BEHIND", lambda one: one.jobs_behind, wide=True),
    Column("UPDATED", lambda one: one.updated_at),
    Column("BY", lambda one: one.updated_by, wide=True),
)

POOLS: Final = ValueTable[Pool](
    lambda one: one.name,
    Column("NAME", lambda one: one.name),
    Column("STATE", lambda one: "PAUSED" if one.paused else "active"),
    Column("LIMIT", lambda one: one.limit or "none"),
    Column("RUNNING", lambda one: one.running),
    Column("RATE", lambda one: one.rate or "none"),
    Column("RECENT", lambda one: one.recent if one.rate else ""),
    Column("WAITING", lambda one: one.waiting),
    Column("JOBS", lambda one: one.jobs),
    Column("PAUSED BY", lambda one: one.paused_by, wide=True),
    Column("NOTE", lambda one: one.pause_note, wide=True),
    Column("VERSION", lambda one: one.version, wide=True),
    Column("UPDATED", lambda one: one.updated_at, wide=True),
    Column("BY", lambda one: one.updated_by, wide=True),
)

BACKFILLS: Final = ValueTable[Backfill](
    lambda one: one.backfill_id,
    Column("BACKFILL", lambda one: one.backfill_id),
    Column("JOB", lambda one: one.job),
    Column("STATE", lambda one: one.state),
    Column("FROM", lambda one: one.first),
    Column("TO", lambda one: one.last),
    Column("TOTAL", lambda one: one.total),
    Column("REMAINING", lambda one: one.not_created),
    Column("IN PROGRESS", lambda one: one.waiting + one.running + one.retrying),
    Column("SUCCEEDED", lambda one: one.succeeded),
    Column("FAILED", lambda one: one.failed),
    Column("SKIPPED", lambda one: one.skipped, wide=True),
    Column("CANCELLED", lambda one: one.cancelled, wide=True),
    Column("OVERLAP", lambda one: one.overlap or "the job's", wide=True),
    Column("PARALLEL", lambda one: one.max_parallel, wide=True),
    Column("PRIORITY", lambda one: one.priority, wide=True),
    Column("BY", lambda one: one.created_by, wide=True),
)
INSTANTS: Final = ValueTable[Instant](
    lambda one: one.scheduled_at.isoformat(),
    Column("SCHEDULED", lambda one: one.scheduled_at),
    Column("DUE", lambda one: one.due_at),
)
WITH_EXCLUDED: Final = ValueTable[Instant](
    INSTANTS.name,
    *INSTANTS.columns,
    Column("EXCLUDED BY", lambda one: one.excluded_by),
)
