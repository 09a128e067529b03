"""Read a job's message into the values that decisions need.

    a request ─▶ message ─▶ schedule ─ validation ─▶ spec ─▶ stored
    a row ─────▶ message, which is the spec ─▶ schedule, parsed

A stored definition is the serialized `Job` with only the fields that a user set. Defaults are
filled in here, at each read, so there is one place for them. A stored definition is trusted: it was
validated first.
"""

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core.dispatch.ready_bucket_ids import LineId, line_id_of
from schedd.core.ids import JobId
from schedd.core.jobs.chains import ChainParents, When
from schedd.core.jobs.definition import (
    CatchUp,
    CatchUpPolicy,
    Definition,
    Delivery,
    Match,
    Overlap,
    Placement,
    Priority,
    RetryPolicy,
)
from schedd.core.jobs.notifications import LATE_AFTER, Notice, Notices
from schedd.core.runs.failure_kinds import kind
from schedd.core.runs.pools import pool_key
from schedd.core.runs.records import PinnedCalendar, StoredDefinition
from schedd.core.schedule import compiled_schedule, local_times
from schedd.core.schedule.calendars.rules import CalendarVersion, Exclude, Roll, Rules, rules
from schedd.core.schedule.compiled_schedule import (
    AtSchedule,
    CompiledSchedule,
    CronSchedule,
    EverySchedule,
    OnDemand,
    Schedule,
    ScheduleBounds,
)
from schedd.core.schedule.cron import (
    DEBIAN,
    DIALECT,
    CronError,
    DstGap,
    DstOverlap,
    DstPolicy,
    ScheduleError,
)
from schedproto.v1 import calendar_service_pb2, common_pb2, job_pb2

SET_BY_CLUSTER = (
    "job_id",
    "generation",
    "etag",
    "paused_by",
    "next_run_at",
    "created_at",
    "updated_at",
    "created_by",
    "definition_version",
    "runs_created",
    "calendar_versions",
    "warnings",
)
"""Read-only fields: a value in a request is never stored."""

OF_INSTANTS = ("start", "end", "jitter", "catch_up", "exclude")
"""Fields that affect scheduled times; `on_demand` and `after` have none."""

LEVEL = 8
"""Version of definitions. A member doesn't process jobs whose definition needs a newer one."""

_SINCE: Final = {"anchor": 8}
"""Fields → the version since which members know them. Fields of versions before 8, which no release
had, aren't listed.
"""

_BEFORE_LAST: Final = re.compile(r"\bl-\d", re.IGNORECASE)
"""`L-3` in an expression: members before version 8 reject it."""

STORED_ONLY = ("paused", "pause_note", "paused_until")
"""Fields of a job's state, stored beside the definition."""


def instant(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)


def seconds(duration: Duration) -> timedelta:
    return duration.ToTimedelta()


def line_id(job: job_pb2.Job, namespace: str) -> LineId:
    """Return the id of the bucket in which the job's runs wait (`core/dispatch/placement.Need`).
    The id includes whether runs may end while they wait.
    """
    action = job.WhichOneof("action") or ""
    needs = (
        namespace,
        action,
        job.python.handler if action == "python" else "",
        job.plugin.executor if action == "plugin" else "",
        job.slots or 1,
        tuple((match.key, tuple(match.any_of)) for match in _matches(job.require)),
        pool_key(namespace, job.pool),
        job.placement == job_pb2.PLACEMENT_BROADCAST,
    )
    hurried = job.HasField("start_deadline") or job.HasField("run_timeout")
    paced = job.catch_up.policy == job_pb2.CatchUp.POLICY_ALL
    return line_id_of(needs, hurried=hurried, paced=paced, late=job.HasField("on_late"))


def overlap_of(policy: job_pb2.Overlap.ValueType) -> Overlap | None:
    return Overlap(job_pb2.Overlap.Name(policy).removeprefix("OVERLAP_")) if policy else None


def set_by_user(job: job_pb2.Job) -> job_pb2.Job:
    """Return what a user set of a job, without its name and the state of its pause."""
    found = job_pb2.Job()
    found.CopyFrom(job)
    plain: Message = found
    for field in (*SET_BY_CLUSTER, *STORED_ONLY, "namespace", "name"):
        plain.ClearField(field)
    if not found.exclude.calendars and not found.exclude.cron:
        found.ClearField("exclude")
    return found


