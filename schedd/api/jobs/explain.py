"""Why did it run, or not, then? Answered from what was written down, and from nothing else.

    a row accounts for the instant ──▶ what the row says: ran, late, skipped, missed, coalesced
    none does ──▶ before the job · outside its bounds · no instant of it · still to come
                  · due, not accounted for yet (paused, or its owner is behind) · no record

One idea: an answer names what it was read from. The job's row is read before the ledger's: an
instant that is accounted for in between is then found there, so "no record" is never a race.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from schedd.api import views
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import chains
from schedd.api.errors import InvalidArgument
from schedd.api.jobs import stored_jobs, timer_edit
from schedd.api.runs.why import ENDS, waits_late
from schedd.api.services import Caller, Services
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Delivery
from schedd.core.runs import reasons
from schedd.core.runs.lifecycle import LIVE, NEVER_RAN, Reason, State
from schedd.core.runs.model import Trigger
from schedd.core.runs.records import JobRecord
from schedd.core.runs.run_records import RunRecord
from schedd.core.schedule.compiled_schedule import CompiledSchedule
from schedd.core.schedule.cron import ScheduleError
from schedd.core.timers.fire_plan import GRACE
from schedd.runtime import job_codec
from schedkit.text.duration import render
from schedproto.v1 import job_service_pb2

# What backfills made of one instant, in words: beside what its own row says, not in its stead.


async def backfilled(
    services: Services, job_id: JobId, at: datetime
) -> tuple[str, Sequence[RunRecord]]:
    """The sentences, each after a blank, and the runs they are of; empty: there are none."""
    made, to_come = await services.backfills.of_instant(job_id, at)
    told = "".join(f" {_run(one)}" for one in made)
    if to_come is not None:
        told += f" Backfill {to_come} is to run it: no run of that is made yet."
    return told, made


def _run(record: RunRecord) -> str:
    run = record.run
    stands = f"is {run.state}" + (f" ({record.reason})" if record.reason else "")
    now = ", as it stands now" if run.state in LIVE else ""
    return f"Backfill {record.backfill} made run {run.key.run_id} for it, which {stands}{now}."


_FAR: Final = timedelta(days=800)
"""How far back the instant before one that isn't is looked for."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """The question with all that was read for it, but the row."""

    services: Services
    caller: Caller
    record: JobRecord
    schedule: CompiledSchedule
    at: datetime
    now: datetime
    is_instant: bool
    """Whether the schedule, as it stands, has this instant, be it one that it excludes."""

    @property
    def name(self) -> str:
        """The job's."""
        return self.record.definition.name

    def changed_since(self, instant: datetime) -> bool:
        """Whether the schedule may have been another one then: definitions of old aren't kept."""
        return self.record.definition.generation > 1 and self.record.updated_at > instant


async def explain_instant(
    services: Services, caller: Caller, request: job_service_pb2.ExplainInstantRequest
) -> job_service_pb2.ExplainInstantResponse:
    """What became of one instant of a job, in words, and the row that was read for it."""
    record = await stored_jobs.find(services, request.namespace, request.job)
    at = job_codec.instant(request.at)
    try:
        schedule = await compute(caller, partial(stored_jobs.compiled, record.definition))
    except ScheduleError as error:  # stored by a version that took it
        raise InvalidArgument(
            f"the job's schedule can't be read: {error}", reason="INVALID_JOB", remedy="mend it"
        ) from error
    is_instant = await compute(caller, partial(schedule.whole.contains, at))
    asked = ExplainRequest(services, caller, record, schedule, at, services.clock.now(), is_instant)
    row = await services.store.accounted(record.definition.job_id, at)
    told, made = await backfilled(services, record.definition.job_id, at)
    runs = [views.run_message(one) for one in made]
    if row is None or not _speaks_of(asked, row):
        answer = await _without_row(asked) + told
        return job_service_pb2.ExplainInstantResponse(answer=answer, backfilled=runs)
    story = _STORIES.get(row.run.state, _ran)
    answer = f"{await story(asked, row)} Read from {_row(row)}.{told}"
    return job_service_pb2.ExplainInstantResponse(
        answer=answer, run=views.run_message(row), backfilled=runs
    )


