"""From the wire's `Job` to the `Definition` that decisions stand on, with every check on the way.

A stored definition is the serialised `Job` with only what a person set; defaults are filled in
here, at each reading, so that there is one place that knows them. `check` collects all problems
of a job at once; `definition_of` trusts what was stored.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api import actions
from schedd.api.errors import InvalidArgument, Violation
from schedd.api.unbuilt import refuse_unbuilt
from schedd.core import schedule, zones
from schedd.core.cron import CronError, Dst, Gap, Pass, ScheduleError
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
from schedkit.jsonform import standard
from schedproto.v1 import common_pb2, job_pb2

MAX_PAYLOAD = 256 * 1024
MAX_JOB = 1024 * 1024
"""Bytes of a whole definition: an assignment that carries it must fit into one frame."""
MAX_EXPRESSIONS = 100
"""Of one job: their union is reckoned whenever it fires."""
_NO_ID = UUID(int=0)

LATE_AT = timedelta(seconds=60)
"""An `at` further past than this is refused; one less past fires at once."""

NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")

SET_BY_CLUSTER = (
    "job_id",
    "generation",
    "etag",
    "paused_by",
    "next_run_at",
    "created_at",
    "updated_at",
    "created_by",
)
"""Fields that people read and never write; they are no part of a stored definition."""

OF_INSTANTS = ("start", "end", "jitter", "catch_up")
"""Fields that say something of a schedule's instants; `on_demand` has none."""

STANDING = ("paused", "pause_note", "paused_until")
"""How a job stands; kept beside the definition."""


def instant(stamp: Timestamp) -> datetime:
    """A wire instant as an aware datetime."""
    return stamp.ToDatetime(tzinfo=UTC)


def seconds(duration: Duration) -> timedelta:
    """A wire duration as a timedelta."""
    return duration.ToTimedelta()


def spec_of(job: job_pb2.Job) -> job_pb2.Job:
    """What is stored of a job: what a person set, without name and standing."""
    spec = job_pb2.Job()
    spec.CopyFrom(job)
    plain: Message = spec
    for field in (*SET_BY_CLUSTER, *STANDING, "namespace", "name"):
        plain.ClearField(field)
    return spec


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
        overlap=Overlap(_word(job_pb2.Overlap.Name(spec.overlap), "OVERLAP_", "SKIP")),
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


def check(
    job: job_pb2.Job, now: datetime, *, scheduled: bool = True, known: Sequence[Violation] = ()
) -> None:
    """Raise InvalidArgument with all that is wrong with a job, or Unbuilt.

    `scheduled=False` is for one-time work: it has no name of its own and no schedule. What is
    `known` to be wrong is borne with.
    """
    refuse_unbuilt(job)
    violations = [each for each in faults(job, now, scheduled=scheduled) if each not in known]
    if violations:
        first = violations[0]
        raise InvalidArgument(
            f"{first.field}: {first.problem}"
            + (f" (and {len(violations) - 1} more)" * (len(violations) > 1)),
            reason="INVALID_JOB",
            remedy="mend the field and send it again; nothing was stored",
            violations=violations,
        )


def check_name(name: str, field: str = "name") -> Iterator[Violation]:
    """What is wrong with a name."""
    if not name:
        yield Violation(field, "is missing")
    elif not NAME.fullmatch(name):
        yield Violation(
            field,
            f"{name[:140]!r} isn't a name: at most 128 lower-case letters, digits, '.', '_', '-',"
            " beginning and ending with a letter or digit",
        )
    elif _is_id(name):
        yield Violation(field, "a name may not look like an id (UUID)")


def _is_id(name: str) -> bool:
    """Whether a call that is given an id or a name would take this for an id."""
    try:
        UUID(name)
    except ValueError:
        return False
    return True


def payload_violations(payload: common_pb2.Payload, field: str = "payload") -> Iterator[Violation]:
    """What is wrong with a payload: too large, or JSON that nobody can read."""
    size = len(payload.json.encode()) + len(payload.raw)
    if size > MAX_PAYLOAD:
        yield Violation(field, f"has {size:,} bytes, at most {MAX_PAYLOAD:,} are allowed")
    elif payload.json:
        try:
            standard.loads(payload.json)
        except standard.TooDeep as deep:
            yield Violation(field, str(deep))
        except ValueError as wrong:
            yield Violation(field, f"isn't JSON: {wrong}")


