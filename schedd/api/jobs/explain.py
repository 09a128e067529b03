"""Explain why a job ran, or didn't run, at a scheduled time, from stored rows only;
explain a cron expression.

    a row covers the time ──▶ the row's state: ran, late, skipped, missed, coalesced
    no row does ──▶ before the job · outside its bounds · not a scheduled time · in the future
                    · due, not fired yet (paused, or its owner is behind) · no record

Invariants
- An answer names the rows that it was read from.
- The job's row is read before the runs: a time that is fired in between is then found among them,
  so "no record" is never a race.
"""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from schedd.api import paging, views
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import references
from schedd.api.errors import FieldViolation, InvalidArgumentError
from schedd.api.jobs import stored_jobs, timer_edit
from schedd.api.jobs.stored_jobs import namespace_of
from schedd.api.runs.why import ENDS, waits_late
from schedd.api.services import Caller, Services
from schedd.core.runs import reasons
from schedd.core.runs.lifecycle import LIVE, NEVER_RAN, Reason, State
from schedd.core.runs.model import Trigger
from schedd.core.runs.records import JobRecord
from schedd.core.runs.run_records import RunRecord
from schedd.core.schedule.cron import EPOCH, CronError
from schedd.core.schedule.cron import explain as explained
from schedd.core.timers.fire_plan import GRACE
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedkit.records import dataclass
from schedkit.text.duration import render
from schedproto.v1 import job_service_pb2 as wire

_FAR: Final = timedelta(days=800)
"""How far back the previous scheduled time is searched."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """The question, with everything that was read for it except the run's row."""

    services: Services
    caller: Caller
    record: JobRecord
    definition: JobDefinition
    at: datetime
    now: datetime
    is_instant: bool
    """Whether the current schedule has this time, excluded or not."""

    def changed_since(self, instant: datetime) -> bool:
        """Return whether the schedule may have been different then: old definitions aren't kept."""
        return self.record.definition.generation > 1 and self.record.updated_at > instant


async def explain_instant(
    services: Services, caller: Caller, request: wire.ExplainInstantRequest
) -> wire.ExplainInstantResponse:
    """Describe what happened at a scheduled time of a job, with the run's row."""
    record = await stored_jobs.find(services, request.namespace, request.job)
    job_id, at = record.definition.job_id, job_codec.instant(request.at)
    definition = JobDefinition.read(record.definition)
    schedule = await stored_jobs.schedule_of(caller, definition)
    is_instant = await compute(caller, partial(schedule.whole.contains, at))
    now = services.clock.now()
    asked = ExplainRequest(services, caller, record, definition, at, now, is_instant)
    row = await services.store.accounted(job_id, at)
    backfills, to_come = await services.backfills.of_instant(job_id, at)
    more = "".join(f" {_describe_backfilled(one)}" for one in backfills)
    if to_come is not None:
        more += f" Backfill {to_come} will run it: no run has been created yet."
    runs = [views.run_message(one) for one in backfills]
    if row is None or not _covers(asked, row):
        answer = await _without_row(asked) + more
        return wire.ExplainInstantResponse(answer=answer, backfilled=runs)
    answer = f"{await _describe(asked, row)} Read from {_row(row)}.{more}"
    return wire.ExplainInstantResponse(answer=answer, run=views.run_message(row), backfilled=runs)


def _describe_backfilled(record: RunRecord) -> str:
    run = record.run
    state = f"is {run.state}" + (f" ({record.reason})" if record.reason else "")
    now = " now" if run.state in LIVE else ""
    return f"Backfill {record.backfill} created run {run.key.run_id} for it, which {state}{now}."


def _covers(asked: ExplainRequest, row: RunRecord) -> bool:
    """Return whether the row is for this time: the span of a merged row has others too."""
    if row.run.key.scheduled_at == asked.at or asked.is_instant:
        return True
    return row.reason == Reason.EDITED or asked.changed_since(row.scheduled_until or asked.at)


# -- With a row --


async def _describe(asked: ExplainRequest, row: RunRecord) -> str:
    match row.run.state:
        case State.PENDING | State.RETRYING:
            return await _describe_waiting(asked, row)
        case State.RUNNING if row.first_started_at is None:
            worker = row.run.worker
            return f"The run was dispatched to {worker}, which hasn't reported its start yet."
        case State.SKIPPED:
            if row.reason in {Reason.PAUSED, Reason.CALENDAR} and row.excluded_by:
                return f"The run was skipped by {row.excluded_by}."
            return _never_ran("skipped", row)
        case State.MISSED:
            text = _never_ran("missed", row)
            if row.reason == Reason.WINDOW:
                text += f" The window is {_span(asked.definition.parsed.catch_up.window)} now."
            if asked.is_instant:
                return text
            return (
                f"{text} The schedule of that time isn't kept: this may not have been a scheduled"
                " time."
            )
        case State.COALESCED:
            until = row.scheduled_until or row.run.key.scheduled_at
            into = await asked.services.store.taken_by(asked.record.definition.job_id, until)
            if into is None:
                return "The run was coalesced into a later run, which isn't kept any more."
            run = into.run
            return (
                "The run was coalesced: it was late, and the job has catch_up: latest. The newest"
                f" scheduled time, {_time(run.key.scheduled_at)}, covers it: run {run.key.run_id},"
                f" {run.state}" + (f" ({into.reason})." if into.reason else ".")
            )
        case _:
            return _describe_started(row)