def _speaks_of(asked: ExplainRequest, row: RunRecord) -> bool:
    """A row of one instant does; one of many also holds moments that never were instants."""
    if row.run.key.scheduled_at == asked.at or asked.is_instant:
        return True
    return row.reason == Reason.EDITED or asked.changed_since(row.scheduled_until or asked.at)


# -- What a row says --


async def _ran(_: ExplainRequest, row: RunRecord) -> str:
    run, late = row.run, row.lateness
    if row.first_started_at is None or late is None:
        why = ENDS.get(row.reason or "", "")
        reason = f" ({row.reason})" if row.reason else ""
        lost = row.reason in (Reason.WORKER_LOST, Reason.TOO_MANY_LOSSES)
        begins = "It isn't known to have started" if lost else "It never started"
        return f"{begins}: it ended as {run.state}{reason}" + (f": {why}." if why else ".")
    how = "on time" if late <= GRACE else "late"
    told = (
        f"It ran {how}: due {_told(run.due_at)}, started {_span(late)} later"
        + (f" on {run.worker}" if run.worker else "")
        + f", attempt {run.attempt}; it is {run.state}"
    )
    return told + (f" ({row.reason})." if row.reason else ".")


async def _runs(asked: ExplainRequest, row: RunRecord) -> str:
    if row.first_started_at is not None:
        return await _ran(asked, row)
    return f"It was handed out to {row.run.worker}, which hasn't told of its start yet."


async def _waits(asked: ExplainRequest, row: RunRecord) -> str:
    run = row.run
    if row.first_started_at is not None:
        return f"It ran and will be tried again: {run.state} after attempt {run.attempt}."
    if (paused := await _made_before_pause(asked, row)) is not None:
        return paused
    told = f"It was made and waits to start: `schedctl run why {run.key.run_id}` says for what."
    if not run.late:
        return told
    definition = stored_jobs.definition(asked.record.definition)
    return f"{told} Caught up with, {waits_late(asked.services, definition)}."


async def _skipped(asked: ExplainRequest, row: RunRecord) -> str:
    if row.reason == Reason.PAUSED and not row.excluded_by:  # of a version that didn't write it
        return f"It was skipped: {await _who_paused(asked)}."
    if row.reason in {Reason.PAUSED, Reason.CALENDAR} and row.excluded_by:
        return f"It was skipped by {row.excluded_by}."
    return _never_ran("skipped", row)


async def _missed(asked: ExplainRequest, row: RunRecord) -> str:
    told = _never_ran("missed", row)
    if row.reason == Reason.WINDOW:
        window = stored_jobs.definition(asked.record.definition).catch_up.window
        told += f" The window is {_span(window)} now."
    if not asked.is_instant:
        told += " Whether this very moment was one of its instants then isn't kept."
    return told


async def _coalesced(asked: ExplainRequest, row: RunRecord) -> str:
    until = row.scheduled_until or row.run.key.scheduled_at
    into = await asked.services.store.taken_by(asked.record.definition.job_id, until)
    if into is None:
        return "It was coalesced into a later run, of which there is no record any more."
    run = into.run
    return (
        f"It was coalesced: it was late, and the job says catch_up: latest, so the newest instant, "
        f"{_told(run.key.scheduled_at)}, stands for it: run {run.key.run_id}, {run.state}"
        + (f" ({into.reason})." if into.reason else ".")
    )


def _never_ran(what: str, row: RunRecord) -> str:
    why = ENDS.get(row.reason or "", "no reason is known to this version")
    by = f": {row.excluded_by}" if row.excluded_by else ""
    return f"It was {what} ({row.reason}): {why}{by}."


