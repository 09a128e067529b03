"""Validate a job: return all violations at once, each with its field."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from google.protobuf.message import Message

from schedd.api.definitions import actions, notifications, references
from schedd.api.errors import FieldViolation, refuse, too_many
from schedd.api.request_bounds import MOST_VIOLATIONS
from schedd.core.ids import Id
from schedd.core.runs import failure_kinds
from schedd.core.runs.retention import LEAST, MOST
from schedd.core.schedule import zones
from schedd.core.schedule.cron import CronError, ScheduleError, parse
from schedd.runtime.job_codec import OF_INSTANTS, JobDefinition, instant, seconds
from schedkit.protojson import standard
from schedkit.protojson.problems import IN_THE_PAST
from schedkit.text.naming import LABEL, LABEL_IN_WORDS
from schedproto.v1 import common_pb2, job_pb2, run_service_pb2

MAX_PAYLOAD = 256 * 1024
MAX_JOB = 1024 * 1024
"""Bytes of a whole definition: an assignment with it must fit into one frame."""
MAX_NOTE = 1_000
MAX_EXPRESSIONS = 100
"""Cron expressions of one job. Their union is computed whenever it fires."""
MOST_KINDS = 100
"""Failure kinds in each of `retry_on` and `fail_on`."""
MOST_MATCHES = 20
"""Labels in each of `require` and `prefer`."""
MOST_VALUES = 100
"""Values of one such label."""
NEVER_ZERO = frozenset({"timeout", "start_deadline", "run_timeout", "heartbeat_timeout"})
"""Durations that must not be 0, because nothing could run."""

LATE_AT = timedelta(seconds=60)
"""An `at` further in the past than this is rejected; a more recent one fires at once."""

NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?")


def check(
    definition: JobDefinition,
    now: datetime,
    *,
    scheduled: bool = True,
    known: Sequence[FieldViolation] = (),
) -> None:
    """Raise InvalidArgumentError with all violations of a job.

    `scheduled=False` is for one-time work, which has no schedule and may have no name. Violations
    in `known` are accepted.
    """
    found = faults(definition, now, scheduled=scheduled)
    unknown = (each for each in found if each not in known)
    refuse([*islice(unknown, MOST_VIOLATIONS)], "INVALID_JOB")


def check_name(name: str, field: str = "name") -> Iterator[FieldViolation]:
    if not name:
        yield FieldViolation(field, "is missing: give a name")
    elif not NAME.fullmatch(name):
        yield FieldViolation(
            field,
            f"{name[:140]!r} isn't a valid name: at most 128 lower-case letters, digits, '.', '_',"
            " '-', beginning and ending with a letter or digit",
        )
    elif _is_id(name):
        yield FieldViolation(field, "must not look like an id (UUID)")


_DIGITS_OF_ID: Final = 32

_UNTIL_ALONE: Final = FieldViolation("paused_until", "requires paused: true")


def check_note(note: str, field: str) -> None:
    """Raise InvalidArgument for a note that doesn't fit into a line of a table."""
    refuse([*note_violations(note, field)], "INVALID_FIELD", "give one line of plain text")


def check_pause(job: job_pb2.Job) -> None:
    """Raise InvalidArgument for an impossible pause in a job. Edits don't change the pause, so an
    expired one is ignored; `schedctl apply` makes separate calls for it.
    """
    violations = [*note_violations(job.pause_note, "pause_note")]
    if job.HasField("paused_until") and not job.paused:
        violations.append(_UNTIL_ALONE)
    refuse(violations, "INVALID_JOB")


def note_violations(note: str, field: str) -> Iterator[FieldViolation]:
    """Return the violations of a note, which is shown as one line."""
    yield from too_many(field, len(note), "characters", MAX_NOTE)
    if len(note) <= MAX_NOTE and not note.isprintable():
        yield FieldViolation(field, "has a line break or another unprintable character")


def _is_id(name: str) -> bool:
    """Return whether a call that takes an id or a name would read this as an id."""
    if len(name) - name.count("-") != _DIGITS_OF_ID:
        return False
    try:
        Id.parse(name)
    except ValueError:
        return False
    return True


def payload_violations(
    payload: common_pb2.Payload, field: str = "payload"
) -> Iterator[FieldViolation]:
    """Return the violations of a payload: too large, or invalid JSON."""
    size = len(payload.json.encode()) + len(payload.raw)
    yield from too_many(field, size, "bytes", MAX_PAYLOAD)
    if size <= MAX_PAYLOAD and payload.json:
        try:
            standard.loads(payload.json)
        except (standard.TooDeep, standard.TooMany) as beyond:
            yield FieldViolation(field, str(beyond))
        except ValueError as wrong:
            yield FieldViolation(field, f"isn't valid JSON: {wrong}")


