"""What is wrong with a job that somebody sends: all of it at once, each with its field's name."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final
from uuid import UUID

from google.protobuf.message import Message

from schedd.api.definitions import actions, chains, exclusions, notifications
from schedd.api.errors import Violation, refuse
from schedd.api.request_check import MOST_TOLD
from schedd.api.unbuilt import refuse_unbuilt
from schedd.core.ids import JobId
from schedd.core.runs import failures
from schedd.core.runs.records import PinnedCalendar
from schedd.core.runs.retention import LEAST, MOST
from schedd.core.schedule import zones
from schedd.core.schedule.compiled_schedule import silent
from schedd.core.schedule.cron import CronError, ScheduleError, parse
from schedd.runtime.job_codec import OF_INSTANTS, instant, schedule_of, seconds, when, with_instant
from schedkit.protojson import standard
from schedkit.text.naming import LABEL, LABEL_IN_WORDS
from schedproto.v1 import common_pb2, job_pb2, run_service_pb2

MAX_PAYLOAD = 256 * 1024
MAX_JOB = 1024 * 1024
"""Bytes of a whole definition: an assignment that carries it must fit into one frame."""
MAX_NOTE = 1_000
MAX_EXPRESSIONS = 100
"""Of one job: their union is reckoned whenever it fires."""
MOST_KINDS = 100
"""Of failures, in each of the two lists of a job."""
MOST_MATCHES = 20
MOST_VALUES = 100
"""Of labels that a job asks of its worker, and of what each of them may be."""
NEVER_ZERO = frozenset({"timeout", "start_deadline", "run_timeout", "heartbeat_timeout"})
"""Durations of which none at all would let nothing run."""
_NO_ID = UUID(int=0)

LATE_AT = timedelta(seconds=60)
"""An `at` further past than this is refused; one less past fires at once."""

NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?")


def check(
    job: job_pb2.Job,
    now: datetime,
    *,
    scheduled: bool = True,
    known: Sequence[Violation] = (),
    calendars: Sequence[PinnedCalendar] = (),
) -> None:
    """Raise InvalidArgument with all that is wrong with a job, or Unbuilt.

    `scheduled=False` is for one-time work: it has no name of its own and no schedule. What is
    `known` to be wrong is borne with. `calendars` are those that it names, as far as there are any.
    """
    refuse_unbuilt(job)
    found = faults(job, now, scheduled=scheduled, calendars=calendars)
    unknown = (each for each in found if each not in known)
    refuse([*islice(unknown, MOST_TOLD)], "INVALID_JOB")


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


_UNTIL_ALONE: Final = Violation("paused_until", "goes with paused: true alone")


def check_note(note: str, field: str) -> None:
    """Raise InvalidArgument for a note that can't stand in a line of a table."""
    refuse([*note_violations(note, field)], "INVALID_FIELD", "give one line of plain text")


def check_standing(job: job_pb2.Job) -> None:
    """Raise InvalidArgument for a pause that nobody could ever make of what a job says of its own.
    An edit makes none, so one that is over says nothing; who applies a manifest makes the others.
    """
    violations = [*note_violations(job.pause_note, "pause_note")]
    if job.HasField("paused_until") and not job.paused:
        violations.append(_UNTIL_ALONE)
    refuse(violations, "INVALID_JOB")


def note_violations(note: str, field: str) -> Iterator[Violation]:
    """What is wrong with a note: people read it in a line, as it is."""
    if len(note) > MAX_NOTE:
        yield Violation(field, f"has {len(note):,} characters, at most {MAX_NOTE:,} are allowed")
    elif not note.isprintable():
        yield Violation(field, "holds a line break, or another character that isn't printed")


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
        except (standard.TooDeep, standard.TooMany) as beyond:
            yield Violation(field, str(beyond))
        except ValueError as wrong:
            yield Violation(field, f"isn't JSON: {wrong}")


def given_payload(
    request: run_service_pb2.RetryRunRequest | run_service_pb2.RedriveDeadLettersRequest,
) -> bytes | None:
    """That which a call gives in place of the job's, as it is stored; None: it gives none."""
    if not request.HasField("payload"):
        return None
    refuse([*payload_violations(request.payload)], "INVALID_FIELD")
    return request.payload.SerializeToString()


