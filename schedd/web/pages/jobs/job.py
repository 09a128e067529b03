"""The page of a job: definition, calendar of results, next runs, explanation of a scheduled time.

/jobs/etl?at=2026-03-04T02:00    with `at`: the explanation of that scheduled time
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from schedd.web import formatting
from schedd.web.formatting import LOOKS, StateStyle, look_of, moment
from schedd.web.pages.jobs.jobs import newest_runs
from schedd.web.pages.page import Page, PageRequest, Shown, instant_of
from schedkit.clock import utcnow
from schedkit.protojson import to_json
from schedkit.records import dataclass
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2

# A calendar of results: the runs of a job by day, or by hour if there are too many for days.
#
#     days     a row a weekday, a column a week      hours     a row a day, a column an hour
#
# A cell has the color of its worst state, and a text with the count of each state. Pure.

WEEKS: Final = 16
DAYS: Final = 7
HOURS: Final = 24
LONG: Final = timedelta(days=3)
"""Runs within less time than this are shown by the hour."""

WORST_FIRST: Final = (
    *("FAILED", "MISSED", "RETRYING", "CANCELLED", "SUCCEEDED"),
    *("RUNNING", "SKIPPED", "COALESCED", "PENDING"),
)
_RANK: Final = {LOOKS[state].style: rank for rank, state in enumerate(WORST_FIRST)}


@dataclass(frozen=True, slots=True)
class Cell:
    """A day or an hour with runs: position, style, counts in words."""

    column: int
    row: int
    look: StateStyle
    text: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Almanac:
    by: str
    columns: int
    rows: int
    cells: tuple[Cell, ...]
    row_names: tuple[tuple[int, str], ...]
    column_names: tuple[tuple[int, str], ...]
    since: datetime | None
    """The oldest run that was read; None: all runs were read."""


def almanac(runs: Sequence[run_pb2.Run], now: datetime, *, more: bool) -> Almanac:
    """Return the calendar of runs, newest first; `more`: there are older runs. Pure."""
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
    counts: dict[datetime, Counter[StateStyle]] = {}
    for run in runs:
        at = formatting.instant(run.scheduled_at)
        start = at.replace(minute=0, second=0, microsecond=0) if by_hour else _day(at)
        counts.setdefault(start, Counter())[look_of(run.state)] += run.count or 1
    for start, looks in sorted(counts.items()):
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
"""Newest runs in the calendar."""
SHOWN_RUNS: Final = 12
NEXT: Final = 10
EVERY: Final = 2.0

BOOKKEEPING: Final = frozenset(
    (
        *("jobId", "generation", "etag", "definitionVersion", "calendarVersions", "nextRunAt"),
        *("paused", "pauseNote", "pausedUntil", "pausedBy"),
        *("createdAt", "updatedAt", "createdBy", "runsCreated"),
    )
)
"""Fields that the cluster sets: not part of the definition as written."""


async def _read(asked: PageRequest) -> Shown:
    name = asked.variables["job"]
    job = await asked.call(
        job_service_pb2.GetJobRequest(namespace=asked.namespace, job=name), job_pb2.Job
    )
    at = asked.query.get("at", "")
    async with asked.at_once() as all_:
        newest = all_.read("its runs", newest_runs(asked, job.job_id, RUNS_READ))
        coming = all_.call(
            job_service_pb2.ListNextInstantsRequest(
                namespace=asked.namespace, job=job.job_id, count=NEXT, excluded=True
            ),
            job_service_pb2.ListNextInstantsResponse,
        )
        answer = all_.read("a scheduled time", _explained(asked, job.job_id, at))
    runs = newest.result()
    seen = {
        "job": job,
        "facts": facts(job),
        "labels": [f"{key}:{value}" for key, value in sorted(job.labels.items())],
        "paused": paused(job),
        "next": tuple(coming.result().instants),
        "results": almanac(runs, utcnow(), more=len(runs) == RUNS_READ),
        "runs": tuple(runs[:SHOWN_RUNS]),
        "definition": definition(job),
        "asked_at": at,
        "answer": answer.result(),
    }
    return Shown(job.name, seen)


async def _explained(asked: PageRequest, job: str, at: str) -> str:
    if not at:
        return ""
    request = job_service_pb2.ExplainInstantRequest(namespace=asked.namespace, job=job)
    request.at.FromDatetime(instant_of(at, "at"))
    explained = await asked.call(request, job_service_pb2.ExplainInstantResponse)
    return explained.answer


def facts(job: job_pb2.Job) -> list[tuple[str, str]]:
    """Return the main properties of a job: names and values. Pure."""
    plain = _plain(job)
    retry = plain.get("retry", {})
    found = [
        ("Action", does(job)),
        ("Priority", str(plain.get("priority", "MEDIUM")).lower()),
        ("Overlap", str(plain.get("overlap", "SKIP")).lower().replace("_", " ")),
        ("Attempts", str(retry.get("maxAttempts") or 4)),
        ("Timeout", str(plain.get("timeout", "1h"))),
        ("Pool", job.pool),
        ("Runs after", ", ".join(job.after.jobs)),
        ("Created", f"{formatting.iso(formatting.instant(job.created_at))} by {job.created_by}"),
        ("Version", f"{job.generation}, of {formatting.iso(formatting.instant(job.updated_at))}"),
    ]
    return [(name, value) for name, value in found if value]


def does(job: job_pb2.Job) -> str:
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
    """Return that a job is paused, by whom, until when and why; empty if it isn't. Pure."""
    if not job.paused:
        return ""
    by = f" by {job.paused_by}" if job.paused_by else ""
    until = moment(job, "paused_until")
    text = f"paused{by}" + (f" until {formatting.iso(until)}" if until else "")
    return f"{text}: {job.pause_note}" if job.pause_note else text


def definition(job: job_pb2.Job) -> str:
    """Return the definition as written, in One JSON without empty fields. Pure."""
    return json.dumps(_plain(job), indent=2, ensure_ascii=False)


def _plain(job: job_pb2.Job) -> dict[str, Any]:
    fields = to_json(job)
    assert isinstance(fields, dict)
    kept = {key: value for key, value in fields.items() if key not in BOOKKEEPING}
    plain = _without_empty(kept)
    return plain if isinstance(plain, dict) else {}


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        said = {key: _without_empty(one) for key, one in value.items()}
        return {key: one for key, one in said.items() if one not in (None, "", 0, False, [], {})}
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    return value


PAGE: Final = Page("/jobs/{job}", "Jobs", "job", _read, asks=("at",), frame="job.html", every=EVERY)