def given_payload(
    request: run_service_pb2.RetryRunRequest | run_service_pb2.RedriveDeadLettersRequest,
) -> bytes | None:
    """Return the payload that replaces the job's, as stored; None: the request has none."""
    if not request.HasField("payload"):
        return None
    refuse([*payload_violations(request.payload)], "INVALID_FIELD")
    return request.payload.SerializeToString()


def faults(
    definition: JobDefinition, now: datetime, *, scheduled: bool
) -> Iterator[FieldViolation]:
    """Return all violations of a job. `scheduled`: also of its name and schedule."""
    job = definition.message
    if scheduled:
        yield from check_name(job.name)
        yield from _schedule_violations(definition, now)
    elif job.name:
        yield from check_name(job.name)
    for key in job.labels:
        if not LABEL.fullmatch(key):
            yield FieldViolation("labels", f"{key[:140]!r} isn't a valid key: {LABEL_IN_WORDS}")
    yield from _match_violations("require", job.require)
    yield from _match_violations("prefer", job.prefer)
    if job.prefer and job.placement == job_pb2.PLACEMENT_BROADCAST:
        problem = "has no effect with placement: broadcast, which uses all matching workers"
        yield FieldViolation("prefer", problem)
    yield from actions.violations(job)
    yield from notifications.violations(job)
    yield from note_violations(job.pause_note, "pause_note")
    if job.pause_note and not job.paused and scheduled:
        yield FieldViolation("pause_note", "requires paused: true")
    payload = list(payload_violations(job.payload))
    yield from payload
    yield from payload_violations(job.http.json, "http.json")
    yield from payload_violations(job.plugin.config, "plugin.config")
    if not payload and job.ByteSize() > MAX_JOB:
        problem = f"the whole job has {job.ByteSize():,} bytes; at most {MAX_JOB:,} are allowed"
        yield FieldViolation(job.WhichOneof("action") or "action", problem)
    yield from _number_violations(job)


def _schedule_violations(definition: JobDefinition, now: datetime) -> Iterator[FieldViolation]:
    job = definition.message
    if unfit := [*_kind_violations(job)]:
        yield from unfit
        return
    if job.HasField("phase") and not job.HasField("every"):
        yield FieldViolation("phase", "requires every: only intervals have a phase")
    if job.anchor and not job.HasField("every"):
        yield FieldViolation("anchor", "requires every: only intervals have an anchor")
    if job.HasField("every") and job.time_zone and not job.anchor and not job.HasField("exclude"):
        problem = "has no effect with every: give an anchor (a local time), or leave it out"
        yield FieldViolation("time_zone", problem)
    if job.HasField("dst") and not job.cron:
        yield FieldViolation("dst", "requires cron: other schedules don't follow local time")
    if job.HasField("at") and instant(job.at) < now - LATE_AT:
        yield FieldViolation("at", "is more than 60 s in the past")
    if job.HasField("paused_until") and not job.paused:
        yield _UNTIL_ALONE
    elif job.HasField("paused_until") and instant(job.paused_until) <= now:
        yield FieldViolation("paused_until", IN_THE_PAST)
    if job.time_zone and not job.cron:
        try:
            zones.zone(job.time_zone)
        except zones.UnknownZone as unknown:
            yield FieldViolation("time_zone", f"{unknown} ({unknown.hint})")
    if job.HasField("after"):
        yield from references.parent_violations(job)
        yield from _no_instant_violations(job, "after: the parents decide when it runs")
    elif job.on_demand:
        yield from _no_instant_violations(job, "on_demand: triggers decide when it runs")
    else:
        yield from _instant_violations(definition, now)


def _kind_violations(job: job_pb2.Job) -> Iterator[FieldViolation]:
    kinds = {
        "cron": bool(job.cron),
        "every": job.HasField("every"),
        "at": job.HasField("at") or bool(job.local_at),
        "on_demand": job.on_demand,
        "after": job.HasField("after"),
    }
    given = [kind for kind, there in kinds.items() if there]
    odd = [each for each in job.cron if not each.replace("\t", " ").isprintable()]
    if len(given) != 1:
        said = " and ".join(given) if given else "none"
        yield FieldViolation("schedule", f"give exactly one of {', '.join(kinds)}; got {said}")
    elif job.HasField("at") and job.local_at:
        yield FieldViolation("local_at", "can't be combined with at")
    elif len(job.cron) > MAX_EXPRESSIONS:
        yield from too_many("cron", len(job.cron), "expressions", MAX_EXPRESSIONS)
    elif odd:
        yield FieldViolation("cron", f"{odd[0][:100]!r} has an unprintable character")
    elif job.HasField("every") and seconds(job.every) < timedelta(seconds=1):
        yield FieldViolation("every", "must be at least 1s")


def _no_instant_violations(job: job_pb2.Job, kind: str) -> Iterator[FieldViolation]:
    """Return the violations of fields that a job without scheduled times can't have."""
    if job.max_runs:
        word = kind.split(":", maxsplit=1)[0]
        yield FieldViolation(
            "max_runs", f"has no effect with {word}: only scheduled runs are counted"
        )
    plain: Message = job
    for field in OF_INSTANTS:
        if plain.HasField(field):
            yield FieldViolation(field, f"has no effect with {kind}")


