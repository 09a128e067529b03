"""Parse stored definitions. Jobs with the same stored text share all that depends on the text only.

    StoredText ──remembered?──→ DefinitionText ──names and times of its jobs──→ CachedDefinition
                   └─ no: parsed, compiled, and remembered

Jobs submitted by the thousand have no name and were never edited: they share a `CachedDefinition`,
too. Jobs that a program created often differ only by name.
"""

from collections import OrderedDict
from contextlib import suppress
from dataclasses import field
from datetime import datetime
from typing import Final

from schedd.core.dispatch.placement import Need, job_need
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Definition, Placement
from schedd.core.runs.deadlines import hurried, overdue
from schedd.core.runs.lifecycle import Reason
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import NEVER_EDITED, StoredDefinition, StoredText
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import AtSchedule, CompiledSchedule, CronSchedule
from schedd.core.schedule.cron import is_hashed
from schedd.core.schedule.work_budget import ON_LOOP, TooMuchWork, limited
from schedd.core.timers.pre_dispatch import edited_away, may_be_fired_running
from schedd.runtime.job_codec import JobDefinition, check_dialect
from schedkit.records import dataclass
from schedproto.v1 import job_pb2

MOST: Final = 1_024
"""Texts that are remembered; beyond that the least recently used is dropped."""
LONGEST: Final = 4_096
"""Longest text that is remembered, in bytes."""
ALONE: Final = 3_200
"""Bytes that a parsed text takes, in addition to twice its length."""
OWN_SCHEDULE: Final = 1_000
"""Measured bytes of a schedule that a job compiles for itself."""


@dataclass(frozen=True, slots=True, eq=False)
class DefinitionText:
    """The common part of definitions with one stored text."""

    definition: Definition
    spec: job_pb2.Job
    """The message that workers are sent."""
    compiled: CompiledSchedule | None
    """None: the schedule depends on the job's id or name, so each job compiles its own."""
    once: bool = False
    """Whether each job has only one run, after which its definition isn't needed."""
    size: int = ALONE
    """Approximate bytes, however many jobs share it."""
    each: int = field(init=False)
    """Approximate bytes that each of the jobs adds."""
    need: Need = field(init=False)
    """The need of the jobs' runs, unless a run has a target or a parent."""
    hurried: bool = field(init=False)
    """Whether the definition can end a waiting run (`core/runs/deadlines.py`)."""
    plain_success: bool = field(init=False)
    """Whether a run's success has no effect but its end: no notification, and no failure count. A
    notification of failures counts: a success ends them.
    """
    shares_steps: bool = field(init=False)
    """Whether an on-time step of a timer depends on the job only by the schedule, its bounds, the
    delivery guarantee and the timer's times, if the schedule excludes none: no quota or jitter.
    """
    spreads: bool = field(init=False)
    """Whether each run goes to any able worker, the one with most slots first."""
    fires_running: bool = field(init=False)
    """Whether a run may be fired as RUNNING (`core/timers/pre_dispatch.py`)."""

    _unnamed: "CachedDefinition | None" = field(init=False, default=None)
    """The definition of all jobs without a name that weren't edited."""

    def __post_init__(self) -> None:
        definition = self.definition
        plain = definition.notices is None and not definition.pause_after_failures
        spreads = definition.placement is Placement.SPREAD and not definition.prefer
        self.each = OWN_SCHEDULE if self.compiled is None else 0  # type: ignore[misc]
        self.need = job_need(definition)  # type: ignore[misc]  # frozen for others
        self.hurried = hurried(definition)  # type: ignore[misc]
        self.plain_success = plain  # type: ignore[misc]
        self.shares_steps = not (definition.max_runs or definition.bounds.jitter)  # type: ignore[misc]
        self.spreads = spreads and not definition.pool  # type: ignore[misc]
        self.fires_running = may_be_fired_running(definition)  # type: ignore[misc]

    def of_job(self, job: JobId, name: str, edited_at: datetime) -> "CachedDefinition":
        """Return the definition of a job. If the job compiles its own schedule, that raises
        ScheduleError, and TooMuchWork past a budget.
        """
        compiled = self.compiled
        if compiled is None:
            compiled = _compiled(self.definition, job, name)
        elif not name and edited_at is NEVER_EDITED:
            if self._unnamed is None:
                self._unnamed = CachedDefinition(self, compiled)  # type: ignore[misc]
            return self._unnamed
        return CachedDefinition(self, compiled, name, edited_at)


@dataclass(frozen=True, slots=True, eq=False)
class CachedDefinition:
    """The definition of a job, or of several that differ only by their ids."""

    text: DefinitionText
    compiled: CompiledSchedule
    name: str = ""
    edited_at: datetime = NEVER_EDITED
    """When its generation was created."""

    @property
    def definition(self) -> Definition:
        return self.text.definition

    def ends(self, run: LiveRun, now: datetime) -> Reason | None:
        """Return why a waiting run of the job must end now; None if it may wait longer."""
        if self._edited_away(run):
            return Reason.EDITED if run.ready_at <= now else None
        return overdue(run, self.definition, now)

    def _edited_away(self, run: LiveRun) -> bool:
        """Return the result of `edited_away`; False if that takes too much work: the run stays."""
        try:
            with limited(ON_LOOP):
                return edited_away(run, self.definition, self.compiled, self.edited_at)
        except TooMuchWork:
            return False


class DefinitionTexts:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._read: OrderedDict[StoredText, DefinitionText] = OrderedDict()

    def remembered(self, text: StoredText) -> DefinitionText | None:
        """Return a text without work; None if it must be read."""
        found = self._read.get(text)
        if found is not None:
            with suppress(KeyError):  # the thread of large definitions has just removed it
                self._read.move_to_end(text)
        return found

    def of_job(
        self, text: StoredText, job: JobId, name: str, edited_at: datetime
    ) -> CachedDefinition:
        """Return the definition of a job with this text. Raises ValueError if it can't be read."""
        found = self.remembered(text)
        if found is None:
            found = _read(text, job, name)
            if len(text.spec) <= LONGEST:
                self._read[text] = found
            if len(self._read) > self._most:
                self._read.popitem(last=False)
        return found.of_job(job, name, edited_at)


def _read(text: StoredText, job: JobId, name: str) -> DefinitionText:
    row = StoredDefinition(
        *(job, text.generation, text.namespace, name, text.spec),
        paused=False,
        calendars=text.calendars,
    )
    read = JobDefinition.read(row)
    check_dialect(read.spec)
    definition = read.parsed
    compiled = _compiled(definition, job, name)
    once = text.ephemeral or isinstance(definition.schedule, AtSchedule)
    shared = None if _depends_on_job(definition) else compiled
    return DefinitionText(definition, read.spec, shared, once, ALONE + 2 * len(text.spec))


def _depends_on_job(definition: Definition) -> bool:
    """Return whether the schedule has times that are hashed from the job's name or id."""
    schedule = definition.schedule
    hashed = isinstance(schedule, CronSchedule) and any(map(is_hashed, schedule.expressions))
    return hashed or bool(definition.bounds.jitter)


def _compiled(definition: Definition, job: JobId, name: str) -> CompiledSchedule:
    return compiled_schedule.compile(
        definition.schedule,
        f"{definition.namespace}/{name}",
        job,
        definition.bounds,
        definition.exclude,
    )