def faults(job: job_pb2.Job, now: datetime, *, scheduled: bool) -> Iterator[Violation]:
    """All that is wrong with a job; `scheduled`: its name and its schedule are looked at, too."""
    if scheduled:
        yield from check_name(job.name)
        yield from _schedule_violations(job, now)
    elif job.name:
        yield from check_name(job.name)
    for key in job.labels:
        if not _LABEL.fullmatch(key):
            yield Violation(
                "labels", f"{key[:140]!r} isn't a key: letters, digits, '.', '_', '-', '/'"
            )
    yield from actions.violations(job)
    payload = list(payload_violations(job.payload))
    yield from payload
    yield from payload_violations(job.http.json, "http.json")
    if not payload and job.ByteSize() > MAX_JOB:
        problem = f"the whole job has {job.ByteSize():,} bytes, at most {MAX_JOB:,} are allowed"
        yield Violation(job.WhichOneof("action") or "action", problem)
    yield from _number_violations(job)


def _schedule_violations(job: job_pb2.Job, now: datetime) -> Iterator[Violation]:
    given = [
        name
        for name, there in (
            ("cron", bool(job.cron)),
            ("every", job.HasField("every")),
            ("at", job.HasField("at")),
            ("on_demand", job.on_demand),
        )
        if there
    ]
    if len(given) != 1:
        said = " and ".join(given) if given else "none"
        yield Violation("schedule", f"give exactly one of cron, every, at, on_demand; got {said}")
        return
    if len(job.cron) > MAX_EXPRESSIONS:
        problem = f"{len(job.cron):,} expressions, at most {MAX_EXPRESSIONS} are allowed"
        yield Violation("cron", problem)
        return
    for expression in job.cron:
        if not expression.replace("\t", " ").isprintable():
            yield Violation("cron", f"{expression[:100]!r} holds a line break or the like")
            return
    if job.HasField("every") and seconds(job.every) < timedelta(seconds=1):
        yield Violation("every", "must be at least 1s")
        return
    if job.HasField("phase") and not job.HasField("every"):
        yield Violation("phase", "goes with every alone")
    if job.HasField("at") and instant(job.at) < now - LATE_AT:
        yield Violation("at", "is more than 60 s past")
    if job.time_zone and not job.cron:
        try:
            zones.zone(job.time_zone)
        except zones.UnknownZone as unknown:
            hint = f", did you mean {unknown.suggestion!r}?" if unknown.suggestion else ""
            yield Violation("time_zone", f"{unknown}{hint}")
    if job.on_demand:
        plain: Message = job
        for field in OF_INSTANTS:
            if plain.HasField(field):
                yield Violation(field, "means nothing with on_demand: triggers start it any time")
        return
    if job.HasField("start") and job.HasField("end") and instant(job.end) < instant(job.start):
        yield Violation("end", "is before start")
        return
    try:
        definition = definition_of(job, JobId(_NO_ID), 1, job.namespace or "default", job.name)
        if compiled(definition).first(now) is None:
            yield from _never(job)
    except CronError as wrong:
        yield _cron_violation(" | ".join(job.cron), wrong)
    except ScheduleError as wrong:
        problem = wrong.problem + (f" ({wrong.hint})" if wrong.hint else "")
        yield Violation(wrong.field, problem)


def _never(job: job_pb2.Job) -> Iterator[Violation]:
    """Of a schedule that has no instant to come: which of its bounds takes the last one away."""
    if job.HasField("at") and job.HasField("start") and instant(job.at) < instant(job.start):
        yield Violation("start", "is after `at`: the job would never fire")
    elif job.HasField("end"):
        yield Violation("end", "no instant of the schedule lies between now and then")


def _cron_violation(expressions: str, wrong: CronError) -> Violation:
    """In the words of the caller's fields, with the expression: it may be one of many."""
    if wrong.field == "time_zone":
        return Violation("time_zone", f"{wrong.problem} ({wrong.hint})")
    return Violation("cron", f"{expressions[:100]!r}: {wrong}")


def _number_violations(job: job_pb2.Job) -> Iterator[Violation]:
    retry = job.retry
    if retry.max_attempts < 0:
        yield Violation("retry.max_attempts", "must be at least 1")
    if retry.HasField("factor") and not 1 <= retry.factor <= 100:
        yield Violation("retry.factor", "must be from 1 to 100")
    if retry.HasField("jitter") and not 0 <= retry.jitter <= 1:
        yield Violation("retry.jitter", "must be from 0 to 1")
    if not 0 <= job.slots <= 1000:
        yield Violation("slots", "must be from 1 to 1000")
    if job.overlap_limit < 0 or (job.overlap_limit and job.overlap != job_pb2.OVERLAP_ALLOW):
        yield Violation("overlap_limit", "must be positive and goes with overlap: allow alone")
    durations: tuple[tuple[Message, str, str], ...] = (
        (retry, "retry.", "backoff"),
        (retry, "retry.", "max"),
        (job, "", "timeout"),
        (job, "", "kill_after"),
        (job.catch_up, "catch_up.", "window"),
    )
    for owner, prefix, field in durations:
        if owner.HasField(field):
            length = seconds(getattr(owner, field))
            if length < timedelta(0) or (field == "timeout" and not length):
                yield Violation(prefix + field, "must be a positive duration")


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
