"""Cache of definitions: read once, compiled once, the newest generation seen of each job.

The database decides with which generation a run is dispatched: the assign statement compares it. So
a stale entry costs a refused draft and another read, never a wrong run.

Invariant: a caller gets the definitions cached at its call and those read for it, even if others
forget them meanwhile. A definition that is missing from an answer can't be read.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Final

from schedd.core.dispatch.placement import Need, need_of
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Definition, Placement, Priority
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import NEVER_EDITED, JobOfText, StoredDefinition, StoredText
from schedd.core.schedule.work_budget import ON_LOOP, TooMuchWork, limited
from schedd.core.timers.pre_dispatch import may_be_pre_dispatched
from schedd.runtime.budgeted_work import computed
from schedd.runtime.definition_texts import CachedDefinition, DefinitionText, DefinitionTexts
from schedd.store.owner import OwnerStore
from schedkit.set_aside import set_aside
from schedkit.tasks import in_turns

log = logging.getLogger(__name__)

CAPACITY: Final = 128 * 1024 * 1024
"""Limit of the cache in bytes, approximately; beyond it the least recently used definition is
dropped. That is 330,000 jobs with shared texts, as many as fall due in a minute at 5,500 a second,
or 37,000 jobs without.
"""
ITSELF: Final = 400
"""Measured bytes of a job in the cache, without its text and a schedule of its own."""
MOST_UNREADABLE: Final = 1_000


class DefinitionCache:
    any_late = False
    """Whether a definition was read whose job notifies about late runs."""
    any_broadcast = False
    """Whether a definition of a broadcast was read."""

    def __init__(self, store: OwnerStore, capacity: int = CAPACITY) -> None:
        self._store = store
        self._capacity = capacity
        self._known: OrderedDict[JobId, CachedDefinition] = OrderedDict()
        self._taken = 0
        self._sharing: Counter[DefinitionText] = Counter()
        """Number of cached jobs by text."""
        self._texts = DefinitionTexts()
        self._unreadable: dict[JobId, int] = {}

    async def at_generations(self, wanted: dict[JobId, int]) -> dict[JobId, CachedDefinition]:
        """Return definitions at least as new as these generations, without those that can't be
        read.
        """
        found = self.cached(wanted)
        stale = [
            job
            for job, generation in wanted.items()
            if job not in found or found[job].definition.generation < generation
        ]
        for job in stale:
            found.pop(job, None)
        return found | await self._read(stale)

    async def of_runs(self, runs: Iterable[LiveRun]) -> dict[JobId, CachedDefinition]:
        """Return definitions at least as new as the generations of these runs' attempts."""
        wanted: dict[JobId, int] = {}
        for run in runs:
            wanted[run.job_id] = max(run.generation, wanted.get(run.job_id, 0))
        return await self.at_generations(wanted)

    async def newest(self, jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        """Return the cached definitions of these jobs; read the missing ones. Unreadable ones are
        left out.
        """
        found = self.cached(jobs)
        if len(found) == len(jobs):
            return found
        return found | await self._read([job for job in jobs if job not in found])

    def add_stored(self, rows: Iterable[StoredDefinition], *, dispatched: bool = False) -> None:
        """Cache definitions that this member stores, so that they aren't read back. A definition
        that takes much work is left to the next read.

        They fill at most half of the cache: thousands of submitted runs that wait don't evict the
        definitions of schedules. `dispatched`: their runs are dispatched now, so each is cached.
        """
        for row in rows:
            if row.job_id in self._known or not (dispatched or self.has_room()):
                continue
            with suppress(ValueError, TooMuchWork), limited(ON_LOOP):
                entry = self._texts.of_job(row.text, row.job_id, row.name, NEVER_EDITED)
                self._keep(entry.text, {row.job_id: entry})
        self._drop_excess()

    def cached(self, jobs: Iterable[JobId]) -> dict[JobId, CachedDefinition]:
        known = self._known.get
        found = {job: entry for job in jobs if (entry := known(job)) is not None}
        if not self.has_room():
            for job in found:
                self._known.move_to_end(job)
        return found

    def has_room(self) -> bool:
        """Return whether the cache is less than half full, so that nothing is dropped soon."""
        return self._taken <= self._capacity // 2

    def knows(self, job: JobId) -> bool:
        return job in self._known

    def definition_of(self, job: JobId) -> Definition | None:
        known = self._known.get(job)
        return None if known is None else known.definition

    def priority_of(self, job: JobId) -> Priority:
        known = self._known.get(job)
        return Priority.MEDIUM if known is None else known.definition.priority

    def need_of(self, run: LiveRun) -> Need | None:
        """Return the need of a broadcast or of its child, as far as cached; None for other runs.
        Only these needs don't depend on free slots.
        """
        known = self.known_of(run.job_id) if self.any_broadcast else None
        if known is None or known.definition.placement is not Placement.BROADCAST:
            return None
        return need_of(known.definition, run)

    def early_need_of(self, run: LiveRun) -> Need | None:
        """Return its need if the cached definition allows pre-dispatch; None otherwise."""
        known = self._known.get(run.job_id)
        if known is None or not may_be_pre_dispatched(run, known.definition, known.compiled):
            return None
        return need_of(known.definition, run)

    def known_of(self, job: JobId) -> CachedDefinition | None:
        return self._known.get(job)

    def paces(self, run: LiveRun) -> bool:
        definition = self.definition_of(run.job_id)
        return definition is not None and run.paced_by(definition)

    def slots_of(self, job: JobId) -> int:
        definition = self.definition_of(job)
        return 1 if definition is None else definition.slots

    def clear(self) -> None:
        """Forget all: a restored database may reuse generations."""
        self._known.clear()
        self._sharing.clear()
        self._taken = 0

    def forget(self, jobs: Iterable[JobId]) -> None:
        """Forget these jobs: their definitions are read again when requested."""
        self._drop({job for job in jobs if job in self._known})

    def forget_ended(self, jobs: Iterable[JobId]) -> None:
        """Forget jobs that run only once, of those with an ended run."""
        known = self._known.get
        self._drop({job for job in jobs if (entry := known(job)) is not None and entry.text.once})

    async def _read(self, jobs: list[JobId]) -> dict[JobId, CachedDefinition]:
        """Return the definitions that were read, even if others forget them meanwhile."""
        found: dict[JobId, CachedDefinition] = {}
        stored = await self._store.definitions_by_text(jobs) if jobs else {}
        async for key, its in in_turns(stored.items()):
            text = self._texts.remembered(key)
            if text is None or text.compiled is None:
                found |= await self._compute(key, its)
            else:
                found |= self._keep(text, {one[0]: text.of_job(*one) for one in its})
        self._drop_excess()
        return found

    def _drop_excess(self) -> None:
        while self._taken > self._capacity and len(self._known) > 1:
            self.forget([next(iter(self._known))])

    async def _compute(
        self, text: StoredText, jobs: Sequence[JobOfText]
    ) -> dict[JobId, CachedDefinition]:
        """Cache and return the definitions of jobs with a text that must be parsed, or with
        schedules of their own. A definition that can't be read is logged once and left out, so
        that it doesn't end the loops: a newer member wrote it, or its time zone was removed.
        """
        found: dict[JobId, CachedDefinition] = {}
        async for job, name, edited_at in in_turns(jobs):
            put_aside = partial(self._set_aside, job, name, text.generation)  # logs it once
            with set_aside("definition", name, then=put_aside, logged=False):
                entry = await computed(partial(self._texts.of_job, text, job, name, edited_at))
                found |= self._keep(entry.text, {job: entry})
        return found

    def _keep(
        self, text: DefinitionText, found: dict[JobId, CachedDefinition]
    ) -> dict[JobId, CachedDefinition]:
        notices = text.definition.notices
        self.any_late |= notices is not None and notices.late is not None
        self.any_broadcast |= text.definition.placement is Placement.BROADCAST
        self._drop(found.keys() & self._known.keys())
        self._known.update(found)
        self._taken += (ITSELF + text.each) * len(found)
        self._taken += 0 if self._sharing[text] else text.size
        self._sharing[text] += len(found)
        return found

    def _set_aside(self, job: JobId, name: str, generation: int, why: Exception) -> None:
        self.forget([job])
        if self._unreadable.get(job) != generation:
            log.error("the definition of job %s can't be read: %s", name or job, why)
        self._unreadable[job] = generation
        while len(self._unreadable) > MOST_UNREADABLE:
            del self._unreadable[next(iter(self._unreadable))]

    def _drop(self, jobs: Set[JobId]) -> None:
        gone = Counter([entry.text for entry in map(self._known.pop, jobs)])
        for text, count in gone.items():
            self._taken -= (ITSELF + text.each) * count
            self._sharing[text] -= count
            if not self._sharing[text]:
                del self._sharing[text]
                self._taken -= text.size
