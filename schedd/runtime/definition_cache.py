"""Cache of definitions: read once, compiled once, the newest generation seen of each job.

The database decides with which generation a run is dispatched: the assign statement compares it. So
a stale entry costs a refused draft and another read, never a wrong run.

Invariant: a caller gets the definitions cached at its call and those read for it, even if others
forget them meanwhile. A definition that is missing from an answer can't be read.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from schedd.core.dispatch.placement import Need, need_of
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Definition, Placement, Priority
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import StoredDefinition
from schedd.core.schedule.work_budget import ON_LOOP, TooMuchWork, limited
from schedd.core.timers.pre_dispatch import may_be_pre_dispatched
from schedd.runtime.definition_texts import ITSELF, CachedDefinition, DefinitionTexts
from schedd.runtime.owner_work import computed
from schedd.store.owner import OwnerStore
from schedkit.set_aside import set_aside
from schedkit.tasks import in_turns

log = logging.getLogger(__name__)

CAPACITY: Final = 128 * 1024 * 1024
"""Limit of the cache in bytes, approximately; beyond it the least recently used definition is
dropped. That is 160,000 jobs with shared texts, as many as fall due in a minute at 2,600 a second,
or 30,000 jobs without.
"""
MOST_UNREADABLE: Final = 1_000


class DefinitionCache:
    """Job → newest known definition."""

    any_late = False
    """Whether a definition was read whose job notifies about late runs."""
    any_broadcast = False
    """Whether a definition of a broadcast was read."""

    def __init__(self, store: OwnerStore, capacity: int = CAPACITY) -> None:
        self._store = store
        self._capacity = capacity
        self._known: OrderedDict[JobId, CachedDefinition] = OrderedDict()
        self._taken = 0
        self._sharing: Counter[int] = Counter()
        """Number of cached definitions that share a text, by the id of their message."""
        self._wordings = DefinitionTexts()
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
        return found | await self._read([job for job in jobs if job not in found])

    def add_stored(self, rows: Iterable[StoredDefinition]) -> None:
        """Cache definitions that this member has just stored, so that they aren't read back.

        They fill at most half of the cache: thousands of submitted runs that wait don't evict the
        definitions of schedules. A definition that takes much work is left to the next read.
        """
        for row in rows:
            if row.job_id in self._known or self._taken > self._capacity // 2:
                continue
            with suppress(ValueError, TooMuchWork), limited(ON_LOOP):
                self._store_definition(row.job_id, self._wordings.known(row))

    def cached(self, jobs: Iterable[JobId]) -> dict[JobId, CachedDefinition]:
        known = self._known
        found = {job: known[job] for job in jobs if job in known}
        if self._taken > self._capacity // 2:  # before that, nothing is dropped soon
            for job in found:
                known.move_to_end(job)
        return found

    def knows(self, job: JobId) -> bool:
        return job in self._known

    def definition_of(self, job: JobId) -> Definition | None:
        """Return the cached definition; None if there is none."""
        known = self._known.get(job)
        return None if known is None else known.definition

    def priority_of(self, job: JobId) -> Priority:
        """Return the priority by the cached definition; MEDIUM without one."""
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
        """Return the cached definition with its schedule; None if there is none."""
        return self._known.get(job)

    def paces(self, run: LiveRun) -> bool:
        """Return whether the run is paced, by the cached definition; False without one."""
        definition = self.definition_of(run.job_id)
        return definition is not None and run.paced_by(definition)

    def slots_of(self, job: JobId) -> int:
        """Return the slots of a run by the cached definition; 1 without it."""
        definition = self.definition_of(job)
        return 1 if definition is None else definition.slots

    def clear(self) -> None:
        """Forget all: a restored database may reuse generations."""
        self._known.clear()
        self._sharing.clear()
        self._taken = 0

    def forget(self, jobs: Iterable[JobId]) -> None:
        """Forget these jobs: their definitions are read again when requested."""
        known = self._known
        gone = [known.pop(job) for job in jobs if job in known]
        self._taken -= ITSELF * len(gone)
        sizes = {id(each.spec): each.words for each in gone}
        for words, count in Counter([id(each.spec) for each in gone]).items():
            self._sharing[words] -= count
            if not self._sharing[words]:
                del self._sharing[words]
                self._taken -= sizes[words]

    def forget_ended(self, jobs: Iterable[JobId]) -> None:
        """Forget jobs that run only once, of those with an ended run."""
        known = self._known
        self.forget([job for job in jobs if job in known and known[job].once])

    async def _read(self, jobs: list[JobId]) -> dict[JobId, CachedDefinition]:
        """Return the definitions that were read, even if others forget them meanwhile."""
        found: dict[JobId, CachedDefinition] = {}
        stored = await self._store.definitions(jobs) if jobs else {}
        async for job, row in in_turns(stored.items()):
            if (known := await self._add_definition(job, row)) is not None:
                found[job] = known
        while self._taken > self._capacity and len(self._known) > 1:
            self.forget([next(iter(self._known))])
        return found

    async def _add_definition(self, job: JobId, row: StoredDefinition) -> CachedDefinition | None:
        """Cache a definition.

        A definition that can't be read is logged once and left out, so that it doesn't end the
        loops: a newer member wrote it, or its time zone was removed.
        """
        known: CachedDefinition | None = None
        put_aside = partial(self._set_aside, job, row)  # logs it once
        with set_aside("definition", row.name, then=put_aside, logged=False):
            known = self._wordings.shared(row)
            known = known or await computed(partial(self._wordings.known, row))
        if known is None:
            return None
        self._store_definition(job, known)
        return known

    def _store_definition(self, job: JobId, known: CachedDefinition) -> None:
        notices = known.definition.notices
        self.any_late |= notices is not None and notices.late is not None
        self.any_broadcast |= known.definition.placement is Placement.BROADCAST
        if job in self._known:
            self.forget([job])
        self._known[job] = known
        words = id(known.spec)
        self._taken += ITSELF if self._sharing[words] else ITSELF + known.words
        self._sharing[words] += 1

    def _set_aside(self, job: JobId, row: StoredDefinition, why: Exception) -> None:
        self.forget([job])
        if self._unreadable.get(job) != row.generation:
            log.error("the definition of job %s can't be read: %s", row.name or job, why)
        self._unreadable[job] = row.generation
        while len(self._unreadable) > MOST_UNREADABLE:
            del self._unreadable[next(iter(self._unreadable))]