def _instant_violations(definition: JobDefinition, now: datetime) -> Iterator[FieldViolation]:
    """Return why the scheduled times can't be computed, or why there are none."""
    job = definition.message
    if job.HasField("start") and job.HasField("end") and instant(job.end) < instant(job.start):
        yield FieldViolation("end", "is before start")
        return
    if excluded := [*references.exclusion_violations(job.exclude, definition.row.calendars)]:
        yield from excluded
        return
    try:
        schedule = definition.schedule
        if (text := schedule.silent(now)) is not None:
            problem = "never matches: clock changes of the time zone skip all its times (dst.gap)"
            yield FieldViolation("cron", f"{text[:100]!r} {problem}")
        elif schedule.first(now) is None:
            at, start = job.HasField("at"), job.HasField("start")
            if at and start and instant(job.at) < instant(job.start):
                yield FieldViolation("start", "is after `at`: the job would never fire")
            elif job.HasField("end"):
                problem = "is before the next scheduled time: the job would never fire"
                yield FieldViolation("end", problem)
        elif schedule.excludes_all_after(now):
            yield FieldViolation("exclude", "excludes all scheduled times of the coming years")
    except CronError as wrong:
        yield _cron_violation(job, wrong)
    except ScheduleError as wrong:
        problem = wrong.problem + (f" ({wrong.hint})" if wrong.hint else "")
        yield FieldViolation(wrong.field, problem)


def _cron_violation(job: job_pb2.Job, wrong: CronError) -> FieldViolation:
    if wrong.field == "time_zone":
        return FieldViolation("time_zone", f"{wrong.problem} ({wrong.hint})")
    shown = " | ".join(job.cron)
    for text in job.cron:
        try:
            parse(text, zone=job.time_zone or "UTC", seed="default/j")
        except CronError:
            shown = text
            break
    return FieldViolation("cron", f"{shown[:100]!r}: {wrong}")


def _match_violations(
    field: str, matches: Sequence[common_pb2.LabelMatch]
) -> Iterator[FieldViolation]:
    if len(matches) > MOST_MATCHES:
        yield from too_many(field, len(matches), "labels", MOST_MATCHES)
        return
    seen: set[str] = set()
    for match in matches:
        if not LABEL.fullmatch(match.key):
            yield FieldViolation(field, f"{match.key[:140]!r} isn't a valid key: {LABEL_IN_WORDS}")
        elif match.key in seen:
            yield FieldViolation(
                field, f"{match.key!r} is given twice: give all its values at once"
            )
        elif not match.any_of or len(match.any_of) > MOST_VALUES:
            yield FieldViolation(field, f"{match.key!r} must have 1 to {MOST_VALUES} values")
        seen.add(match.key)


def _kind_of_failure_violations(field: str, words: Sequence[str]) -> Iterator[FieldViolation]:
    if len(words) > MOST_KINDS:
        yield from too_many(field, len(words), "entries", MOST_KINDS)
        return
    for word in words:
        try:
            failure_kinds.kind(word)
        except failure_kinds.WrongKind as wrong:
            yield FieldViolation(field, str(wrong))


def _number_violations(job: job_pb2.Job) -> Iterator[FieldViolation]:
    retry = job.retry
    yield from _kind_of_failure_violations("retry.retry_on", retry.retry_on)
    yield from _kind_of_failure_violations("retry.fail_on", retry.fail_on)
    if job.overlap_limit and job.overlap != job_pb2.OVERLAP_ALLOW:
        problem = "requires overlap: allow"
        yield FieldViolation("overlap_limit", problem)
    if job.HasField("heartbeat_timeout") and job.WhichOneof("action") not in ("python", "plugin"):
        problem = "requires a python or plugin action: other actions send no heartbeats"
        yield FieldViolation("heartbeat_timeout", problem)
    if job.HasField("retention") and not LEAST <= seconds(job.retention) <= MOST:
        yield FieldViolation("retention", f"must be from 1s to {MOST.days:,}d")
    durations: tuple[tuple[Message, str, str], ...] = (
        (retry, "retry.", "backoff"),
        (retry, "retry.", "max"),
        (job, "", "timeout"),
        (job, "", "start_deadline"),
        (job, "", "run_timeout"),
        (job, "", "heartbeat_timeout"),
        (job, "", "kill_after"),
        (job.catch_up, "catch_up.", "window"),
    )
    for owner, prefix, field in durations:
        if owner.HasField(field):
            length = seconds(getattr(owner, field))
            if length < timedelta(0) or (field in NEVER_ZERO and not length):
                problem = "must be more than 0s" if field in NEVER_ZERO else "must not be negative"
                yield FieldViolation(prefix + field, problem)
