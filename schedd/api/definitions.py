"""From the wire's `Job` to the `Definition` that decisions stand on.

A stored definition is the serialised `Job` with only what a person set; defaults are filled in
here, at each reading, so that there is one place that knows them. What was stored is trusted: it
was checked first (`validation`).
"""

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core import schedule
from schedd.core.cron import DIALECT, CronError, Dst, Gap, Pass
from schedd.core.ids import JobId
from schedd.core.model import (
    CatchUp,
    CatchUpPolicy,
    Definition,
    Delivery,
    Overlap,
    Priority,
    RetryPolicy,
)
from schedd.core.schedule import (
    AtSchedule,
    Bounds,
    CompiledSchedule,
    CronSchedule,
    EverySchedule,
    OnDemand,
    Schedule,
)
from schedproto.v1 import job_pb2

SET_BY_CLUSTER = (
    "job_id",
    "generation",
    "etag",
    "paused_by",
    "next_run_at",
    "created_at",
    "updated_at",
    "created_by",
    "cron_dialect",
    "runs_made",
)
"""Fields that people read and never write; what they write in them is never stored."""

OF_INSTANTS = ("start", "end", "jitter", "catch_up")
"""Fields that say something of a schedule's instants; `on_demand` has none."""

LEVEL = 2
"""Of definitions. Members that know less leave a job alone whose definition needs it."""

SINCE_LEVEL_2 = ("max_runs", "pause_after_failures")
"""What an owner of level 1 would pass over in silence."""

STANDING = ("paused", "pause_note", "paused_until")
"""How a job stands; kept beside the definition."""


def instant(stamp: Timestamp) -> datetime:
    """A wire instant as an aware datetime."""
    return stamp.ToDatetime(tzinfo=UTC)


def seconds(duration: Duration) -> timedelta:
    """A wire duration as a timedelta."""
    return duration.ToTimedelta()


def overlap_of(policy: job_pb2.Overlap.ValueType) -> Overlap | None:
    """A policy on the wire; None: none was given."""
    word = job_pb2.Overlap.Name(policy).removeprefix("OVERLAP_")
    return None if word == "UNSPECIFIED" else Overlap(word)


def spec_of(job: job_pb2.Job) -> job_pb2.Job:
    """What is stored of a job: what a person set, without name and standing, and the dialect that
    its expressions are read by.
    """
    spec = job_pb2.Job()
    spec.CopyFrom(job)
    plain: Message = spec
    for field in (*SET_BY_CLUSTER, *STANDING, "namespace", "name"):
        plain.ClearField(field)
    spec.cron_dialect = max(DIALECT if spec.cron else 0, _level(spec))
    return spec


def _level(spec: job_pb2.Job) -> int:
    """The least version of definitions that knows all that this one says."""
    plain: Message = spec
    return LEVEL if any(getattr(plain, field) for field in SINCE_LEVEL_2) else 0


def keep_dialect(old: job_pb2.Job, new: job_pb2.Job) -> None:
    """Leave the dialect of a spec as it was: an edit of other things doesn't write `cron` anew."""
    new.cron_dialect = max(old.cron_dialect, _level(new))


def check_dialect(spec: job_pb2.Job) -> None:
    """Raises CronError for a definition of a later version: its instants would only be guessed."""
    if spec.cron_dialect > LEVEL:
        problem = f"was stored by version {spec.cron_dialect} of definitions"
        raise CronError("cron", problem, f"this version knows {LEVEL}: upgrade it")


def definition_of(
    spec: job_pb2.Job, job_id: JobId, generation: int, namespace: str, name: str
) -> Definition:
    """Read a stored definition; the spec was checked when it was stored."""
    action = spec.WhichOneof("action") or ""
    return Definition(
        job_id=job_id,
        generation=generation,
        namespace=namespace,
        name=name,
        schedule=_schedule(spec),
        bounds=Bounds(
            start=instant(spec.start) if spec.HasField("start") else None,
            end=instant(spec.end) if spec.HasField("end") else None,
            jitter=seconds(spec.jitter),
        ),
        catch_up=CatchUp(
            CatchUpPolicy(
                _word(job_pb2.CatchUp.Policy.Name(spec.catch_up.policy), "POLICY_", "LATEST")
            ),
            _or(spec.catch_up.window, timedelta(hours=1)),
        ),
        max_runs=spec.max_runs,
        pause_after_failures=spec.pause_after_failures,
        overlap=overlap_of(spec.overlap) or Overlap.SKIP,
        overlap_limit=spec.overlap_limit,
        priority=Priority(spec.priority or Priority.MEDIUM),
        retry=_retry(spec.retry),
        delivery=Delivery(
            _word(job_pb2.Delivery.Name(spec.delivery), "DELIVERY_", "AT_LEAST_ONCE")
        ),
        timeout=_or(spec.timeout, timedelta(hours=1)),
        kill_after=_or(spec.kill_after, timedelta(seconds=10)),
        kills_on_lease_lost=spec.on_lease_lost == job_pb2.ON_LEASE_LOST_KILL,
        slots=spec.slots or 1,
        action=action,
        handler=spec.python.handler if action == "python" else "",
    )


def compiled(definition: Definition) -> CompiledSchedule:
    """The definition's schedule, ready to give instants. Raises ScheduleError for a wrong one."""
    seed = f"{definition.namespace}/{definition.name}"
    return schedule.compile(definition.schedule, seed, definition.job_id, definition.bounds)


def _schedule(spec: job_pb2.Job) -> Schedule:
    if spec.cron:
        return CronSchedule(
            expressions=tuple(spec.cron),
            zone=spec.time_zone or "UTC",
            dst=Dst(
                gap=Gap(_word(job_pb2.DstPolicy.Gap.Name(spec.dst.gap), "GAP_", "RUN_AFTER")),
                overlap=Pass(
                    _word(job_pb2.DstPolicy.Repeated.Name(spec.dst.overlap), "REPEATED_", "FIRST")
                ),
            ),
        )
    if spec.HasField("every"):
        return EverySchedule(interval=seconds(spec.every), phase=seconds(spec.phase))
    if spec.HasField("at"):
        return AtSchedule(instant(spec.at))
    return OnDemand()


def _retry(policy: job_pb2.RetryPolicy) -> RetryPolicy:
    plain = RetryPolicy()
    return RetryPolicy(
        max_attempts=policy.max_attempts or plain.max_attempts,
        backoff=seconds(policy.backoff) if policy.HasField("backoff") else plain.backoff,
        factor=policy.factor if policy.HasField("factor") else plain.factor,
        maximum=seconds(policy.max) if policy.HasField("max") else plain.maximum,
        jitter=policy.jitter if policy.HasField("jitter") else plain.jitter,
    )


def _or(duration: Duration, default: timedelta) -> timedelta:
    """The duration if one was given: zero means none in each place where this is used."""
    return seconds(duration) or default


def _word(name: str, prefix: str, default: str) -> str:
    """An enum's value without its prefix; UNSPECIFIED is the default."""
    word = name.removeprefix(prefix)
    return default if word == "UNSPECIFIED" else word