def faults(
    job: job_pb2.Job,
    now: datetime,
    *,
    scheduled: bool,
    calendars: Sequence[PinnedCalendar] = (),
) -> Iterator[Violation]:
    """All that is wrong with a job; `scheduled`: its name and its schedule are looked at, too."""
    if scheduled:
        yield from check_name(job.name)
        yield from _schedule_violations(job, now, calendars)
    elif job.name:
        yield from check_name(job.name)
    for key in job.labels:
        if not LABEL.fullmatch(key):
            yield Violation("labels", f"{key[:140]!r} isn't a key: {LABEL_IN_WORDS}")
    yield from _match_violations("require", job.require)
    yield from _match_violations("prefer", job.prefer)
    if job.prefer and job.placement == job_pb2.PLACEMENT_BROADCAST:
        problem = "means nothing with placement: broadcast: all that can do it have a run each"
        yield Violation("prefer", problem)
    yield from actions.violations(job)
    yield from notifications.violations(job)
    yield from note_violations(job.pause_note, "pause_note")
    if job.pause_note and not job.paused and scheduled:
        yield Violation("pause_note", "goes with paused: true alone")
    payload = list(payload_violations(job.payload))
    yield from payload
    yield from payload_violations(job.http.json, "http.json")
    yield from payload_violations(job.plugin.config, "plugin.config")
    if not payload and job.ByteSize() > MAX_JOB:
        problem = f"the whole job has {job.ByteSize():,} bytes, at most {MAX_JOB:,} are allowed"
        yield Violation(job.WhichOneof("action") or "action", problem)
    yield from _number_violations(job)


def _schedule_violations(
    job: job_pb2.Job, now: datetime, calendars: Sequence[PinnedCalendar]
) -> Iterator[Violation]:
    if unfit := [*_kind_violations(job)]:
        yield from unfit
        return
    job = with_instant(job)
    if job.HasField("phase") and not job.HasField("every"):
        yield Violation("phase", "goes with every alone")
    if job.anchor and not job.HasField("every"):
        yield Violation("anchor", "goes with every alone")
    if job.HasField("every") and job.time_zone and not job.anchor and not job.HasField("exclude"):
        problem = "has no effect beside every: give an anchor (a local time), or leave it out"
        yield Violation("time_zone", problem)
    if job.HasField("dst") and not job.cron:
        yield Violation("dst", "goes with cron alone: nothing else is bound to a wall clock")
    if job.HasField("at") and instant(job.at) < now - LATE_AT:
        yield Violation("at", "is more than 60 s past")
    if job.HasField("paused_until"):
        yield from _until_violations(job, now)
    if job.time_zone and not job.cron:
        try:
            zones.zone(job.time_zone)
        except zones.UnknownZone as unknown:
            yield Violation("time_zone", f"{unknown} ({unknown.hint})")
    if job.HasField("after"):
        yield from chains.violations(job)
        yield from _no_instant_violations(job, "after: its parents decide")
    elif job.on_demand:
        yield from _no_instant_violations(job, "on_demand: triggers start it any time")
    else:
        yield from _instant_violations(job, now, calendars)


def _kind_violations(job: job_pb2.Job) -> Iterator[Violation]:
    """Why this is no schedule of any kind; the first reason alone."""
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
        yield Violation("schedule", f"give exactly one of {', '.join(kinds)}; got {said}")
    elif job.HasField("at") and job.local_at:
        yield Violation("local_at", "stands beside at; give one of them")
    elif len(job.cron) > MAX_EXPRESSIONS:
        problem = f"{len(job.cron):,} expressions, at most {MAX_EXPRESSIONS} are allowed"
        yield Violation("cron", problem)
    elif odd:
        yield Violation("cron", f"{odd[0][:100]!r} holds a line break or the like")
    elif job.HasField("every") and seconds(job.every) < timedelta(seconds=1):
        yield Violation("every", "must be at least 1s")


def _no_instant_violations(job: job_pb2.Job, kind: str) -> Iterator[Violation]:
    """What there is to be said of instants, where there are none."""
    if job.max_runs:
        word = kind.split(":", maxsplit=1)[0]
        yield Violation(
            "max_runs", f"means nothing with {word}: runs of no schedule aren't counted"
        )
    plain: Message = job
    for field in OF_INSTANTS:
        if plain.HasField(field):
            yield Violation(field, f"means nothing with {kind}")


