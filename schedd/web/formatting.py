"""Format values for pages: states, times, durations, schedules. Pure."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core.runs.lifecycle import State
from schedd.core.schedule.cron import describe
from schedd.core.schedule.cron.errors import ScheduleError
from schedkit.records import dataclass
from schedkit.text import duration
from schedproto.v1 import common_pb2, job_pb2, run_pb2


@dataclass(frozen=True, slots=True)
class StateStyle:
    """A state on every page: its word, and the name of its symbol and color."""

    word: str
    style: str


LOOKS: Final[dict[str, StateStyle]] = {
    state.value: StateStyle(word, state.value.lower())
    for state, word in {
        State.PENDING: "waiting",
        State.RUNNING: "running",
        State.RETRYING: "retrying",
        State.SUCCEEDED: "succeeded",
        State.FAILED: "failed",
        State.CANCELLED: "cancelled",
        State.SKIPPED: "skipped",
        State.MISSED: "missed",
        State.COALESCED: "coalesced",
    }.items()
}
"""State → its style on all pages."""


def instant(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)


def iso(at: datetime | Timestamp) -> str:
    """Return the time in RFC 3339 with milliseconds."""
    at = at if isinstance(at, datetime) else instant(at)
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(at: datetime, now: datetime) -> str:
    """Return the time of day in UTC, with the date if it isn't the day of `now`."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    if at.date() == now.date():
        return at.strftime("%H:%M:%S")
    if abs(at.date() - now.date()) < timedelta(days=180):
        return at.strftime("%d %b %H:%M")
    return at.strftime("%d %b %Y")


def data_age(at: datetime, now: datetime) -> str:
    """Return when old data was read, and its age in whole minutes: `14:03:22 UTC, 9 min ago`."""
    minutes = timedelta(minutes=(now - at) // timedelta(minutes=1))
    age = f"{span(minutes)} ago" if minutes else "less than a minute ago"
    return f"{clock(at, now)} UTC, {age}"


def span(length: timedelta) -> str:
    """Return a duration in two units at most: `12 ms`, `3.4 s`, `2 min 5 s`, `3 h 20 min`, `4 d 2
    h`.
    """
    seconds = max(0.0, length.total_seconds())
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, name in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def schedule(job: job_pb2.Job) -> str:
    if job.cron:
        seed = f"{job.namespace}/{job.name}"
        words = " and ".join(_cron(expression, seed) for expression in job.cron)
        return f"{words}, {job.time_zone}" if job.time_zone not in ("", "UTC") else words
    if job.HasField("every"):
        aligned = f" from {job.anchor} {job.time_zone}" if job.anchor else ""
        return f"every {duration.render(job.every.ToTimedelta())}{aligned}"
    if job.HasField("at"):
        return "once"
    return "on demand"


@lru_cache(maxsize=4096)
def _cron(expression: str, seed: str) -> str:
    try:
        return describe(expression, seed)
    except ScheduleError:  # stored by a later version with a larger dialect
        return expression


def look_of(state: int) -> StateStyle:
    name = common_pb2.RunState.Name(common_pb2.RunState.ValueType(state))
    return LOOKS[name.removeprefix("RUN_STATE_")]


def reason(of: run_pb2.Run | run_pb2.Attempt | run_pb2.DeadLetterGroup) -> str:
    """Return the reason of a run in words; empty without one."""
    if not of.reason:
        return ""
    word = common_pb2.Reason.Name(of.reason).removeprefix("REASON_").lower().replace("_", " ")
    return f"exit {of.exit_code}" if word == "exit code" and of.exit_code else word


def took(run: run_pb2.Run) -> timedelta | None:
    """Return the duration of the last attempt; None if it hasn't ended, or never started."""
    started, finished = moment(run, "started_at"), moment(run, "finished_at")
    return finished - started if started and finished else None


def lateness(run: run_pb2.Run) -> timedelta | None:
    """Return the lateness of the first start; None if it hasn't started."""
    if not run.HasField("lateness_ms"):
        return None
    return timedelta(milliseconds=run.lateness_ms)


def moment(message: object, field: str) -> datetime | None:
    stamp: Timestamp = getattr(message, field)
    return instant(stamp) if stamp.seconds or stamp.nanos else None
