"""The effect of a pause, an edit or a deletion on a job's timer. Pure.

scheduled times of the timer until now ─→ one merged row for all of them
the first later one                    ─→ the new timer

Invariant: the scheduled time decides, not the due time. A time within a pause is in its row, even
if jitter makes it due after the pause. A time before the pause fires when it is due.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, ParamSpec

from google.protobuf.message import Message

from schedd.api.budgeted_calls import too_expensive
from schedd.api.definitions import validation
from schedd.core.events import Emit, RunsMissed
from schedd.core.ids import scheduled_run_id
from schedd.core.runs import reasons
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import NewRun, RunKey
from schedd.core.runs.records import JobRecord, TimerEdit
from schedd.core.schedule.compiled_schedule import CompiledSchedule, Occurrence
from schedd.core.schedule.work_budget import OF_CALL, TooMuchWork, limited
from schedd.core.timers import fire_plan
from schedd.core.timers.cluster_pauses import due_until
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import job_pb2

SCHEDULES: Final = ("cron", "every", "at", "local_at", "on_demand", "after")
"""Kinds of schedule; a job has one. `local_at` is stored as `at`."""
WHEN: Final = frozenset(
    {*SCHEDULES, "phase", "anchor", "time_zone", "start", "end", "jitter", "dst", "exclude"}
)
"""Fields whose edit resets the timer; all others keep it."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


def after_pause(record: JobRecord, end: datetime) -> tuple[TimerEdit, NewRun | None]:
    """Return the timer after a pause, and the row for the scheduled times of the pause."""
    definition = JobDefinition.read(record.definition)
    most = definition.parsed.max_runs
    if record.due_at is None:
        return TimerEdit(max_runs=most), None
    why, since = _pause(record), record.paused_at
    merged, following = _merged(record, definition, end, State.SKIPPED, Reason.PAUSED, why, since)
    reset = (following.due, following.nominal) if following else (None, None)
    return TimerEdit(reset, max_runs=most), merged


def edited_timer(
    record: JobRecord, old: JobDefinition, new: JobDefinition, now: datetime
) -> TimerEdit:
    """Return the timer after an edit. It is reset if the schedule changed. A change of `max_runs`
    may end it, or restart one that had created all its runs.
    """
    most = new.parsed.max_runs
    if schedule_changed(old.spec, new.spec) or new.row.calendars != old.row.calendars:
        return TimerEdit(reset_timer(record, old, new, now), max_runs=most)
    if new.spec.max_runs == old.spec.max_runs or record.nominal is None:
        return TimerEdit(max_runs=most)
    following = new.schedule.following(now)
    later = (following.due, following.nominal) if following else (None, None)
    if 0 < most <= record.fired:  # the schedule ends with this edit, which records due times
        return TimerEdit(later, max_runs=most)
    return TimerEdit(restart=later, max_runs=most)


