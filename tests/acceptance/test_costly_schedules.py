"""The costliest schedules in each call of a member: its event loop and other jobs stay in time.

Blocks are read from the member's own metrics. `schedd_event_loop_longest_own_block_seconds` is the
part of the longest block in which the member itself computed, in any thread. A machine that is busy
with other processes changes it little: its bound is scaled by 2 at most.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from schedclient import SyncClient
from schedproto.v1 import calendar_service_pb2 as calendars
from schedproto.v1 import calendar_service_pb2_grpc, job_pb2, job_service_pb2_grpc
from schedproto.v1 import job_service_pb2 as wire
from support.cluster import DevCluster, dev_cluster
from support.costly_schedules import one_second_a_year, worst
from support.wait import wait_until

LONGEST_BLOCK = 0.1
"""Seconds of the member's own work, where no more processes run than there are processors."""
LATEST = 1.0
"""Seconds between the scheduled time and the start of a run of another job."""
WINDOW = 150.0
"""Seconds until the metric has forgotten how long the start of the member blocked the loop."""
MANY = 12
"""Costly jobs."""


@pytest.fixture(scope="module")
def single(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    with dev_cluster(request.session, members=1, workers=1, slots=8) as cluster:
        yield cluster


def longest_block(cluster: DevCluster, kind: str = "own_block") -> float:
    answer = cluster.get("m1", "/metrics")
    assert answer is not None
    name = f"schedd_event_loop_longest_{kind}_seconds "
    lines = answer.body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])


