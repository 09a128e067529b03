"""The tables: the columns of each, and the name that `-o name` prints."""

import json
from collections.abc import Callable
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
from schedctl.output import ValueTable
from schedd.core.dispatch.worker_refusals import refusal_of
from schedkit.sources import actor_with_token
from schedkit.text import duration
from schedproto.v1 import job_pb2


def schedule_of(job: Job) -> str:
    if job.cron:
        return " | ".join(job.cron)
    if job.every is not None:
        anchor = cast("job_pb2.Job", job.message).anchor
        return f"every {duration.render(job.every)}" + (f" from {anchor}" if anchor else "")
    if job.after is not None:
        when = (job.after.when or "SUCCESS").lower()
        return f"after {', '.join(job.after.jobs)}" + f" ({when})" * (when != "success")
    return "at " + job.at.isoformat().replace("+00:00", "Z") if job.at else "on demand"


def why_of(entry: AuditEntry) -> str:
    """Return the reason code of an audit entry, and the actor's note: the `note` or the `reason` in
    its `after`.
    """
    try:
        value = json.loads(entry.after or "null")
    except (ValueError, RecursionError):
        value = None
    note = value.get("note") or value.get("reason") if isinstance(value, dict) else None
    return ": ".join(filter(None, (entry.reason, note if isinstance(note, str) else "")))


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