def reset_timer(
    record: JobRecord, old: JobDefinition, new: JobDefinition, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return the first due time of a new schedule, and its scheduled time. Times whose runs were
    created early are passed over: a merged row that begins with one would violate its key.
    """
    compiled = new.schedule
    kept = _kept_occurrence(record, old, compiled, now)
    if kept is not None:
        return max(kept.due, now), kept.nominal
    first = compiled.first(now)
    while first is not None and first.nominal in record.early:
        first = compiled.following(first.nominal)
    return (first.due, first.nominal) if first else (None, None)


def _kept_occurrence(
    record: JobRecord, old: JobDefinition, edited: CompiledSchedule, now: datetime
) -> Occurrence | None:
    """Return the past scheduled time that isn't due yet because of its jitter, if the new schedule
    has it too: it still fires.
    """
    if record.nominal is None or record.nominal > now or record.definition.paused:
        return None
    compiled = old.schedule
    newest = compiled.whole.newest(record.nominal - _TICK, now)
    if newest is None or compiled.excludes(newest) or compiled.due(newest) <= now:
        return None
    return edited.following(newest - _TICK) if edited.whole.contains(newest) else None


def left_after(
    record: JobRecord, schedule: CompiledSchedule, max_runs: int, after: datetime
) -> int:
    """Return how many of `max_runs` runs are left later than `after`. Skipped ones don't count."""
    if record.nominal is None:
        return 0
    return max(0, max_runs - record.fired - schedule.count(record.nominal - _TICK, after))


def due_after(record: JobRecord, edit: TimerEdit) -> datetime | None:
    """Return the first due time after an edit."""
    if edit.max_runs and record.fired >= edit.max_runs:
        return None
    if edit.reset is not None:
        return edit.reset[0]
    if record.due_at is None and edit.restart is not None:
        return edit.restart[0]
    return record.due_at


def never_fired(
    record: JobRecord,
    old: JobDefinition,
    now: datetime,
    by: str,
    reason: Reason = Reason.EDITED,
    new: JobDefinition | None = None,
) -> NewRun | None:
    """Return the row for the due times of a schedule that is replaced (by `new`) or deleted. `old`
    is the record's definition, `by` describes the change and its author.
    """
    if record.definition.paused:
        return _merged(record, old, now, State.SKIPPED, Reason.PAUSED, _pause(record))[0]
    kept = None if new is None else _kept_occurrence(record, old, new.schedule, now)
    spares = None if kept is None else kept.nominal
    return _merged(record, old, now, State.MISSED, reason, by, spares)[0]


def _pause(record: JobRecord) -> str:
    return reasons.pause(record.paused_by, record.paused_at, record.pause_note)


def _merged(
    record: JobRecord,
    definition: JobDefinition,
    now: datetime,
    state: State,
    reason: Reason,
    by: str,
    spares: datetime | None = None,
) -> tuple[NewRun | None, Occurrence | None]:
    """Return one row for all scheduled times of the timer until now, and the first later one. A
    time up to `spares` that isn't due yet still fires.
    """
    if record.nominal is None or record.due_at is None:
        return None, None
    compiled = definition.schedule
    schedule, head = compiled.whole, Occurrence(record.nominal, record.due_at)
    if compiled.excludes(head.nominal):  # its timer is at the last of several excluded times
        head = Occurrence(head.nominal, schedule.due(head.nominal))
    newest = schedule.newest(head.nominal, now) or head.nominal
    spared = newest > now or (spares is not None and newest <= spares)
    until = now if spared else due_until(schedule, head, now)
    times, following = fire_plan.merge_until(schedule, head, until, state, reason)
    if following is not None and compiled.excludes(following.nominal):
        following = compiled.following(following.nominal - _TICK)
    if times is None:
        return None, following
    if compiled.excluding and not compiled.newest(times.first - _TICK, times.last):
        state, reason = State.SKIPPED, Reason.CALENDAR
        by = compiled.excluded_by(times.first)
    return NewRun(
        RunKey(times.first, scheduled_run_id(record.definition.job_id, times.first)),
        times.due,
        state=state,
        reason=reason,
        count=times.count,
        scheduled_until=times.last,
        excluded_by=by,
    ), following


def check_edit(old: JobDefinition, new: JobDefinition, now: datetime) -> None:
    """Raise InvalidArgumentError with all violations that an edit would add to a job.

    Violations that the stored job has already are accepted: an earlier version accepted them, and
    the job must stay editable. Those of the schedule are accepted only if it doesn't change.
    """
    was, job = old.message, new.message
    scheduled = not schedule_changed(was, job)
    # An unchanged schedule, or `at`, may be past.
    kept = job_codec.instant(was.at) if job.HasField("at") and job.at == was.at else now
    at = EPOCH if scheduled else kept
    known = [*validation.faults(old, at, scheduled=scheduled)]
    validation.check(new, at, known=known)


def schedule_changed(old: job_pb2.Job, new: job_pb2.Job) -> bool:
    plain_old: Message = old
    plain_new: Message = new
    return any(getattr(plain_old, field) != getattr(plain_new, field) for field in WHEN)


# Count the scheduled times that an edit or deletion leaves unfired, once the row is stored.
#
# The transaction calls for the row again at each retry; only the last row is stored, and only if
# the call succeeds.

P = ParamSpec("P")


class MissedOnEdit(Generic[P]):
    """Wrap the function that returns the row, and remember its last result."""

    def __init__(self, row_of: Callable[P, NewRun | None], emit: Emit) -> None:
        self._row_of = row_of
        self._emit = emit
        self._row: NewRun | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> NewRun | None:
        try:
            with limited(OF_CALL):
                self._row = self._row_of(*arguments, **named)
        except TooMuchWork as error:
            raise too_expensive() from error
        return self._row

    def stored(self) -> None:
        """Report the number of MISSED scheduled times, after the row was stored."""
        row = self._row
        if row is not None and row.state is State.MISSED and row.reason is not None:
            self._emit(RunsMissed(row.reason, row.count))