def _instant_violations(
    job: job_pb2.Job, now: datetime, calendars: Sequence[PinnedCalendar]
) -> Iterator[Violation]:
    """Why its instants can't be reckoned, or why there is none."""
    if job.HasField("start") and job.HasField("end") and instant(job.end) < instant(job.start):
        yield Violation("end", "is before start")
        return
    if excluded := [*exclusions.violations(job.exclude, calendars)]:
        yield from excluded
        return
    namespace = job.namespace or "default"
    try:
        schedule = schedule_of(job, JobId(_NO_ID), namespace, job.name, calendars)
        if (text := silent(when(job), f"{namespace}/{job.name}", now)) is not None:
            problem = "never matches: the clocks of its zone skip all its times (dst.gap)"
            yield Violation("cron", f"{text[:100]!r} {problem}")
        elif schedule.first(now) is None:
            yield from _never(job)
        elif schedule.excludes_all_after(now):
            yield Violation("exclude", "nothing runs: no instant to come is left, for years")
    except CronError as wrong:
        yield _cron_violation(job, wrong)
    except ScheduleError as wrong:
        problem = wrong.problem + (f" ({wrong.hint})" if wrong.hint else "")
        yield Violation(wrong.field, problem)


def _until_violations(job: job_pb2.Job, now: datetime) -> Iterator[Violation]:
    if not job.paused:
        yield _UNTIL_ALONE
    elif instant(job.paused_until) <= now:
        yield Violation("paused_until", "is past")


def _never(job: job_pb2.Job) -> Iterator[Violation]:
    """Of a schedule that has no instant to come: which of its bounds takes the last one away."""
    if job.HasField("at") and job.HasField("start") and instant(job.at) < instant(job.start):
        yield Violation("start", "is after `at`: the job would never fire")
    elif job.HasField("end"):
        yield Violation("end", "no instant of the schedule lies between now and then")


def _cron_violation(job: job_pb2.Job, wrong: CronError) -> Violation:
    """In the words of the caller's fields, with the expression that it is of."""
    if wrong.field == "time_zone":
        return Violation("time_zone", f"{wrong.problem} ({wrong.hint})")
    told = " | ".join(job.cron)
    for text in job.cron:
        try:
            parse(text, zone=job.time_zone or "UTC", seed="default/j")
        except CronError:
            told = text
            break
    return Violation("cron", f"{told[:100]!r}: {wrong}")


def _match_violations(field: str, matches: Sequence[common_pb2.LabelMatch]) -> Iterator[Violation]:
    """What is wrong with what a job asks of its worker's labels."""
    if len(matches) > MOST_MATCHES:
        yield Violation(field, f"has {len(matches):,} labels, at most {MOST_MATCHES} are allowed")
        return
    seen: set[str] = set()
    for match in matches:
        if not LABEL.fullmatch(match.key):
            yield Violation(field, f"{match.key[:140]!r} isn't a label's key: {LABEL_IN_WORDS}")
        elif match.key in seen:
            yield Violation(field, f"{match.key!r} stands there twice: give all its values at once")
        elif not match.any_of or len(match.any_of) > MOST_VALUES:
            yield Violation(field, f"{match.key!r} has no value, or more than {MOST_VALUES}")
        seen.add(match.key)


def _kind_of_failure_violations(field: str, words: Sequence[str]) -> Iterator[Violation]:
    if len(words) > MOST_KINDS:
        yield Violation(field, f"has {len(words):,} entries, at most {MOST_KINDS} are allowed")
        return
    for word in words:
        try:
            failures.kind(word)
        except failures.WrongKind as wrong:
            yield Violation(field, str(wrong))


def _number_violations(job: job_pb2.Job) -> Iterator[Violation]:
    retry = job.retry
    yield from _kind_of_failure_violations("retry.retry_on", retry.retry_on)
    yield from _kind_of_failure_violations("retry.fail_on", retry.fail_on)
    if job.overlap_limit and job.overlap != job_pb2.OVERLAP_ALLOW:
        problem = "the N of overlap: allow: N must be positive, and goes with allow alone"
        yield Violation("overlap_limit", problem)
    if job.HasField("heartbeat_timeout") and job.WhichOneof("action") not in ("python", "plugin"):
        problem = "goes with python and plugin alone: nothing else beats"
        yield Violation("heartbeat_timeout", problem)
    if job.HasField("retention") and not LEAST <= seconds(job.retention) <= MOST:
        yield Violation("retention", f"must be from 1s to {MOST.days:,}d")
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
                yield Violation(prefix + field, "must be a positive duration")