JOBS: Final = ValueTable(
    Job,
    "name",
    "NAME SCHEDULE ZONE+ ACTION PRIORITY POOL+ STATE NEXT=next_run_at GENERATION+ LABELS+ "
    "ID+=job_id",
    SCHEDULE=schedule_of,
    ZONE=lambda job: job.time_zone or "UTC",
    PRIORITY=lambda job: job.priority or "MEDIUM",
    STATE=state_of,
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


RUNS: Final = ValueTable(
    Run,
    "run_id",
    "RUN=run_id JOB STATE REASON PRIORITY+ SCHEDULED=scheduled_at STARTED+=started_at "
    "FINISHED+=finished_at ATTEMPT ASSIGNMENTS+ WORKER EXIT=exit_code LATE COUNT+ TRIGGER+ "
    "TOKEN+",
    LATE=lateness,
    TOKEN=lambda run: run.fencing_token or "",
)
CHILDREN: Final = ValueTable(
    Run, "run_id", "CHILD=run_id FOR_WORKER=target STATE REASON ATTEMPT EXIT=exit_code ERROR~"
)
ATTEMPTS: Final = ValueTable(
    Attempt,
    "fencing_token",
    "ATTEMPT STATE REASON WORKER TOKEN=fencing_token ASSIGNED=assigned_at "
    "STARTED=started_at FINISHED=finished_at EXIT=exit_code ERROR~",
)
DEAD: Final = ValueTable(
    DeadLetter,
    "run.run_id",
    "RUN=run.run_id JOB=run.job REASON=run.reason ATTEMPT=run.attempt DIED=died_at "
    "FINGERPRINT REDRIVE+=redrive_id ERROR+=run.error",
)
RESOLVED: Final = ValueTable(
    DeadLetter,
    "run.run_id",
    "RUN=run.run_id JOB=run.job REASON=run.reason ATTEMPT=run.attempt DIED=died_at "
    "FINGERPRINT REDRIVE+=redrive_id ERROR+=run.error RESOLVED=resolution AS=redriven_as "
    "AT+=resolved_at BY+=resolved_by NOTE+",
)
ONE_DEAD: Final = ValueTable(
    DeadLetter,
    "run.run_id",
    "RUN=run.run_id JOB=run.job REASON=run.reason EXIT=run.exit_code SCHEDULED=run.scheduled_at "
    "DIED=died_at REDRIVE_OF=run.redrive_of FINGERPRINT RESOLVED AT=resolved_at BY=resolved_by "
    "REDRIVEN_AS REDRIVE=redrive_id NOTE ERROR=run.error",
    RESOLVED=lambda one: one.resolution or "no",
)
DEAD_GROUPS: Final = ValueTable(
    DeadLetterGroup,
    "fingerprint",
    "COUNT QUEUED+ JOB OF REASON EXIT+=exit_code FIRST+=first_died_at LAST=last_died_at "
    "FINGERPRINT RUN=run_id ERROR~",
    OF=lambda one: of_whom(one.submitted),
    ERROR=lambda one: last_line(one.error),
)
REDRIVES: Final = ValueTable(
    Redrive,
    "redrive_id",
    "REDRIVE=redrive_id JOB OF FINGERPRINT STATE RATE TOTAL CREATED LEFT OMITTED+ RUNS "
    "PAYLOAD+ CREATED+=created_at BY+=created_by STOPPED+=stopped_at STOPPED_BY+ "
    "FINISHED+=finished_at",
    OF=lambda one: of_whom(one.submitted),
    RATE=lambda one: f"{one.rate:g}/s" if one.rate >= 1 else f"{one.rate * 60:g}/m",
    PAYLOAD=lambda one: "edited" if one.payload_edited else "",
)
MEMBERS: Final = ValueTable(
    Member,
    "name",
    "NAME ROLE STATE SHARDS WEIGHT GRPC HTTP VERSION LOST=lost_at WORKERS+ DATABASE+ "
    "TZDATA+ TENURE+",
    ROLE=lambda one: one.role or UNKNOWN,
    WEIGHT=lambda one: UNKNOWN if one.state == "LOST" else one.weight,
    WORKERS=_of_live(lambda one: "attached" if one.attached else "none"),
    DATABASE=_of_live(lambda one: "answers" if one.database else "unavailable"),
)
SHARDS: Final = ValueTable(Shard, "shard", "SHARD OWNER ASSIGNED EPOCH TENURE+")
WORKERS: Final = ValueTable(
    Worker,
    "name",
    "NAME STATE SLOTS FREE RUNNING LABELS LEASE_AGE LOST=lost_at HOST+ STARTED+=started_at "
    "HANDLERS+ EXECUTORS+ NAMESPACES+ VERSION+ INCARNATION+ UNSTORED+ REFUSAL_REASON+ "
    "DRAINED+=drained_at BY+=drained_by REASON+=drain_reason",
    STATE=_worker_state,
    SLOTS=lambda one: one.slots or UNKNOWN,
    FREE=lambda one: _known(one.free),
    RUNNING=lambda one: _known(one.running),
    LEASE_AGE=lambda one: _known(one.lease_age),
    NAMESPACES=lambda one: one.namespaces or "all",
    UNSTORED=lambda one: _known(one.unstored_results),
)
AUDIT: Final = ValueTable(
    AuditEntry,
    "object",
    "AT ACTOR ACTION OBJECT OUTCOME REASON~ RUN+=run_id TOKEN+ WORKER+ SOURCE+ BEFORE+ AFTER+",
    ACTOR=lambda one: actor_with_token(one.actor, one.source or ""),
    REASON=why_of,
    TOKEN=lambda one: one.fencing_token or "",
)

TOKENS: Final = ValueTable(
    AccessToken,
    "token_id",
    "TOKEN=token_id NAME ROLE NAMESPACES EXPIRES=expires_at REVOKED=revoked_at "
    "CREATED+=created_at BY+=created_by REVOKED_BY+ CREATOR+=creator_id",
    NAMESPACES=lambda one: ",".join(one.namespaces),
)

SHARD_MOVES: Final = ValueTable(
    ShardMove,
    "shard",
    "SHARD FROM TO",
    FROM=lambda one: one.old_owner or "none",
    TO=lambda one: one.new_owner or "none",
)

FINDINGS: Final = ValueTable(
    Finding,
    lambda one: f"{one.area}: {one.check}",
    "SEVERITY AREA CHECK SUBJECT WHAT WHY DO=remedy",
)

CALENDARS: Final = ValueTable(
    Calendar,
    "name",
    "NAME VERSION EXCLUDES ROLL ZONE+ JOBS BEHIND+=jobs_behind UPDATED=updated_at BY+=updated_by",
    EXCLUDES=excluded,
    ROLL=lambda one: one.roll or "NONE",
    ZONE=lambda one: one.time_zone or "the job's",
)

POOLS: Final = ValueTable(
    Pool,
    "name",
    "NAME STATE LIMIT RUNNING RATE RECENT WAITING JOBS PAUSED_BY+ NOTE+=pause_note VERSION+ "
    "UPDATED+=updated_at BY+=updated_by",
    STATE=lambda one: "PAUSED" if one.paused else "active",
    LIMIT=lambda one: one.limit or "none",
    RATE=lambda one: one.rate or "none",
    RECENT=lambda one: one.recent if one.rate else "",
)

BACKFILLS: Final = ValueTable(
    Backfill,
    "backfill_id",
    "BACKFILL=backfill_id JOB STATE FROM=first TO=last TOTAL REMAINING=not_created "
    "IN_PROGRESS SUCCEEDED FAILED SKIPPED+ CANCELLED+ OVERLAP+ PARALLEL+=max_parallel "
    "PRIORITY+ BY+=created_by",
    IN_PROGRESS=lambda one: one.waiting + one.running + one.retrying,
    OVERLAP=lambda one: one.overlap or "the job's",
)
INSTANTS: Final = ValueTable(
    Instant, lambda one: one.scheduled_at.isoformat(), "SCHEDULED=scheduled_at DUE=due_at"
)
WITH_EXCLUDED: Final = ValueTable(
    Instant,
    lambda one: one.scheduled_at.isoformat(),
    "SCHEDULED=scheduled_at DUE=due_at EXCLUDED_BY",
)