_STORIES: Final[dict[State, Callable[[ExplainRequest, RunRecord], Awaitable[str]]]] = {
    State.PENDING: _waits,
    State.RETRYING: _waits,
    State.RUNNING: _runs,
    State.SKIPPED: _skipped,
    State.MISSED: _missed,
    State.COALESCED: _coalesced,
}
"""By the row's state; every other one has run, or never will."""


async def _who_paused(asked: ExplainRequest) -> str:
    """Who paused the job, or the cluster, when, and with what note; from what was written down."""
    stored, since = asked.record.definition, asked.record.paused_at
    once = stored_jobs.definition(stored).delivery is Delivery.AT_MOST_ONCE
    for pause in (await asked.services.pauses.read()).all:
        if pause.skips(asked.at, at_most_once=once):
            return f"the cluster was {views.paused(pause)}"
    if stored.paused and since is not None and since <= asked.at:
        return f"the job is {_pause(asked.record.paused_by, since, asked.record.pause_note)}"
    object_ = f"job/{stored.namespace}/{stored.name}"
    entry = await asked.services.store.last_pause(object_, asked.record.created_at, asked.at)
    if entry is None:
        return "the job was paused, by whom the audit doesn't say"
    note = json.loads(entry.after).get("note", "") if entry.after else ""
    return f"the job was {_pause(entry.actor, entry.at, note)} (the audit has it)"


def _pause(by: str, since: datetime | None, note: str) -> str:
    told = f"paused by {by}" if by else "paused"
    return told + (f" since {_told(since)}" if since else "") + (f": {note}" if note else "")


# -- What is said where there is no row --


async def _without_row(asked: ExplainRequest) -> str:
    record, at = asked.record, asked.at
    job = f"Read from the row of job {record.definition.job_id}."
    if at < record.created_at:
        made = f"{_told(record.created_at)} by {record.created_by}"
        return f"It is from before the job was made ({made}). {job}"
    after = stored_jobs.definition(record.definition).after
    if after is not None:
        joins = await asked.services.chains.waiting(record.definition.job_id, at)
        if joins:
            return " ".join(chains.waits_told(one, after.jobs) for one in joins)
        parents = ", ".join(after.jobs)
        return f"Nothing of that cycle has come from what it runs after: {parents}. {job}"
    if not asked.is_instant:
        return f"{await compute(asked.caller, partial(_no_instant, asked))} {job}"
    if (excluded_by := asked.schedule.excluded_by(at)) and (told := _excluded(asked, excluded_by)):
        return f"{told} {job}"
    counted = record.nominal is not None and record.nominal <= at
    if counted and (words := await compute(asked.caller, partial(_counted_out, asked))):
        return f"{words} {job}"
    if at > asked.now:
        due = await compute(asked.caller, partial(asked.schedule.due, at))
        told = f"It is still to come: due {_told(due)}"
        if record.definition.paused:
            told += (
                f"; and the job is {_pause(record.paused_by, record.paused_at, record.pause_note)}"
            )
        return f"{told}. {job}"
    if record.nominal is not None and record.nominal <= at:
        return f"{await _unaccounted(asked)} {job}"
    return (
        f"There is no record of it: {_told(at)} is an instant of the schedule as it stands, and no "
        "row accounts for it."
        + (
            " The job was changed since: its schedule may have been another one then."
            if asked.changed_since(at)
            else ""
        )
        + _not_kept(asked)
        + f" Looked for in the rows of job {record.definition.job_id}."
    )


def _not_kept(asked: ExplainRequest) -> str:
    own = asked.record.definition.retention
    kept = asked.services.retention.runs if own is None else own
    if asked.now - asked.at < kept:
        return ""
    return f" What is that old isn't kept: runs are deleted {render(kept)} after their end."


