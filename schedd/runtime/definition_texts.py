"""Definitions read from their words: jobs of the same words share what was read.

    row ──words known?──→ what was read of them ──this job's id, name, generation──→ Known
             └─ no: read, compiled; kept for the next

What is submitted by the thousand, and what a program makes, differs by its id and name alone. So
it costs a fifth of reading it, and one message is held instead of many.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from schedd.core.ids import JobId
from schedd.core.jobs.definition import Definition
from schedd.core.runs.deadlines import overdue
from schedd.core.runs.lifecycle import Reason
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import PinnedCalendar, StoredDefinition
from schedd.core.schedule.compiled_schedule import CompiledSchedule
from schedd.core.schedule.work_budget import ON_LOOP, TooMuchWork, limited
from schedd.core.timers.pre_dispatch import edited_away
from schedd.runtime.job_codec import check_dialect, compiled, definition_of, stored_spec
from schedkit.records import dataclass, replace
from schedproto.v1 import job_pb2

MOST: Final = 1_024
"""Stored definitions that are remembered; beyond that the least recently used is dropped."""
LONGEST: Final = 4_096
"""Longest stored definition that is remembered, in bytes."""
ITSELF: Final = 800
"""Bytes that a definition takes but for its words, as was measured."""
ALONE: Final = 3_200
"""Bytes that its words take, beside twice their length."""

NEVER_EDITED: Final = datetime.max.replace(tzinfo=UTC)
"""`edited_at` of a definition without a known time: no run was due after it."""

_NO_JOB: Final = JobId(UUID(int=0))

Words = tuple[bytes, str, tuple[PinnedCalendar, ...]]
"""The stored message, the namespace, and the calendars that it names."""


@dataclass(frozen=True, slots=True)
class CachedDefinition:
    """A definition with its schedule compiled, and the message that a worker is sent."""

    definition: Definition
    compiled: CompiledSchedule
    spec: job_pb2.Job
    once: bool = False
    """It has one run, and isn't needed afterwards."""
    edited_at: datetime = NEVER_EDITED
    """When its generation was made."""
    words: int = ALONE
    """Bytes that its words take, about, beside `ITSELF`, however many jobs share them."""

    def ends(self, run: LiveRun, now: datetime) -> Reason | None:
        """Return why a waiting run of it must end now; None if it may wait longer."""
        if self._edited_away(run):
            return Reason.EDITED if run.ready_at <= now else None
        return overdue(run, self.definition, now)

    def _edited_away(self, run: LiveRun) -> bool:
        """As `edited_away`; a run stays where finding that out takes too much work."""
        try:
            with limited(ON_LOOP):
                return edited_away(run, self.definition, self.compiled, self.edited_at)
        except TooMuchWork:
            return False


class DefinitionTexts:
    """Recently read definitions, by their stored text."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._read: OrderedDict[Words, tuple[job_pb2.Job, Definition]] = OrderedDict()

    def known(self, row: StoredDefinition) -> CachedDefinition:
        """The definition of a job. Raises ValueError when it can't be read."""
        words = (row.spec, row.namespace, row.calendars)
        spec, alike = self._read.get(words) or _read(words)
        self._keep(words, (spec, alike))
        definition = replace(alike, job_id=row.job_id, generation=row.generation, name=row.name)
        schedule = compiled(definition)
        once = row.ephemeral or schedule.single is not None
        edited_at = row.updated_at or NEVER_EDITED
        return CachedDefinition(
            definition, schedule, spec, once, edited_at, ALONE + 2 * len(row.spec)
        )

    def _keep(self, words: Words, read: tuple[job_pb2.Job, Definition]) -> None:
        if len(words[0]) > LONGEST:
            return
        self._read[words] = read
        self._read.move_to_end(words)
        if len(self._read) > self._most:
            self._read.popitem(last=False)


def _read(words: Words) -> tuple[job_pb2.Job, Definition]:
    """All but whose it is."""
    spec, namespace, calendars = words
    message = stored_spec(spec)
    check_dialect(message)
    return message, definition_of(message, _NO_JOB, 0, namespace, "", calendars)
