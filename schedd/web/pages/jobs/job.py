"""A job: its definition, a calendar of its results, what comes next, and why something didn't.

/jobs/etl?at=2026-03-04T02:00    with `at`: what became of that instant
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from schedd.web import formatting
from schedd.web.formatting import LOOKS, StateStyle
from schedd.web.pages.jobs.jobs import newest_runs
from schedd.web.pages.page import Page, PageRequest, Shown
from schedd.web.pages.rows import JobLine, RunLine, job_line, look_of, moment, run_line
from schedd.web.pages.typed_times import instant_of
from schedkit.clock import utcnow
from schedkit.protojson import to_json
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2

# A calendar of results: the runs of a job by day, or by hour where they are too many for days.
#
#     days     a row a weekday, a column a week      hours     a row a day, a column an hour
#
# A cell has the colour of the worst that happened in it, else of what ran, and says how many of
# each. Pure.

WEEKS: Final = 16
DAYS: Final = 7
HOURS: Final = 24
LONG: Final = timedelta(days=3)
"""Runs that reach back less far than this are shown by the hour."""

WORST_FIRST: Final = (
    "FAILED",
    "MISSED",
    "RETRYING",
    "CANCELLED",
    "SUCCEEDED",
    "RUNNING",
    "SKIPPED",
    "COALESCED",
    "PENDING",
)
_RANK: Final = {LOOKS[state].style: rank for rank, state in enumerate(WORST_FIRST)}


@dataclass(frozen=True, slots=True)
class Cell:
    """A day or an hour with runs: where it stands, how it looks, and what it holds in words."""

    column: int
    row: int
    look: StateStyle
    told: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Almanac:
    """The cells, and what stands beside the rows and above the columns, each with its number."""

    by: str
    columns: int
    rows: int
    cells: tuple[Cell, ...]
    row_names: tuple[tuple[int, str], ...]
    column_names: tuple[tuple[int, str], ...]
    since: datetime | None
    """The oldest run that was read; None: there may be no older one."""


def almanac(runs: Sequence[run_pb2.Run], now: datetime, *, more: bool) -> Almanac:
    """The calendar of runs, newest first; `more`: there are older ones. Pure."""
    oldest = formatting.instant(runs[-1].scheduled_at) if runs else now
    today = _day(now)
    since = oldest if more else None
    if more and now - oldest < LONG:
        first = today - timedelta(days=DAYS - 1)
        names = [(row, f"{first + timedelta(days=row):%a %d}") for row in range(DAYS)]
        hours = [(hour, f"{hour:02}") for hour in range(0, HOURS, 6)]
        cells = tuple(_cells(runs, timedelta(hours=1), first, by_hour=True))
        return Almanac("hour", HOURS, DAYS, cells, tuple(names), tuple(hours), since)
    monday = today - timedelta(days=today.weekday(), weeks=WEEKS - 1)
    cells = tuple(_cells(runs, timedelta(days=1), monday, by_hour=False))
    weeks = [(week, monday + timedelta(weeks=week)) for week in range(WEEKS)]
    months = [(week, f"{at:%b}") for week, at in weeks if at.day <= DAYS or week == 0]
    if len(months) > 1 and months[1][0] < 2:
        months = months[1:]
    days = ((0, "Mon"), (2, "Wed"), (4, "Fri"), (6, "Sun"))
    return Almanac("day", WEEKS, DAYS, cells, days, tuple(months), since)


def _cells(
    runs: Iterable[run_pb2.Run], size: timedelta, first: datetime, *, by_hour: bool
) -> Iterable[Cell]:
    held: dict[datetime, Counter[StateStyle]] = {}
    for run in runs:
        at = formatting.instant(run.scheduled_at)
        start = at.replace(minute=0, second=0, microsecond=0) if by_hour else _day(at)
        held.setdefault(start, Counter())[look_of(run.state)] += run.count or 1
    for start, looks in sorted(held.items()):
        if start < first:
            continue
        days = (_day(start) - first).days
        row, column = (days, start.hour) if by_hour else (days % DAYS, days // DAYS)
        worst = min(looks, key=lambda look: _RANK[look.style])
        many = ", ".join(f"{count:,} {look.word}" for look, count in looks.most_common())
        when = f"{start:%a %d %b %H}:00" if by_hour else f"{start:%a %d %b}"
        yield Cell(column, row, worst, f"{when}: {many}", start, start + size)


def _day(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


RUNS_READ: Final = 500
"""The newest runs that the calendar is made of."""
SHOWN_RUNS: Final = 12
NEXT: Final = 10
EVERY: Final = 2.0

Next = job_service_pb2.ListNextInstantsResponse.Instant

BOOKKEEPING: Final = frozenset(
    {
        "jobId",
        "generation",
        "etag",
        "cronDialect",
        "calendarVersions",
        "paused",
        "pauseNote",
        "pausedUntil",
        "pausedBy",
        "nextRunAt",
        "createdAt",
        "updatedAt",
        "createdBy",
        "runsMade",
    }
)
"""Fields that the cluster sets: not part of what a person wrote."""


@dataclass(frozen=True, slots=True)
class Coming:
    """An instant to come; `excluded_by`: it won't run, for this."""

    at: datetime
    excluded_by: str


