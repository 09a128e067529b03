"""The next run of a job, as shown to users."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schedd.api import views
from schedd.core.schedule.work_budget import TooMuchWork, limited
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import job_pb2
from support.costly_schedules import worst
from support.store import START, job_record


def second(number: float) -> datetime:
    return START + timedelta(seconds=number)


def next_run(timer: float | None, early: float | None) -> datetime | None:
    """Return the next run of a job that runs every ten seconds, with this timer and early runs."""
    spec = job_pb2.Job(name="j", namespace="default")
    spec.every.FromTimedelta(timedelta(seconds=10))
    spec.shell.argv.append("true")
    stands = job_record(due=None if timer is None else second(timer))
    definition = replace(stands.definition, spec=spec.SerializeToString())
    made = () if early is None else (second(early), second(early + 5))
    record = replace(stands, definition=definition, early=made)
    return views.next_run(record, JobDefinition.read(definition))


@pytest.mark.parametrize(
    ("timer", "early", "expected"),
    [(20, None, 20), (20, 10, 10), (None, 10, 10), (20, 13, 20), (None, 13, None), (10, 20, 10)],
    ids=[
        "nothing is made early",
        "made early",
        "its last run is made",
        "an edit has taken out what was made",
        "and it has ended",
        "an edit has put its timer before what was made",
    ],
)
def test_a_job_runs_next_at_the_next_instant_even_if_its_run_exists(
    timer: float | None, early: float | None, expected: float | None
) -> None:
    assert next_run(timer, early) == (None if expected is None else second(expected))


def test_a_list_shows_the_stored_due_time_of_a_job_whose_schedule_takes_long_to_compute() -> None:
    stored = job_record(due=START)
    spec = worst("worst")
    spec.namespace = "default"
    definition = replace(stored.definition, spec=spec.SerializeToString())
    record = replace(stored, definition=definition)
    with pytest.raises(TooMuchWork), limited(views.NEXT_RUN):
        views.next_run(record, JobDefinition.read(definition))
    assert views.job_message(record).next_run_at.ToDatetime(UTC) == START
