"""Timers of jobs after a pause or an edit, by their scheduled times."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from schedd.api.jobs import timer_edit
from schedd.core.ids import Id, JobId
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import NewRun
from schedd.core.runs.records import JobRecord, StoredDefinition
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import job_pb2
from support.store import job_record

JITTER = 50
JOB = JobId(Id.from_int(1))


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-10T{text}").replace(tzinfo=UTC)


def each_minute(nominal: str, paused_at: str | None = None) -> JobRecord:
    """A jittered job whose timer stands at this instant."""
    spec = job_pb2.Job(name="j", cron=["* * * * *"], jitter=Duration(seconds=JITTER))
    record = job_record()
    stored = replace(
        record.definition,
        job_id=JOB,
        spec=spec.SerializeToString(),
        paused=paused_at is not None,
    )
    due = JobDefinition.read(stored).schedule.due(at(nominal))
    return replace(
        record,
        definition=stored,
        nominal=at(nominal),
        due_at=due,
        paused_at=at(paused_at) if paused_at else None,
        paused_by="ann" if paused_at else "",
    )


def late(instant: str) -> bool:
    """Whether jitter makes it due more than ten seconds later."""
    due = each_minute(instant).due_at
    assert due is not None
    return due > at(instant) + timedelta(seconds=10)


def never_fired(
    record: JobRecord, now: datetime, new: JobDefinition | None = None
) -> NewRun | None:
    old = JobDefinition.read(record.definition)
    return timer_edit.never_fired(record, old, now, "an edit by ann", new=new)


def reset_timer(
    record: JobRecord, edited: StoredDefinition, now: datetime
) -> tuple[datetime | None, datetime | None]:
    old, new = map(JobDefinition.read, (record.definition, edited))
    return timer_edit.reset_timer(record, old, new, now)


def recorded(row: NewRun | None) -> tuple[State, Reason | None, str, int] | None:
    if row is None:
        return None
    return row.state, row.reason, f"{row.key.scheduled_at:%H:%M}", row.count


LATE = next(f"12:{minute:02}" for minute in range(5, 60) if late(f"12:{minute:02}"))
"""An instant that is due some time after it."""
NEXT = f"{at(LATE) + timedelta(minutes=1):%H:%M}"


@pytest.mark.parametrize("first", ["12:02", LATE])
def test_an_instant_during_a_pause_is_skipped_even_if_due_after_the_resume(first: str) -> None:
    record = each_minute(first, paused_at="12:01:30")
    edit, row = timer_edit.after_pause(record, at(f"{LATE}:05"))
    assert edit.reset is not None
    due, nominal = edit.reset
    count = (at(LATE) - at(first)) // timedelta(minutes=1) + 1
    assert recorded(row) == (State.SKIPPED, Reason.PAUSED, first, count)
    assert nominal == at(NEXT)
    assert due is not None


def test_an_instant_from_before_a_pause_fires_when_it_is_due_after_it() -> None:
    record = each_minute(LATE, paused_at=f"{LATE}:03")
    edit, row = timer_edit.after_pause(record, at(f"{LATE}:05"))
    assert row is None
    assert edit.reset == (record.due_at, at(LATE))


@pytest.mark.parametrize(
    ("paused_at", "state", "reason"),
    [(None, State.MISSED, Reason.EDITED), (f"{LATE}:03", State.SKIPPED, Reason.PAUSED)],
)
def test_an_edit_records_an_undue_instant_that_the_new_schedule_lacks(
    paused_at: str | None, state: State, reason: Reason
) -> None:
    row = never_fired(each_minute(LATE, paused_at), at(f"{LATE}:05"))
    assert recorded(row) == (state, reason, LATE, 1)
    assert row is not None
    since = f"2026-01-10T{LATE}:03Z"
    assert row.excluded_by == (f"a pause by ann since {since}" if paused_at else "an edit by ann")


@pytest.mark.parametrize("also", [{"cron": ["* * * * *", "0 0 1 1 *"]}, {"dst": {"gap": 2}}])
def test_an_edit_keeps_an_undue_instant_that_both_schedules_have(
    also: dict[str, Any],
) -> None:
    record, now = each_minute(LATE), at(f"{LATE}:05")
    said = {"cron": ["* * * * *"]} | also
    spec = job_pb2.Job(name="j", jitter=Duration(seconds=JITTER), **said)
    edited = replace(record.definition, spec=spec.SerializeToString())
    assert reset_timer(record, edited, now) == (record.due_at, at(LATE))
    assert never_fired(record, now, new=JobDefinition.read(edited)) is None


def test_a_kept_instant_with_an_earlier_due_time_is_due_now() -> None:
    record, now = each_minute(LATE), at(f"{LATE}:05")
    spec = job_pb2.Job(name="j", cron=["* * * * *"])
    edited = replace(record.definition, spec=spec.SerializeToString())
    assert reset_timer(record, edited, now) == (now, at(LATE))


def test_an_edit_to_a_schedule_without_the_undue_instant_records_it() -> None:
    record, now = each_minute(LATE), at(f"{LATE}:05")
    spec = job_pb2.Job(name="j", cron=["0 0 1 1 *"])
    edited = replace(record.definition, spec=spec.SerializeToString())
    assert reset_timer(record, edited, now)[1] == datetime(2027, 1, 1, tzinfo=UTC)
    row = never_fired(record, now, new=JobDefinition.read(edited))
    assert recorded(row) == (State.MISSED, Reason.EDITED, LATE, 1)


def test_one_row_covers_a_pause_of_several_expressions() -> None:
    spec = job_pb2.Job(name="j", cron=["* * * * *", "*/2 * * * *"])
    record = each_minute("12:00", paused_at="11:59:30")
    stored = replace(record.definition, spec=spec.SerializeToString())
    record = replace(record, definition=stored, due_at=at("12:00"))

    edit, row = timer_edit.after_pause(record, at("14:00:30"))

    assert row is not None
    assert row.scheduled_until == at("14:00")
    assert row.count == 121
    assert edit.reset == (at("14:01"), at("14:01"))


def test_an_edit_before_the_next_instant_misses_nothing() -> None:
    assert never_fired(each_minute(NEXT), at(f"{LATE}:59")) is None


@pytest.mark.parametrize(
    ("made", "first"),
    [((), "12:01"), (("12:01",), "12:02"), (("12:01", "12:02"), "12:03"), (("12:02",), "12:01")],
    ids=str,
)
@pytest.mark.parametrize("exclude", [(), ("1-9 12 10 1 *",)], ids=["runs", "excluded"])
def test_an_edited_timer_begins_after_the_runs_that_already_exist(
    made: tuple[str, ...], first: str, exclude: tuple[str, ...]
) -> None:
    """Several excluded instants make one row, under the key of the first."""
    record = replace(each_minute("12:02"), early=tuple(at(each) for each in made))
    spec = job_pb2.Job(name="j", cron=["* * * * *"], exclude=job_pb2.Exclude(cron=exclude))
    edited = replace(record.definition, spec=spec.SerializeToString())
    _, nominal = reset_timer(record, edited, at("12:00:30"))
    assert nominal == at(first)