@dataclass(frozen=True, slots=True)
class JobSeen:
    """All that the page shows of a job."""

    line: JobLine
    facts: tuple[tuple[str, str], ...]
    labels: tuple[str, ...]
    paused: str
    next: tuple[Coming, ...]
    results: Almanac
    runs: tuple[RunLine, ...]
    definition: str
    asked_at: str
    answer: str


async def _read(asked: PageRequest) -> Shown:
    name = asked.variables["job"]
    job = await asked.call(
        "JobService.GetJob",
        job_service_pb2.GetJobRequest(namespace=asked.namespace, job=name),
        job_pb2.Job,
    )
    at = asked.query.get("at", "")
    async with asked.at_once() as all_:
        newest = all_.read("its runs", newest_runs(asked, job.job_id, RUNS_READ))
        coming = all_.call(
            "JobService.ListNextInstants",
            job_service_pb2.ListNextInstantsRequest(
                namespace=asked.namespace, job=job.job_id, count=NEXT, excluded=True
            ),
            job_service_pb2.ListNextInstantsResponse,
        )
        answer = all_.read("an instant", _explained(asked, job.job_id, at))
    runs = newest.result()
    seen = JobSeen(
        line=job_line(job),
        facts=tuple(facts(job)),
        labels=tuple(f"{key}:{value}" for key, value in sorted(job.labels.items())),
        paused=paused(job),
        next=tuple(
            Coming(formatting.instant(one.scheduled_at), one.excluded_by)
            for one in coming.result().instants
        ),
        results=almanac(runs, utcnow(), more=len(runs) == RUNS_READ),
        runs=tuple(run_line(run) for run in runs[:SHOWN_RUNS]),
        definition=definition(job),
        asked_at=at,
        answer=answer.result(),
    )
    return Shown(job.name, seen)


async def _explained(asked: PageRequest, job: str, at: str) -> str:
    """What became of an instant, if one is asked for."""
    if not at:
        return ""
    request = job_service_pb2.ExplainInstantRequest(namespace=asked.namespace, job=job)
    request.at.FromDatetime(instant_of(at, "at"))
    told = await asked.call(
        "JobService.ExplainInstant", request, job_service_pb2.ExplainInstantResponse
    )
    return told.answer


def facts(job: job_pb2.Job) -> list[tuple[str, str]]:
    """What a person asks first of a job: names and values. Pure."""
    told = _plain(job)
    retry = told.get("retry", {})
    found = [
        ("Does", does(job)),
        ("Priority", str(told.get("priority", "MEDIUM")).lower()),
        ("Overlap", str(told.get("overlap", "SKIP")).lower().replace("_", " ")),
        ("Attempts", str(retry.get("maxAttempts") or 4)),
        ("Timeout", str(told.get("timeout", "1h"))),
        ("Pool", job.pool),
        ("Runs after", ", ".join(job.after.jobs)),
        ("Made", f"{formatting.iso(formatting.instant(job.created_at))} by {job.created_by}"),
        ("Version", f"{job.generation}, of {formatting.iso(formatting.instant(job.updated_at))}"),
    ]
    return [(name, value) for name, value in found if value]


def does(job: job_pb2.Job) -> str:
    """What a job does, in a line. Pure."""
    match job.WhichOneof("action"):
        case "shell":
            return " ".join(job.shell.argv) or "a script"
        case "http":
            return f"{job.http.method or 'POST'} {job.http.url}"
        case "grpc":
            return f"gRPC to {job.grpc.endpoint}"
        case "python":
            return f"the handler {job.python.handler}"
        case "plugin":
            return f"the plug-in {job.plugin.executor}"
    return ""


def paused(job: job_pb2.Job) -> str:
    """That it is paused, by whom, until when and why; empty if it isn't. Pure."""
    if not job.paused:
        return ""
    by = f" by {job.paused_by}" if job.paused_by else ""
    until = moment(job, "paused_until")
    told = f"paused{by}" + (f" until {formatting.iso(until)}" if until else "")
    return f"{told}: {job.pause_note}" if job.pause_note else told


def definition(job: job_pb2.Job) -> str:
    """What a person wrote, as One JSON without what wasn't said. Pure."""
    return json.dumps(_plain(job), indent=2, ensure_ascii=False)


def _plain(job: job_pb2.Job) -> dict[str, Any]:
    told = to_json(job)
    assert isinstance(told, dict)
    kept = {key: value for key, value in told.items() if key not in BOOKKEEPING}
    plain = _said(kept)
    return plain if isinstance(plain, dict) else {}


def _said(value: Any) -> Any:
    """Without keys that say nothing."""
    if isinstance(value, dict):
        said = {key: _said(one) for key, one in value.items()}
        return {key: one for key, one in said.items() if one not in (None, "", 0, False, [], {})}
    if isinstance(value, list):
        return [_said(one) for one in value]
    return value


PAGE: Final = Page("/jobs/{job}", "Jobs", "job", _read, asks=("at",), frame="job.html", every=EVERY)