def _describe_started(row: RunRecord) -> str:
    run, late = row.run, row.lateness
    if row.first_started_at is None or late is None:
        why = ENDS.get(row.reason or "", "")
        reason = f" ({row.reason})" if row.reason else ""
        lost = row.reason in (Reason.WORKER_LOST, Reason.TOO_MANY_LOSSES)
        begins = "No start was reported" if lost else "The run never started"
        return f"{begins}: it ended as {run.state}{reason}" + (f": {why}." if why else ".")
    how = "on time" if late <= GRACE else "late"
    text = (
        f"The job ran {how}: due {_time(run.due_at)}, started {_span(late)} later"
        + (f" on {run.worker}" if run.worker else "")
        + f", attempt {run.attempt}; the run is {run.state}"
    )
    return text + (f" ({row.reason})." if row.reason else ".")


async def _describe_waiting(asked: ExplainRequest, row: RunRecord) -> str:
    run, record = row.run, asked.record
    if row.first_started_at is not None:
        return f"The job ran and will be retried: {run.state} after attempt {run.attempt}."
    present = await asked.services.pauses.present()
    if asked.is_instant and row.trigger is Trigger.SCHEDULE:  # created before the current pause?
        if record.paused_at is not None and record.paused_at < asked.at <= asked.now:
            what = "The run is skipped when the job is resumed."
            return f"The job didn't run: it is {_paused(record)}. {what}"
        if present is not None and present.began < asked.at <= asked.now:
            return f"The job didn't run: the cluster is {views.paused(present)}."
    text = f"The run waits to start: `schedctl run why {run.key.run_id}` shows the reason."
    if not run.late:
        return text
    return f"{text} It is a catch-up: {waits_late(asked.services, asked.definition.parsed)}."


def _never_ran(what: str, row: RunRecord) -> str:
    why = ENDS.get(row.reason or "", "this version doesn't know the reason")
    by = f": {row.excluded_by}" if row.excluded_by else ""
    return f"The run was {what} ({row.reason}): {why}{by}."


def _paused(record: JobRecord) -> str:
    text = f"paused by {record.paused_by}" if record.paused_by else "paused"
    if record.paused_at:
        text += f" since {_time(record.paused_at)}"
    return text + (f": {record.pause_note}" if record.pause_note else "")


# -- Without a row --


async def _without_row(asked: ExplainRequest) -> str:
    record, at, schedule = asked.record, asked.at, asked.definition.schedule
    job = f"Read from the row of job {record.definition.job_id}."
    if at < record.created_at:
        made = f"{_time(record.created_at)} by {record.created_by}"
        return f"The time is before the job was created ({made}). {job}"
    if (after := asked.definition.parsed.after) is not None:
        joins = await asked.services.chains.waiting(record.definition.job_id, at)
        if joins:
            return " ".join(references.describe_wait(one, after.jobs) for one in joins)
        return f"No parent has ended in that cycle: {', '.join(after.jobs)}. {job}"
    if not asked.is_instant:
        return f"{await compute(asked.caller, partial(_no_instant, asked))} {job}"
    excluded_by = schedule.excluded_by(at)
    if excluded_by and (text := _excluded(asked, excluded_by)):
        return f"{text} {job}"
    counted = record.nominal is not None and record.nominal <= at
    if counted and (words := await compute(asked.caller, partial(_counted_out, asked))):
        return f"{words} {job}"
    if at > asked.now:
        due = await compute(asked.caller, partial(schedule.due, at))
        text = f"The run is in the future: due {_time(due)}"
        if record.definition.paused:
            text += f"; the job is {_paused(record)}"
        return f"{text}. {job}"
    if counted:
        return f"{await _unaccounted(asked)} {job}"
    text = (
        f"There is no record: {_time(at)} is a scheduled time of the current schedule, but no row"
        " covers it."
    )
    if asked.changed_since(at):
        text += " The job was changed since: its schedule may have been different then."
    own = record.definition.retention
    kept = asked.services.retention.runs if own is None else own
    if asked.now - at >= kept:
        text += f" Runs are deleted {render(kept)} after their end."
    return f"{text} Searched the rows of job {record.definition.job_id}."


