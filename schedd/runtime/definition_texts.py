"""Parse stored definitions. Jobs with the same stored text share the parsed definition.

    row ──text known?──→ parsed definition ──this job's id, name, generation──→ CachedDefinition
             └─ no: parsed, compiled, and kept

Jobs submitted by the thousand, or created by a program, often differ only by id and name. Sharing
costs a fifth of parsing, and memory holds one message instead of many.
"""

from collections import OrderedDict
from contextlib import suppress
from dataclasses import field
from datetime import UTC, datetime
from typing import Final

from schedd.core.dispatch.placement import Need, job_need
from schedd.core.jobs.definition import Definition, Placement
from schedd.core.runs.deadlines import hurried, overdue
from schedd.core.runs.lifecycle import Reason
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import PinnedCalendar, StoredDefinition
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import CompiledSchedule, CronSchedule
from schedd.core.schedule.cron import is_hashed
from schedd.core.schedule.work_budget import ON_LOOP, TooMuchWork, limited
from schedd.core.timers.pre_dispatch import edited_away, may_be_fired_running
from schedd.runtime.job_codec import JobDefinition, check_dialect
from schedkit.records import dataclass, replace
from schedproto.v1 import job_pb2

MOST: Final = 1_024
"""Stored definitions that are remembered; beyond that the least recently used is dropped."""
LONGEST: Final = 4_096
"""Longest stored definition that is remembered, in bytes."""
ITSELF: Final = 800
"""Measured bytes of a definition without its text."""
ALONE: Final = 3_200
"""Bytes that a text takes, in addition to twice its length."""

NEVER_EDITED: Final = datetime.max.replace(tzinfo=UTC)
"""`edited_at` of a definition without a known time: no run was due after it."""

_Read = tuple[job_pb2.Job, Definition, Need, CompiledSchedule | None]
"""Message, definition, need and schedule that jobs of one text share. No schedule: each job
compiles its own.
"""
Words = tuple[bytes, str, tuple[PinnedCalendar, ...]]
"""Stored message, namespace, and pinned calendars."""


@dataclass(frozen=True, slots=True)
class CachedDefinition:
    """A definition with its compiled schedule, and the message that workers are sent."""

    definition: Definition
    compiled: CompiledSchedule
    spec: job_pb2.Job
    once: bool = False
    """Whether the job has only one run, after which the definition isn't needed."""
    edited_at: datetime = NEVER_EDITED
    """When its generation was created."""
    need: Need | None = None
    """The need of the job's runs, unless a run has a target or a parent; None: not computed."""
    words: int = ALONE
    """Approximate bytes of its text, besides `ITSELF`, however many jobs share it."""
    hurried: bool = field(init=False, compare=False)
    """Whether its definition can end a waiting run (`core/runs/deadlines.py`)."""
    plain_success: bool = field(init=False, compare=False)
    """Whether a run's success has no effect but its end: no notification, and no failure count. A
    notification of failures counts: a success ends them.
    """
    shares_steps: bool = field(init=False, compare=False)
    """Whether an on-time step of its timer depends on the job only by the schedule, its bounds, the
    delivery guarantee and the timer's times: no quota, jitter or exclusion.
    """

    generation: int = field(init=False, compare=False)
    """The definition's."""
    spreads: bool = field(init=False, compare=False)
    """Whether each run goes to any able worker, the one with most slots first."""
    fires_running: bool = field(init=False, compare=False)
    """Whether a run may be fired as RUNNING (`core/timers/pre_dispatch.py`)."""

    def __post_init__(self) -> None:
        definition, compiled = self.definition, self.compiled
        plain = definition.notices is None and not definition.pause_after_failures
        shares = not (definition.max_runs or compiled.bounds.jitter or compiled.exclusion)
        self.plain_success = plain  # type: ignore[misc]  # frozen for others
        self.shares_steps = shares  # type: ignore[misc]
        self.fires_running = may_be_fired_running(definition)  # type: ignore[misc]
        self.hurried = hurried(definition)  # type: ignore[misc]
        self.generation = definition.generation  # type: ignore[misc]
        spreads = definition.placement is Placement.SPREAD and not definition.prefer
        self.spreads = spreads and not definition.pool  # type: ignore[misc]

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
    """Recently read definitions, by their stored text."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._read: OrderedDict[Words, _Read] = OrderedDict()

    def known(self, row: StoredDefinition) -> CachedDefinition:
        """Return the definition of a job. Raises ValueError if it can't be read."""
        words = (row.spec, row.namespace, row.calendars)
        read = self._read.get(words) or _read(row)
        self._store_text(words, read)
        return self._definition(row, read)

    def shared(self, row: StoredDefinition) -> CachedDefinition | None:
        """Return the definition of a job if its text is remembered and little work is left."""
        words = (row.spec, row.namespace, row.calendars)
        read = self._read.get(words)
        if read is None or _is_costly(read[1]):
            return None
        with suppress(KeyError):  # the thread of large definitions has just removed it
            self._read.move_to_end(words)
        return self._definition(row, read)

    def _definition(self, row: StoredDefinition, read: _Read) -> CachedDefinition:
        spec, alike, need, schedule = read
        definition = replace(alike, job_id=row.job_id, generation=row.generation, name=row.name)
        if schedule is not None:
            schedule = replace(schedule, job_id=row.job_id)
        else:
            schedule = _compiled(definition)
        once = row.ephemeral or schedule.single is not None
        edited_at = row.updated_at or NEVER_EDITED
        return CachedDefinition(
            definition, schedule, spec, once, edited_at, need, ALONE + 2 * len(row.spec)
        )

    def _store_text(self, words: Words, read: _Read) -> None:
        if len(words[0]) > LONGEST:
            return
        self._read[words] = read
        with suppress(KeyError):  # removed by another thread
            self._read.move_to_end(words)
        if len(self._read) > self._most:
            self._read.popitem(last=False)


def _is_costly(definition: Definition) -> bool:
    """Return whether each job compiles its own schedule: it depends on the name, or dates move."""
    schedule = definition.schedule
    hashed = isinstance(schedule, CronSchedule) and any(map(is_hashed, schedule.expressions))
    return hashed or bool(definition.exclude)


def _read(row: StoredDefinition) -> _Read:
    read = JobDefinition.read(row)
    check_dialect(read.spec)
    definition = read.parsed
    schedule = None if _is_costly(definition) else _compiled(definition)
    return read.spec, definition, job_need(definition), schedule


def _compiled(definition: Definition) -> CompiledSchedule:
    return compiled_schedule.compile(
        definition.schedule,
        f"{definition.namespace}/{definition.name}",
        definition.job_id,
        definition.bounds,
        definition.exclude,
    )
