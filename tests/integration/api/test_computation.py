"""The costliest schedules, sent to every call that computes fire times: the loop stays free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from time import thread_time
from typing import Any, Final

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api import calls
from schedd.api.errors import CallError, LimitReachedError
from schedd.core.schedule.calendars.exclusion import _pattern, _union, closed
from schedd.core.schedule.cron import day_bits
from schedd.core.schedule.cron.expression import _parse
from schedproto.v1 import calendar_service_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as wire
from support.costly_schedules import one_second_a_year, worst

LONGEST_BLOCK: Final = 0.1
"""Seconds of processor time that one turn of the event loop may take."""

NO_SCHEDULE: Final = frozenset(
    {
        *("PoolService", "RunService", "ClusterService", "AuthService"),
        *("JobService.GetBackfill", "JobService.ListBackfills", "JobService.CancelBackfill"),
        *("JobService.TriggerJob", "JobService.WatchBackfill", "JobService.PauseJob"),
        *("CalendarService.GetCalendar", "CalendarService.ListCalendars"),
        "CalendarService.DeleteCalendar",
    }
)
"""Calls that compute no fire times themselves: whole services, or single calls."""


def nearly_all(seed: int) -> calendar_service_pb2.Calendar:
    return calendar_service_pb2.Calendar(name="nearly-all", cron=one_second_a_year(seed))


def at(instant: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(instant)
    return found


seeds: Final = count(100)
"""Another for each try, so that each changes something."""
PAST: Final = datetime(2015, 1, 1, tzinfo=UTC)

REQUESTS: Final[dict[str, Callable[[], Message]]] = {
    "CreateJob": lambda: wire.CreateJobRequest(job=worst("another", 2)),
    "BatchCreateJobs": lambda: wire.BatchCreateJobsRequest(
        requests=[wire.CreateJobRequest(job=worst(f"b{seed}", seed)) for seed in range(10, 14)]
    ),
    "GetJob": lambda: wire.GetJobRequest(job="worst"),
    "ListJobs": lambda: wire.ListJobsRequest(page_size=300),
    "UpdateJob": lambda: wire.UpdateJobRequest(
        job=worst("worst", next(seeds)), update_mask=FieldMask(paths=["exclude"])
    ),
    "ResumeJob": lambda: wire.ResumeJobRequest(job="worst"),
    "ListNextInstants": lambda: wire.ListNextInstantsRequest(job="worst", count=1000),
    "ExplainInstant": lambda: wire.ExplainInstantRequest(
        job="worst", at=at(datetime.now(UTC) + timedelta(days=30, microseconds=5))
    ),
    "ExplainCron": lambda: wire.ExplainCronRequest(expression="0 0 29 2 *", count=1000),
    "BackfillJob": lambda: wire.BackfillJobRequest(
        job="worst", **{"from": at(PAST)}, to=at(datetime(2025, 1, 1, tzinfo=UTC)), dry_run=True
    ),
    "ApplyCalendar": lambda: calendar_service_pb2.ApplyCalendarRequest(
        calendar=nearly_all(next(seeds))
    ),
    "DeleteJob": lambda: wire.DeleteJobRequest(job="worst"),
}


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The longest turn of one callback so far, in seconds of processor time."""
    seen, run = [0.0], asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = thread_time()
        run(handle)
        seen[0] = max(seen[0], thread_time() - began)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    return seen


def forget() -> None:
    for cache in (_pattern, _union, closed, day_bits.of_times, _parse):
        cache.cache_clear()


def test_every_call_that_computes_is_tried() -> None:
    names = {method.full_name.removeprefix("schedd.v1.") for method in calls.methods()}
    left = {name for name in names if not {name, name.partition(".")[0]} & NO_SCHEDULE}
    assert {name.partition(".")[2] for name in left} | {"BatchCreateJobs"} == set(REQUESTS)


@pytest.mark.parametrize("call", REQUESTS)
async def test_the_worst_schedule_leaves_the_event_loop_free(
    api: Any, longest: list[float], call: str
) -> None:
    await api("CreateJob", wire.CreateJobRequest(job=worst("worst")))
    if call == "ApplyCalendar":  # of a job that goes by it
        first = calendar_service_pb2.ApplyCalendarRequest(calendar=nearly_all(1))
        await api("ApplyCalendar", first)
        job = job_pb2.Job(
            name="by-calendar",
            cron=["* * * * * *"],
            exclude=job_pb2.Exclude(calendars=["nearly-all"]),
            shell=job_pb2.ShellAction(argv=["true"]),
        )
        await api("CreateJob", wire.CreateJobRequest(job=job))
    blocks = []
    for _ in range(3):  # another process may disturb one of them
        if call == "ResumeJob":
            await api("PauseJob", wire.PauseJobRequest(job="worst"))
        forget()
        longest[0] = 0.0
        try:
            await api(call, REQUESTS[call]())
        except LimitReachedError:
            pass  # past its budget: refused, as the next test says
        except CallError:
            if not blocks:
                raise
            break  # the call can be done only once
        blocks.append(longest[0])
    assert min(blocks) <= LONGEST_BLOCK


async def test_a_call_past_its_budget_is_refused_with_a_remedy(api: Any) -> None:
    await api("CreateJob", wire.CreateJobRequest(job=worst("worst")))
    with pytest.raises(LimitReachedError) as refused:
        await api("ListNextInstants", wire.ListNextInstantsRequest(job="worst", count=1000))
    assert "request fewer fire times" in refused.value.remedy
    few = await api("ListNextInstants", wire.ListNextInstantsRequest(job="worst", count=2))
    assert len(few.instants) == 2