def _no_instant(asked: ExplainRequest) -> str:
    bounds, at = asked.schedule.bounds, asked.at
    told = f"{_told(at)} is not an instant of this schedule"
    if bounds.start is not None and at < bounds.start:
        return f"{told}: it starts {_told(bounds.start)}."
    if bounds.end is not None and at > bounds.end:
        return f"{told}: it ended {_told(bounds.end)}."
    before = asked.schedule.newest(at - _FAR, at)
    after = asked.schedule.next_after(at)
    near = [f"the one before is {_told(before)}"] if before else []
    near += [f"the next is {_told(after.nominal)}"] if after else []
    told += ": " + ", ".join(near or ["it has none near"]) + "."
    if asked.changed_since(at):
        told += f" The job was changed since, last {_told(asked.record.updated_at)}."
    return told


def _excluded(asked: ExplainRequest, excluded_by: str) -> str:
    """Of an excluded instant that is still to come, or that its timer stands at or before."""
    record = asked.record
    if asked.at > asked.now:
        return f"It won't run: it is excluded by {excluded_by}."
    if record.definition.paused or record.nominal is None or record.nominal > asked.at:
        return ""
    told = f"It didn't run: it is excluded by {excluded_by}."
    if record.due_at is None:
        return told
    return f"{told} It is accounted for {_told(record.due_at)}, with the others of its day."


def _counted_out(asked: ExplainRequest) -> str:
    """Of an instant to come: that the schedule will have made its `max_runs` by then."""
    record = asked.record
    most = stored_jobs.definition(record.definition).max_runs
    before = asked.at - timedelta(microseconds=1)
    if not most or timer_edit.left_after(record, asked.schedule, most, before):
        return ""
    if record.due_at is None:
        return f"It isn't due: the schedule has made the {most:,} runs that max_runs allows."
    return (
        f"It won't be due, unless one before it is skipped: max_runs is {most:,}, of which "
        f"{record.fired:,} were made, and the rest comes sooner."
    )


async def _made_before_pause(asked: ExplainRequest, row: RunRecord) -> str | None:
    """Of an instant of the pause that lasts, whose run was made ahead of both."""
    record, present = asked.record, await asked.services.pauses.present()
    if not asked.is_instant or row.trigger is not Trigger.SCHEDULE:
        return None
    if record.paused_at is not None and record.paused_at < asked.at <= asked.now:
        who = _pause(record.paused_by, record.paused_at, record.pause_note)
        return f"It didn't run: the job is {who}. It is skipped when the job is resumed."
    if present is not None and present.began < asked.at <= asked.now:
        return f"It didn't run: the cluster is {views.paused(present)}."
    return None


async def _unaccounted(asked: ExplainRequest) -> str:
    """Its timer still stands at, or before, this instant."""
    record = asked.record
    present = await asked.services.pauses.present()
    if record.definition.paused:
        who = _pause(record.paused_by, record.paused_at, record.pause_note)
        return f"It didn't run: the job is {who}. It is accounted for when the job is resumed."
    if present is not None:
        return f"It didn't run: the cluster is {views.paused(present)}."
    behind = f"the timer of the job stands at {_told(record.nominal)}"
    return f"It hasn't fired yet: {behind}, in shard {record.shard} (schedctl cluster shards)."


# -- Words --


def _row(row: RunRecord) -> str:
    run = row.run
    told = f"run {run.key.run_id}"
    if row.count > 1 and row.scheduled_until is not None:
        span = f"{_told(run.key.scheduled_at)} to {_told(row.scheduled_until)}"
        told += f", which accounts for {row.count:,} instants from {span}"
    if run.state in LIVE:
        return f"{told}, as it stands now"
    if run.state in NEVER_RAN and row.finished_at is not None:
        told += f", written {_told(row.finished_at)}" + (f" by {row.member}" if row.member else "")
    return told


def _told(at: datetime | None) -> str:
    assert at is not None, "callers ask for what there is"
    return reasons.time_text(at)


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 120:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h".replace(".0 ", " ")
