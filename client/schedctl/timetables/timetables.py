"""The schedules that `schedctl cron` reads: expressions, crontabs, manifests or stored jobs.

'0 * * * *'                ╮
-f crontab │ jobs.yaml │ - ├──▶ entries (with the line of each), and faults
the jobs of the namespace  ╯
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from schedctl.failure import CommandFailure, standard_input
from schedctl.manifests import manifests
from schedctl.manifests.file_kinds import FileKind, Foreign, kind_of
from schedctl.manifests.manifests import CalendarManifest, ManifestFault
from schedctl.options.global_options import option
from schedctl.options.types import TIME, TIME_TYPE, WINDOW
from schedctl.output import message
from schedctl.session import Session
from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule, local_times
from schedd.core.schedule.calendars.open_times import FARTHEST
from schedd.core.schedule.calendars.rules import (
    CalendarVersion,
    Exclude,
    Roll,
    WrongRules,
    check_expression,
    rules,
)
from schedd.core.schedule.compiled_schedule import (
    AtSchedule,
    CronSchedule,
    EverySchedule,
    OnDemand,
    Schedule,
    ScheduleBounds,
)
from schedd.core.schedule.cron import (
    DEBIAN,
    CronError,
    CronExplanation,
    DstGap,
    DstOverlap,
    DstPolicy,
    ScheduleError,
)
from schedd.core.schedule.timetable.crontab import CrontabWarning, read_crontab
from schedd.core.schedule.timetable.lint import LintFinding, never_finishes
from schedd.core.schedule.timetable.load import TimetableEntry, Wrong
from schedkit.clock import utcnow
from schedkit.records import dataclass, replace
from schedproto.v1 import calendar_service_pb2, job_pb2

SHOWN_LEFT_OUT: Final = 10
TIMEOUT: Final = timedelta(hours=1)
"""The default timeout of a job."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ScheduleTable:
    """The schedules of a command: `texts` holds each file, `crontabs` the names of crontabs."""

    entries: tuple[TimetableEntry, ...]
    faults: tuple[ManifestFault, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    crontabs: frozenset[str] = frozenset()
    reader: Callable[[str, str], ScheduleTable] | None = None
    """Parses a text as the file of this name was parsed."""
    paused: int = 0
    """Paused jobs of the cluster, which are left out."""
    done: int = 0
    """Jobs without a future scheduled time."""
    counting: int = 0
    """Jobs with `max_runs`; they are counted as if they had no limit."""
    traps: tuple[tuple[str, CrontabWarning], ...] = ()
    """Traps of cron in crontabs, and where."""
    warnings: tuple[tuple[str, str, LintFinding], ...] = ()
    """Warnings about whole jobs: where, the job's name, and the finding."""
    excluding: int = 0
    """Jobs that exclude calendars or times; they are counted as if they excluded none."""


def source_options(command: F) -> F:
    for add in reversed(
        [
            click.argument("expressions", nargs=-1, metavar="[EXPR]…"),
            option(
                "-f --file FILE|DIR|-",
                "Schedules to read: crontabs and manifests (*.yaml, *.yml, *.json);"
                " repeatable.  [default: the cluster's jobs, if no EXPR is given]",
                "files",
                multiple=True,
            ),
            option(
                "--tz ZONE",
                "IANA time zone of schedules that don't name a time zone.",
                default="UTC",
                show_default=True,
            ),
            option(
                "--user-column/--no-user-column",
                "Read crontabs with a user column, as in /etc/crontab.  [default: detected]",
                default=None,
            ),
        ]
    ):
        command = add(command)
    return command


def window_options(length: str) -> Callable[[F], F]:
    start = option(
        f"--from {TIME}",
        "Start of the time window to examine; +3s is 3 s from now.  [default: now]",
        "start",
        type=TIME_TYPE,
    )
    span = option(
        "--for DURATION",
        "Length of the time window to examine, such as 36h or 7d.",
        "span",
        type=WINDOW,
        default=length,
        show_default=True,
    )
    return lambda command: start(span(command))


def dst_of(gap: str, overlap: str) -> DstPolicy:
    return DstPolicy(DstGap[gap.upper()], DstOverlap[overlap.upper()])


def given(
    session: Session,
    expressions: Sequence[str],
    files: Sequence[str],
    tz: str,
    user_column: bool | None,
) -> ScheduleTable:
    """Return the schedules of the command line; those of the cluster if it names none."""
    if not expressions and not files:
        return of_cluster(session)
    entries = [
        TimetableEntry(f"expression-{number}", f"argument {number}", CronSchedule((text,), tz))
        for number, text in enumerate(expressions, 1)
    ]
    read = _texts(files)
    crontabs = frozenset(name for name, text in read if _kind(name, text) is FileKind.CRONTAB)

    def read_text(name: str, text: str) -> ScheduleTable:
        if name in crontabs:
            return _crontab(session, name, text, tz, user_column)
        return _manifest(session, name, text)

    found = [read_text(name, text) for name, text in read]
    return ScheduleTable(
        (*entries, *chain.from_iterable(one.entries for one in found)),
        tuple(chain.from_iterable(one.faults for one in found)),
        dict(read),
        crontabs,
        read_text,
        traps=tuple(chain.from_iterable(one.traps for one in found)),
        warnings=tuple(chain.from_iterable(one.warnings for one in found)),
        excluding=sum(one.excluding for one in found),
    )


def on_one_line(expression: str) -> str:
    """Return an expression for a line of output: a YAML block ends with a newline."""
    return " ".join(expression.split())


def of_cluster(session: Session) -> ScheduleTable:
    """Return the schedules of the namespace's jobs that aren't paused."""
    jobs = session.collect(lambda client: client.jobs.list())
    going = [job for job in jobs if not job.paused]
    active = [job for job in going if job.on_demand or job.next_run_at]
    messages = [cast("job_pb2.Job", job.message) for job in active]
    surprises = ((one.name, surprise_of(one)) for one in messages)
    return ScheduleTable(
        tuple(entry_of(one, one.name) for one in messages),
        warnings=tuple((name, name, found) for name, found in surprises if found),
        paused=len(jobs) - len(going),
        done=len(going) - len(active),
        counting=sum(one.max_runs > 0 for one in messages),
        excluding=sum(one.HasField("exclude") for one in messages),
    )


def report_left_out(table: ScheduleTable, wrong: Sequence[Wrong]) -> None:
    """Print the schedules that are left out, and the limits that are ignored."""
    left_out = [(fault.where, fault.problem, fault.hint) for fault in table.faults]
    left_out += [(one.entry.where, str(one.error), "") for one in wrong]
    for where, problem, hint in left_out[:SHOWN_LEFT_OUT]:
        message(f"left out: {where}: {problem}" + (f" ({hint})" if hint else ""))
    if len(left_out) > SHOWN_LEFT_OUT:
        message(f"left out: {len(left_out) - SHOWN_LEFT_OUT:,} more (schedctl cron lint)")
    if table.paused:
        message(f"left out: {table.paused} paused jobs")
    if table.done:
        message(f"left out: {table.done} jobs without a future scheduled time")
    if table.counting:
        message(f"max_runs is ignored, so later times are counted, too: {table.counting} jobs")
    if table.excluding:
        message(f"exclude is ignored, so excluded times are counted, too: {table.excluding} jobs")


def entry_of(job: job_pb2.Job, where: str, lines: tuple[int, ...] = ()) -> TimetableEntry:
    """Return a job's schedule as its owner would compute it."""
    bounds = ScheduleBounds(
        job.start.ToDatetime(tzinfo=UTC) if job.HasField("start") else None,
        job.end.ToDatetime(tzinfo=UTC) if job.HasField("end") else None,
    )
    return TimetableEntry(
        job.name, where, _schedule(job), job.namespace or "default", bounds, lines
    )


def surprise_of(job: job_pb2.Job) -> LintFinding | None:
    """Return a warning if the job's runs end each other before they finish."""
    policy = job_pb2.Overlap.Name(job.overlap).removeprefix("OVERLAP_").lower()
    timeout = job.timeout.ToTimedelta() if job.HasField("timeout") else TIMEOUT
    seed = f"{job.namespace or 'default'}/{job.name}"
    try:
        return never_finishes(_schedule(job), seed, policy, timeout, utcnow())
    except ScheduleError:
        return None  # the schedule isn't valid: that is a finding already


def _schedule(job: job_pb2.Job) -> Schedule:
    if job.cron:
        gap = job_pb2.DstPolicy.Gap.Name(job.dst.gap).removeprefix("GAP_")
        overlap = job_pb2.DstPolicy.Repeated.Name(job.dst.overlap).removeprefix("REPEATED_")
        dst = DstPolicy(
            DstGap[gap] if job.dst.gap else DEBIAN.gap,
            DstOverlap[overlap] if job.dst.overlap else DEBIAN.overlap,
        )
        return CronSchedule(tuple(job.cron), job.time_zone or "UTC", dst)
    if job.HasField("every"):
        anchor = _local(job.anchor)
        every, phase = job.every.ToTimedelta(), job.phase.ToTimedelta()
        return EverySchedule(every, phase, anchor, job.time_zone)
    if job.local_at and (at := _local(job.local_at)):
        return AtSchedule(at, job.time_zone)
    if job.HasField("at"):
        return AtSchedule(job.at.ToDatetime(tzinfo=UTC))
    return OnDemand()


def _local(text: str) -> datetime | None:
    """Return a local time; None if it isn't valid: the schedule is read without it."""
    try:
        return local_times.parse_local_time(text, "anchor") if text else None
    except ScheduleError:
        return None


def _texts(files: Sequence[str]) -> list[tuple[str, str]]:
    """Return each file's name and text; of a folder its manifests, else all its files."""
    found: list[tuple[str, bytes]] = []
    try:
        for name in files:
            if name == "-":
                found.append(("stdin", standard_input()))
                continue
            path = Path(name)
            inner = [path]
            if path.is_dir():
                plain = sorted(one for one in path.rglob("*") if one.is_file())
                inner = [one for one in plain if one.suffix in manifests.SUFFIXES] or plain
            found += [(str(one), one.read_bytes()) for one in inner]
    except OSError as error:
        where = error.filename or ", ".join(files)
        raise CommandFailure(
            f"the file {where} can't be read: {error.strerror}",
            reason="NO_FILE",
            remedy="check the file's name and permissions",
        ) from error
    return [(name, content.decode("utf-8", "replace")) for name, content in found]


def _kind(name: str, text: str) -> FileKind | Foreign:
    """Return the kind by the content; by the file's suffix if that is inconclusive."""
    found = kind_of(text)
    if found is not None:
        return found
    return FileKind.MANIFEST if Path(name).suffix in manifests.SUFFIXES else FileKind.CRONTAB


def _manifest(session: Session, name: str, text: str) -> ScheduleTable:
    found = list(manifests.parse(name, text))
    entries, excluding = [], 0
    warnings: list[tuple[str, str, LintFinding]] = []
    for one in found:
        if isinstance(one, manifests.Manifest) and isinstance(job := one.spec, job_pb2.Job):
            job.namespace = job.namespace or session.namespace
            entries.append(entry_of(job, one.where, one.lines))
            excluding += job.HasField("exclude")
            if surprise := surprise_of(job):
                warnings.append((one.where, job.name, surprise))
    faults = tuple(one for one in found if isinstance(one, ManifestFault))
    return ScheduleTable(tuple(entries), faults, warnings=tuple(warnings), excluding=excluding)


def _crontab(
    session: Session, name: str, text: str, tz: str, user_column: bool | None
) -> ScheduleTable:
    if user_column is None and (name == "/etc/crontab" or name.startswith("/etc/cron.d/")):
        user_column = True
    found = read_crontab(text, system=user_column)
    entries = (
        TimetableEntry(
            line.name,
            f"{name}:{line.number}",
            CronSchedule((line.schedule,), line.zone or tz),
            session.namespace,
            lines=(line.number,),
        )
        for line in found.lines
    )
    faults = (ManifestFault(f"{name}:{one.number}", one.problem, one.hint) for one in found.unread)
    traps = tuple((f"{name}:{one.number}", one) for one in found.traps)
    return ScheduleTable(tuple(entries), tuple(faults), traps=traps)


NAMED: Final = 5
"""Number of excluded times that are listed one by one."""


def exclude_of(cron: Sequence[str], files: Sequence[str], zone: str) -> Exclude:
    """Return the exclusions of the options; raise CommandFailure if one isn't valid."""
    for expression in cron:
        try:
            check_expression(expression)
        except CronError as wrong:
            raise CommandFailure(
                f"--exclude-cron: {wrong.problem}",
                reason="WRONG_EXPRESSION",
                remedy=wrong.hint or "for example '* 22-23 * * *': the minutes from 22:00 to 23:59",
            ) from None
    found = manifests.read_or_fail(files).calendars if files else ()
    return Exclude(tuple(map(_calendar, found)), tuple(cron), zone)


def without(
    found: CronExplanation, exclude: Exclude, after: datetime, count: int, seed: str, dst: DstPolicy
) -> CronExplanation:
    """Return the explanation with the times that run, and notes on the excluded ones between."""
    when = CronSchedule((found.expression,), found.time_zone, dst)
    compiled = compiled_schedule.compile(when, seed, Id.from_int(0), ScheduleBounds(), exclude)
    zone = found.instants[0].tzinfo if found.instants else after.tzinfo
    runs = [one.nominal for one in islice(compiled.walk_after(after), count)]
    until = runs[-1] if len(runs) == count else after + FARTHEST
    left_out = compiled.whole.count(after, until) - len(runs)
    whole = takewhile(lambda one: one.nominal < until, compiled.whole.walk_after(after))
    excluded = (one.nominal for one in whole if compiled.excludes(one.nominal))
    notes = [
        f"{at.astimezone(zone).isoformat(sep=' ')} is excluded by {compiled.excluded_by(at)}."
        for at in islice(excluded, min(NAMED, left_out))
    ]
    if left_out > NAMED:
        notes.append(f"{left_out - NAMED:,} more are excluded.")
    if len(runs) < count:
        notes.append("All other scheduled times of the next five years are excluded.")
    return replace(
        found, instants=tuple(at.astimezone(zone) for at in runs), notes=(*notes, *found.notes)
    )


def _calendar(manifest: CalendarManifest) -> CalendarVersion:
    spec = manifest.spec
    roll = calendar_service_pb2.Roll.Name(spec.roll).removeprefix("ROLL_")
    try:
        read = rules(
            dates=spec.dates,
            weekdays=spec.weekdays,
            ranges=[(getattr(span, "from"), span.to) for span in spec.ranges],
            cron=spec.cron,
            zone=spec.time_zone,
            roll=Roll.NONE if roll == "UNSPECIFIED" else Roll(roll),
        )
    except WrongRules as wrong:
        first, *others = wrong.faults
        raise CommandFailure(
            f"{manifest.where}: {first}",
            reason="WRONG_MANIFEST",
            details=[str(one) for one in others],
            remedy=first.hint or "fix the manifest",
        ) from None
    return CalendarVersion(spec.name, 0, read)