def _no_instant(asked: ExplainRequest) -> str:
    bounds, at = asked.definition.schedule.bounds, asked.at
    text = f"{_time(at)} isn't a scheduled time of this job"
    if bounds.start is not None and at < bounds.start:
        return f"{text}: the schedule starts {_time(bounds.start)}."
    if bounds.end is not None and at > bounds.end:
        return f"{text}: the schedule ended {_time(bounds.end)}."
    before = asked.definition.schedule.newest(at - _FAR, at)
    after = asked.definition.schedule.next_after(at)
    near = [f"the previous one is {_time(before)}"] if before else []
    near += [f"the next is {_time(after.nominal)}"] if after else []
    text += ": " + ", ".join(near or ["there is none near it"]) + "."
    if asked.changed_since(at):
        text += f" The job was changed since, last {_time(asked.record.updated_at)}."
    return text


def _excluded(asked: ExplainRequest, excluded_by: str) -> str:
    """Describe an excluded time in the future, or one that isn't stored yet."""
    record = asked.record
    if asked.at > asked.now:
        return f"The job won't run: the time is excluded by {excluded_by}."
    if record.definition.paused or record.nominal is None or record.nominal > asked.at:
        return ""
    text = f"The job didn't run: the time is excluded by {excluded_by}."
    if record.due_at is None:
        return text
    return f"{text} A row is written {_time(record.due_at)}, with the other times of that day."


def _counted_out(asked: ExplainRequest) -> str:
    """Describe a future time that comes after the last of `max_runs` runs; else empty."""
    record = asked.record
    most = asked.definition.parsed.max_runs
    before = asked.at - timedelta(microseconds=1)
    if not most or timer_edit.left_after(record, asked.definition.schedule, most, before):
        return ""
    if record.due_at is None:
        return f"The job won't run: all {most:,} runs of max_runs have been created."
    return (
        f"The job won't run, unless an earlier run is skipped: max_runs is {most:,},"
        f" {record.fired:,} runs have been created, and the others are due earlier."
    )


async def _unaccounted(asked: ExplainRequest) -> str:
    record = asked.record
    present = await asked.services.pauses.present()
    if record.definition.paused:
        what = "A row is written when the job is resumed."
        return f"The job didn't run: it is {_paused(record)}. {what}"
    if present is not None:
        return f"The job didn't run: the cluster is {views.paused(present)}."
    behind = f"its timer is at {_time(record.nominal)}"
    return f"The job hasn't fired yet: {behind}, in shard {record.shard} (schedctl cluster shards)."


# -- Words --


def _row(row: RunRecord) -> str:
    run = row.run
    text = f"run {run.key.run_id}"
    if row.count > 1 and row.scheduled_until is not None:
        span = f"{_time(run.key.scheduled_at)} to {_time(row.scheduled_until)}"
        text += f", which covers {row.count:,} scheduled times from {span}"
    if run.state in LIVE:
        return f"{text}, in its current state"
    if run.state in NEVER_RAN and row.finished_at is not None:
        text += f", written {_time(row.finished_at)}" + (f" by {row.member}" if row.member else "")
    return text


def _time(at: datetime | None) -> str:
    assert at is not None
    return reasons.time_text(at)


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 120:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h".replace(".0 ", " ")


async def explain_cron(
    services: Services, caller: Caller, request: wire.ExplainCronRequest
) -> wire.ExplainCronResponse:
    """Describe an expression, with its next times and notes. Raises InvalidArgumentError."""
    after = services.clock.now()
    if request.HasField("after"):
        after = max(job_codec.instant(request.after), EPOCH)  # a schedule has no earlier past
    return await compute(caller, partial(explanation, request, after))


def explanation(request: wire.ExplainCronRequest, after: datetime) -> wire.ExplainCronResponse:
    """Return the answer, with times later than `after`. Raises InvalidArgumentError. Pure."""
    namespace = namespace_of(request.namespace)
    seed = f"{namespace}/{request.job}" if request.job else ""
    count = paging.coming(request.count)
    try:
        found = explained(
            request.expression, request.time_zone or "UTC", after=after, count=count, seed=seed
        )
    except CronError as error:
        # The text names the part of the expression, the violation the request's field.
        field, problem = error.field, f"{error.field}: {error.problem}"
        whole = field in ("expression", "time_zone")
        violation = FieldViolation(field, error.problem)
        raise InvalidArgumentError(
            problem,
            reason="WRONG_EXPRESSION",
            remedy=error.hint or "for example 30 9 * * MON-FRI",
            violations=[violation if whole else FieldViolation("expression", problem)],
        ) from error
    answer = views.filled(wire.ExplainCronResponse, found, instants=(), warnings=found.notes)
    for at in found.instants:
        answer.instants.add().FromDatetime(at.astimezone(UTC))
    return answer