def spec_of(job: job_pb2.Job) -> job_pb2.Job:
    """Return the message that is stored of a job: the fields that a user set, and the dialect by
    which its expressions are read.
    """
    spec = with_instant(set_by_user(job))
    spec.definition_version = max(DIALECT if spec.cron else 0, _level(spec))
    return spec


def with_instant(job: job_pb2.Job) -> job_pb2.Job:
    """Return the job with its time as `at`, in the milliseconds that users see. A `local_at` that
    isn't one time, or that is given beside `at`, is kept for validation.
    """
    if job.HasField("at") == bool(job.local_at):
        return job
    found = job_pb2.Job()
    found.CopyFrom(job)
    try:
        if job.local_at:
            local = local_times.parse_local_time(job.local_at, "at")
            found.at.FromDatetime(local_times.instant_of(local, job.time_zone, "at"))
    except ScheduleError:
        return job
    found.ClearField("local_at")
    found.at.nanos -= found.at.nanos % 1_000_000
    return found


def _level(spec: job_pb2.Job) -> int:
    """Return the lowest version of definitions that knows everything in this definition."""
    found = [_SINCE.get(field.name, 0) for field, _ in spec.ListFields()]
    if any(_BEFORE_LAST.search(text) for text in (*spec.cron, *spec.exclude.cron)):
        found.append(8)
    return max(found, default=0)


def keep_dialect(old: job_pb2.Job, new: job_pb2.Job) -> None:
    """Keep the cron dialect of a spec when an edit doesn't change `cron`."""
    before = old.definition_version
    kept = before if before > LEVEL else min(before, DIALECT)
    new.definition_version = max(kept, _level(new))


def check_dialect(spec: job_pb2.Job) -> None:
    """Check the cron dialect. Raises CronError: the dialect is of a later version, so the
    scheduled times are unknown.
    """
    if spec.definition_version > LEVEL:
        problem = (
            f"the job was stored by a later schedd, in version {spec.definition_version} of"
            " definitions"
        )
        hint = f"upgrade this member, which supports version {LEVEL}"
        raise CronError("cron", problem, hint)


class InvalidSpec(ValueError):
    """Stored bytes of a job that aren't a definition."""


def stored_spec(spec: bytes) -> job_pb2.Job:
    try:
        return job_pb2.Job.FromString(spec)
    except DecodeError as error:
        raise InvalidSpec(
            f"the stored definition of the job ({len(spec)} bytes) can't be read: {error}; delete"
            " the job, or restore its row in the table jobs from a backup"
        ) from None


T = TypeVar("T")
D = TypeVar("D", timedelta, None)
E = TypeVar("E", bound=enum.Enum)