def stamp(at: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(at)
    return found


def by_calendar(name: str, calendar: str, cron: str = "* * * * * *") -> job_pb2.Job:
    return job_pb2.Job(
        name=name,
        cron=[cron],
        exclude=job_pb2.Exclude(calendars=[calendar]),
        shell=job_pb2.ShellAction(argv=["true"]),
    )


def of_many_lines(name: str) -> job_pb2.Job:
    """Return a job of as many cron and exclude lines as a job may have."""
    job = worst(name, 70)
    job.exclude.cron[:] = [f"{number % 60} * 3 {number % 28 + 1} * *" for number in range(100)]
    job.cron[:] = [f"{second % 60} {second // 60} 3 * * *" for second in range(100)]
    return job


def with_an_end(name: str) -> job_pb2.Job:
    job = worst(name, 71)
    job.max_runs = 1_000_000
    job.end.CopyFrom(stamp(datetime(2199, 1, 1, tzinfo=UTC)))
    job.jitter.FromTimedelta(timedelta(seconds=30))
    return job


def http(cluster: DevCluster, path: str, body: bytes | None = None) -> int:
    """Return the status of a page or REST call."""
    address = f"http://{cluster.entry('m1')['http']}{path}"
    sent = urllib.request.Request(address, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(sent, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as rejected:
        return rejected.code


def costly_calls(cluster: DevCluster, channel: grpc.Channel) -> dict[str, Callable[[], Any]]:
    """Return each costly call by name, in the order in which they are made."""
    jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)  # type: ignore[no-untyped-call]
    others: Any = calendar_service_pb2_grpc.CalendarServiceStub(channel)  # type: ignore[no-untyped-call]

    def create(job: job_pb2.Job) -> Callable[[], Any]:
        return lambda: jobs.CreateJob(wire.CreateJobRequest(job=job))

    def create_all(made: list[job_pb2.Job]) -> Callable[[], Any]:
        requests = [wire.CreateJobRequest(job=job) for job in made]
        return lambda: jobs.BatchCreateJobs(wire.BatchCreateJobsRequest(requests=requests))

    def apply(calendar: calendars.Calendar) -> Callable[[], Any]:
        request = calendars.ApplyCalendarRequest(calendar=calendar)
        return lambda: others.ApplyCalendar(request)

    def update(seed: int) -> Callable[[], Any]:
        mask = FieldMask(paths=["exclude"])
        request = wire.UpdateJobRequest(job=worst("worst", seed), update_mask=mask)
        return lambda: jobs.UpdateJob(request)

    def backfill(job: str, first: datetime, last: datetime) -> Callable[[], Any]:
        request = wire.BackfillJobRequest(job=job, to=stamp(last), dry_run=True)
        getattr(request, "from").CopyFrom(stamp(first))
        return lambda: jobs.BackfillJob(request)

    def get(path: str) -> Callable[[], Any]:
        return lambda: http(cluster, path)

    def post(body: bytes) -> Callable[[], Any]:
        return lambda: http(cluster, "/api/v1/jobs", body)

    year = datetime(2015, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    in_a_month = stamp(datetime.now(UTC) + timedelta(days=30, microseconds=5))
    dates = [(date(2020, 1, 1) + timedelta(days=2 * number)).isoformat() for number in range(5_000)]
    cron = [f'"{number % 60} * * * *"' for number in range(100_000)]
    labels = [f'"k{number}":"v"' for number in range(130_000)]
    using = [by_calendar(f"u{n}", "nearly-all", f"{n} * * * * *") for n in range(MANY)]
    return {
        "create": create(worst("worst")),
        "create many": create_all([worst(f"m{seed}", seed) for seed in range(100, 100 + MANY)]),
        "create with many lines": create(of_many_lines("lines")),
        "create with an end": create(with_an_end("ends")),
        "apply": apply(calendars.Calendar(name="nearly-all", cron=one_second_a_year(50))),
        "create by calendar": create_all(using),
        "apply again": apply(calendars.Calendar(name="nearly-all", cron=one_second_a_year(51))),
        "apply dates": apply(calendars.Calendar(name="dates", dates=dates)),
        "create by dates": create(by_calendar("dated", "dates")),
        "list": get("/api/v1/jobs?pageSize=300"),
        "list by a long filter": get("/api/v1/jobs?filter=" + "name:a+" * 5_000 + "name:a"),
        "page of jobs": get("/jobs"),
        "page of a job": get("/jobs/worst"),
        "next": get("/api/v1/jobs/worst/next?count=1000"),
        "next, excluded too": get("/api/v1/jobs/worst/next?count=1000&excluded=true"),
        "next of many lines": get("/api/v1/jobs/lines/next?count=1000"),
        "explain": lambda: jobs.ExplainInstant(
            wire.ExplainInstantRequest(job="worst", at=in_a_month)
        ),
        "explain cron": lambda: jobs.ExplainCron(
            wire.ExplainCronRequest(
                expression="59 59 23 29 2 MON#5", time_zone="Europe/Berlin", count=1000
            )
        ),
        "update": update(60),
        "pause": lambda: jobs.PauseJob(wire.PauseJobRequest(job="worst")),
        "update while paused": update(61),
        "resume": lambda: jobs.ResumeJob(wire.ResumeJobRequest(job="worst")),
        "trigger": lambda: jobs.TriggerJob(wire.TriggerJobRequest(job="worst")),
        "backfill": backfill("worst", *year),
        "backfill of many lines": backfill("lines", *year),
        "forecast": get("/forecast"),
        "overview": get("/"),
        "deep JSON": post(b'{"a":' * 40_000 + b"1" + b"}" * 40_000),
        "wide JSON": post(f'{{"labels":{{{",".join(labels)}}}}}'.encode()),
        "many lines": post(f'{{"name":"w","cron":[{",".join(cron)}]}}'.encode()),
        "delete": lambda: jobs.DeleteJob(wire.DeleteJobRequest(job="worst")),
    }


REJECTED = {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", 400, 429}


@pytest.mark.timeout(400)
def test_the_costliest_schedules_block_neither_the_event_loop_nor_other_jobs(
    single: DevCluster,
) -> None:
    with (
        SyncClient(single.endpoints) as client,
        grpc.insecure_channel(single.endpoints[0]) as channel,
    ):
        client.jobs.create("tick", cron="* * * * * *", shell={"argv": ["true"]})
        wait_until(
            lambda: longest_block(single) < LONGEST_BLOCK / 2, WINDOW, "the start is forgotten"
        )
        began, codes, blocks = datetime.now(UTC), dict[str, Any](), dict[str, float]()
        for name, call in costly_calls(single, channel).items():
            try:
                answer = call()
                codes[name] = answer if isinstance(answer, int) else "OK"
            except grpc.RpcError as rejected:
                codes[name] = rejected.code().name  # type: ignore[attr-defined]
            blocks[name] = longest_block(single)
        ended = datetime.now(UTC)
        crowding = min(2.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        wall = longest_block(single, "block")
        runs = [
            run
            for run in client.runs.list(job="tick")
            if run.scheduled_at and began <= run.scheduled_at <= ended
        ]
    late = [
        (run.started_at - run.scheduled_at).total_seconds()
        for run in runs
        if run.started_at and run.scheduled_at
    ]
    print(f"{blocks}; wall {wall:.3f} s; {codes}; late by at most {max(late):.3f} s")
    assert set(codes.values()) <= {"OK", 200, *REJECTED}
    assert sum(code in {"OK", 200} for code in codes.values()) >= 20
    assert max(blocks.values()) <= LONGEST_BLOCK * crowding
    assert len(late) >= (ended - began).total_seconds() - 3
    assert max(late) < LATEST
