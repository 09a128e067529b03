"""Turn runs and jobs into rows for all pages. Pure."""

from datetime import datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.web import formatting
from schedd.web.formatting import LOOKS, StateStyle
from schedkit.records import dataclass
from schedproto.v1 import common_pb2, job_pb2, run_pb2


@dataclass(frozen=True, slots=True)
class RunLine:
    run_id: str
    job: str
    look: StateStyle
    reason: str
    at: datetime
    lateness: timedelta | None
    started: datetime | None
    took: timedelta | None
    attempt: int
    worker: str
    retry_at: datetime | None
    count: int


@dataclass(frozen=True, slots=True)
class JobLine:
    name: str
    schedule: str
    expression: str
    next_at: datetime | None
    paused: bool


def run_line(run: run_pb2.Run) -> RunLine:
    started, finished = moment(run, "started_at"), moment(run, "finished_at")
    return RunLine(
        run_id=run.run_id,
        job=run.job,
        look=look_of(run.state),
        reason=reason(run.reason, run.exit_code),
        at=formatting.instant(run.due_at),
        lateness=lateness(run),
        started=started,
        took=finished - started if started and finished else None,
        attempt=run.attempt,
        worker=run.worker,
        retry_at=moment(run, "retry_at"),
        count=run.count,
    )


def job_line(job: job_pb2.Job) -> JobLine:
    return JobLine(
        name=job.name,
        schedule=formatting.schedule(job),
        expression=formatting.expression(job),
        next_at=moment(job, "next_run_at"),
        paused=job.paused,
    )


def look_of(state: int) -> StateStyle:
    name = common_pb2.RunState.Name(common_pb2.RunState.ValueType(state))
    return LOOKS[name.removeprefix("RUN_STATE_")]


def reason(of: int, exit_code: int) -> str:
    """Return the reason of a run in words; empty without one."""
    if not of:
        return ""
    name = common_pb2.Reason.Name(common_pb2.Reason.ValueType(of))
    word = name.removeprefix("REASON_").lower().replace("_", " ")
    return f"exit {exit_code}" if word == "exit code" and exit_code else word


def lateness(run: run_pb2.Run) -> timedelta | None:
    """Return the lateness of the first start; None if it hasn't started."""
    if not run.HasField("lateness_ms"):
        return None
    return timedelta(milliseconds=run.lateness_ms)


def moment(message: object, field: str) -> datetime | None:
    """Return a timestamp of a message; None if it isn't set."""
    stamp: Timestamp = getattr(message, field)
    return formatting.instant(stamp) if stamp.seconds or stamp.nanos else None