class _Once(Generic[T]):
    """A property that is computed once for each object. `functools.cached_property` of Python 3.11
    has one lock for all objects: a costly schedule in a thread would block the event loop.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute

    def __get__(self, of: object, _: type) -> T:
        found = of.__dict__[self._compute.__name__] = self._compute(of)
        return found


@dataclass(frozen=True, eq=False)
class JobDefinition:
    """A job at one generation. Each form of it is made once, when it is first used.

    Invariants
    - `message` and `spec` aren't changed after they are made.
    - A message of a request that wasn't validated may be of any size: only its schedule is made.
    - A computation that exceeds its budget leaves nothing half made, and may be repeated.
    """

    message: job_pb2.Job
    """The job as it was given, or as it is stored."""
    row: StoredDefinition
    """As stored. `spec` is empty for a request: only its identity and calendars are set."""
    before: job_pb2.Job | None = None
    """The spec that an edit replaces."""

    @classmethod
    def read(cls, stored: StoredDefinition) -> "JobDefinition":
        return cls(stored_spec(stored.spec), stored)

    @classmethod
    def requested(
        cls,
        job: job_pb2.Job,
        job_id: JobId,
        namespace: str,
        calendars: tuple[PinnedCalendar, ...] = (),
        *,
        ephemeral: bool = False,
    ) -> "JobDefinition":
        """Return the first generation of a job, as a request gives it."""
        row = StoredDefinition(
            job_id=job_id,
            generation=1,
            namespace=namespace,
            name=job.name,
            spec=b"",
            paused=job.paused,
            ephemeral=ephemeral,
            calendars=calendars,
        )
        return cls(with_instant(job), row)

    def edited(self, job: job_pb2.Job, calendars: tuple[PinnedCalendar, ...]) -> "JobDefinition":
        row = replace(self.row, generation=self.row.generation + 1, spec=b"", calendars=calendars)
        return JobDefinition(with_instant(job), row, self.spec)

    @_Once
    def schedule(self) -> CompiledSchedule:
        """The compiled schedule. Raises ScheduleError, and TooMuchWork past a work budget."""
        job, row = self.message, self.row
        seed, exclude = f"{row.namespace}/{row.name}", _exclude(job, row.calendars)
        return compiled_schedule.compile(when(job), seed, row.job_id, bounds_of(job), exclude)

    @_Once
    def spec(self) -> job_pb2.Job:
        if self.row.spec:
            return self.message
        spec = spec_of(self.message)
        if self.before is not None and spec.cron == self.before.cron:
            keep_dialect(self.before, spec)
        return spec

    @_Once
    def stored(self) -> StoredDefinition:
        if self.row.spec:
            return self.row
        spec = self.spec
        return replace(
            self.row,
            spec=spec.SerializeToString(deterministic=True),
            pool=spec.pool,
            after=tuple(spec.after.jobs),
            retention=_given(spec, "retention", None),
            line=line_id(spec, self.row.namespace),
        )

    @_Once
    def parsed(self) -> Definition:
        """The core's form, with defaults. Raises ValueError, and ScheduleError for a calendar that
        doesn't exist.
        """
        spec, row = self.spec, self.row
        action = spec.WhichOneof("action") or ""
        return Definition(
            generation=row.generation,
            namespace=row.namespace,
            schedule=when(spec),
            bounds=bounds_of(spec),
            exclude=_exclude(spec, row.calendars),
            catch_up=CatchUp(
                _chosen(job_pb2.CatchUp.Policy, spec.catch_up.policy, CatchUpPolicy.LATEST),
                _given(spec.catch_up, "window", timedelta(hours=1)),
            ),
            max_runs=spec.max_runs,
            pause_after_failures=spec.pause_after_failures,
            overlap=overlap_of(spec.overlap) or Overlap.SKIP,
            overlap_limit=spec.overlap_limit,
            priority=Priority(spec.priority or Priority.MEDIUM),
            retry=_retry(spec.retry),
            delivery=_chosen(job_pb2.Delivery, spec.delivery, Delivery.AT_LEAST_ONCE),
            timeout=_given(spec, "timeout", timedelta(hours=1)),
            start_deadline=_given(spec, "start_deadline", None),
            run_timeout=_given(spec, "run_timeout", None),
            heartbeat_timeout=_given(spec, "heartbeat_timeout", None),
            kill_after=_given(spec, "kill_after", timedelta(seconds=10)),
            kills_on_lease_lost=spec.on_lease_lost == job_pb2.ON_LEASE_LOST_KILL,
            slots=spec.slots or 1,
            action=f"plugin/{spec.plugin.executor}" if action == "plugin" else action,
            handler=spec.python.handler if action == "python" else "",
            require=_matches(spec.require),
            prefer=_matches(spec.prefer),
            placement=_chosen(job_pb2.Placement, spec.placement, Placement.SPREAD),
            pool=pool_key(row.namespace, spec.pool),
            notices=notices_of(spec),
            after=_after(spec),
        )


def _after(spec: job_pb2.Job) -> ChainParents | None:
    if not spec.HasField("after"):
        return None
    said = spec.after
    when = _chosen(job_pb2.After.When, said.when, When.SUCCESS)
    return ChainParents(tuple(said.jobs), when, said.with_output)


def notices_of(spec: job_pb2.Job) -> Notices | None:
    found = Notices(
        failure=_notice(spec, "on_failure"),
        recovery=_notice(spec, "on_recovery"),
        dead_letter=_notice(spec, "on_dead_letter"),
        late=_notice(spec, "on_late"),
    )
    return None if found == Notices() else found


def _notice(spec: job_pb2.Job, field: str) -> Notice | None:
    plain: Message = spec
    if not plain.HasField(field):
        return None
    said: job_pb2.Notification = getattr(plain, field)
    return Notice(
        webhook=said.webhook,
        command=tuple(said.command),
        email=tuple(said.email),
        threshold=said.threshold or 1,
        min_interval=seconds(said.min_interval),
        after=_given(said, "after", LATE_AFTER),
    )


def _matches(said: Iterable[common_pb2.LabelMatch]) -> tuple[Match, ...]:
    return tuple(Match(one.key, tuple(one.any_of)) for one in said)


def bounds_of(spec: job_pb2.Job) -> ScheduleBounds:
    return ScheduleBounds(
        start=instant(spec.start) if spec.HasField("start") else None,
        end=instant(spec.end) if spec.HasField("end") else None,
        jitter=seconds(spec.jitter),
    )


def when(spec: job_pb2.Job) -> Schedule:
    if spec.cron:
        return CronSchedule(
            expressions=tuple(spec.cron),
            zone=spec.time_zone or "UTC",
            dst=_dst(spec.dst) if spec.HasField("dst") else DEBIAN,
        )
    if spec.HasField("every"):
        anchor = local_times.parse_local_time(spec.anchor, "anchor") if spec.anchor else None
        every, phase = seconds(spec.every), seconds(spec.phase)
        return EverySchedule(every, phase, anchor, spec.time_zone)
    if spec.local_at:
        return AtSchedule(local_times.parse_local_time(spec.local_at, "at"), spec.time_zone)
    if spec.HasField("at"):
        return AtSchedule(instant(spec.at))
    return OnDemand()


def _dst(said: job_pb2.DstPolicy) -> DstPolicy:
    return DstPolicy(
        gap=_chosen(job_pb2.DstPolicy.Gap, said.gap, DstGap.RUN_AFTER),
        overlap=_chosen(job_pb2.DstPolicy.Repeated, said.overlap, DstOverlap.FIRST),
    )


def _exclude(spec: job_pb2.Job, calendars: Sequence[PinnedCalendar]) -> Exclude:
    pinned = {one.name: one for one in calendars}
    for name in spec.exclude.calendars:
        if name not in pinned:
            raise ScheduleError(
                "exclude.calendars",
                f"calendar {name!r} not found",
                "see `schedctl calendar list`, or create the calendar first",
            )
    return Exclude(
        tuple(calendar_of(pinned[name]) for name in spec.exclude.calendars),
        tuple(spec.exclude.cron),
        spec.time_zone or "UTC",
    )


@lru_cache(maxsize=1024)
def calendar_of(pinned: PinnedCalendar) -> CalendarVersion:
    """Return a stored version of a calendar, parsed once for all jobs that use it."""
    said = calendar_service_pb2.Calendar.FromString(pinned.spec)
    return CalendarVersion(pinned.name, pinned.version, rules_of(said))


def rules_of(said: calendar_service_pb2.Calendar) -> Rules:
    """Parse a calendar. Raises WrongRules."""
    return rules(
        dates=said.dates,
        weekdays=said.weekdays,
        ranges=[(getattr(span, "from"), span.to) for span in said.ranges],
        cron=said.cron,
        zone=said.time_zone,
        roll=_chosen(calendar_service_pb2.Roll, said.roll, Roll.NONE),
    )


def _retry(policy: job_pb2.RetryPolicy) -> RetryPolicy:
    plain = RetryPolicy()
    return RetryPolicy(
        max_attempts=policy.max_attempts or plain.max_attempts,
        backoff=seconds(policy.backoff) if policy.HasField("backoff") else plain.backoff,
        factor=policy.factor if policy.HasField("factor") else plain.factor,
        maximum=seconds(policy.max) if policy.HasField("max") else plain.maximum,
        jitter=policy.jitter if policy.HasField("jitter") else plain.jitter,
        retry_on=tuple(map(kind, policy.retry_on)),
        fail_on=tuple(map(kind, policy.fail_on)),
    )


def _given(message: Message, field: str, default: D) -> timedelta | D:
    """Return the duration of this field, also zero; the default if it isn't set."""
    return seconds(getattr(message, field)) if message.HasField(field) else default


def _chosen(wire: Any, value: int, default: E) -> E:
    """Return the value of a wire enum as the core's, whose name lacks the first word; the default
    for UNSPECIFIED.
    """
    return type(default)(wire.Name(value).partition("_")[2]) if value else default
