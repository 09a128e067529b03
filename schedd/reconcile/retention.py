"""Delete data past its retention, at the owner of its shard: runs, logs, and their objects.

    a sweep:  old rows, a page at a time ─→ judged ─→ deleted, fenced
              old dead letters, unless kept without limit ─→ judged ─→ deleted, fenced
              jobs with a retention of their own ─→ their old runs ─→ deleted, fenced
              old logs, a page at a time ─→ judged ─→ deleted, fenced
              objects whose rows are deleted ─→ removed from the result store ─→ recorded, fenced
    then a pause

After each page the loop waits four times as long as the page took: due runs have priority.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from schedd.core.events import Deleted
from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.runs.model import RunKey
from schedd.core.runs.retention import EndedRun, Retention, is_over, log_is_over
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.ports import ResultObjects
from schedd.store.reconcile.retention import RetentionStore
from schedkit.clock import boottime
from schedkit.set_aside import each
from schedkit.tasks import Loop

PAGE: Final = 500
JOBS: Final = 1_000
OBJECTS: Final = 100
SHARE: Final = 4
"""The pause after a page is this many times the length of reading it."""
BETWEEN: Final = (0.02, 5.0)
"""Shortest and longest pause after a page, in seconds."""
SWEEP_EVERY: Final = (2.0, 600.0)
"""Shortest and longest interval of sweeps, in seconds; in between, a tenth of the shortest
retention.
"""

_FIRST: Final = Id.from_int(0)
_BEGINNING: Final = RunKey(datetime.fromisoformat("0001-01-02T00:00:00+00:00"), RunId(_FIRST))


class RetentionLoop(OwnerPart):
    def __init__(
        self,
        context: OwnerContext,
        retention_store: RetentionStore,
        objects: ResultObjects,
        retention: Retention,
    ) -> None:
        super().__init__(context)
        self._retention_store = retention_store
        self._objects, self._retention = objects, retention
        self._sweep: AsyncIterator[None] | None = None
        least, most = SWEEP_EVERY
        self._every = min(most, max(least, self._retention.shortest.total_seconds() / 10))
        self.loop = Loop("retention", self.step, interval=self._every)

    async def step(self) -> float:
        """Process one page; return the seconds until the next page or sweep."""
        began = boottime()
        sweep = self._sweep = self._sweep or self._pages()
        try:
            await anext(sweep)
        except StopAsyncIteration:
            self._sweep = None
            return self._every
        except BaseException:
            self._sweep = None  # a generator that raised can't continue
            raise
        least, most = BETWEEN
        return min(most, max(least, SHARE * (boottime() - began)))

    async def _pages(self) -> AsyncIterator[None]:
        """Run a sweep; each step processes one page."""
        async for _ in self._by_key():
            yield
        async for _ in self._letters():
            yield
        async for _ in self._by_job():
            yield
        async for _ in self._logs():
            yield
        async for _ in self._unwanted():
            yield

    @property
    def _shards(self) -> list[ShardId]:
        return sorted(self._run_index.ownership.epochs)

    async def _by_key(self) -> AsyncIterator[None]:
        """Delete old runs by the cluster's retention, except waiting dead letters."""
        after, now = _BEGINNING, self._clock.now()
        before = ago(now, self._retention.runs)
        while self._shards:
            page = await self._retention_store.old_runs(self._shards, after, before, PAGE)
            if page.last is None:
                return
            after = page.last
            plain = [run for run in page.runs if run.own is None and not run.waits]
            await self._delete(self._expired_runs(plain, now))
            yield

    async def _letters(self) -> AsyncIterator[None]:
        """Delete old dead letters if the cluster limits their retention.

        They are read separately: with a shorter retention than other runs, each sweep would read
        all of those.
        """
        after, now = _BEGINNING, self._clock.now()
        if self._retention.dead_letters is None:
            return
        before = ago(now, self._retention.dead_letters)
        while self._shards:
            page = await self._retention_store.old_letters(self._shards, after, before, PAGE)
            if page.last is None:
                return
            after = page.last
            waiting = [run for run in page.runs if run.waits]
            await self._delete(self._expired_runs(waiting, now))
            yield

    async def _by_job(self) -> AsyncIterator[None]:
        """Delete old runs of jobs with a retention of their own.

        A run that can't be deleted is skipped. It delays neither later runs of its job nor other
        jobs.
        """
        after = JobId(_FIRST)
        while jobs := await self._retention_store.with_retention(after, JOBS):
            past = dict.fromkeys(jobs, _BEGINNING)
            while self._shards:
                now = self._clock.now()
                page = await self._retention_store.old_runs_of(self._shards, past, now, PAGE)
                if not page:
                    break
                for run in page:
                    past[run.job_id] = max(
                        past[run.job_id], run.key, key=lambda key: (key.scheduled_at, key.run_id)
                    )
                await self._delete(self._expired_runs(page, now))
                yield
            after = jobs[-1]
            yield

    async def _logs(self) -> AsyncIterator[None]:
        """Delete logs of runs that are kept longer than their logs."""
        after, now = _BEGINNING, self._clock.now()
        before = ago(now, self._retention.logs)
        while self._shards:
            page = await self._retention_store.old_logs(self._shards, after, before, PAGE)
            if page.last is None:
                return
            after = page.last
            over = _chosen(page.runs, lambda run: log_is_over(run, self._retention, now))
            gone = await self._transactor.rows(over, self._retention_store.delete_logs)
            self._emit(Deleted(logs=len(gone)))
            yield

    def _expired_runs(self, runs: Iterable[EndedRun], now: datetime) -> list[EndedRun]:
        return _chosen(runs, lambda run: is_over(run, self._retention, now))

    async def _delete(self, over: list[EndedRun]) -> None:
        gone = await self._transactor.rows(over, self._retention_store.delete_runs)
        self._emit(Deleted(runs=len(gone)))

    async def _unwanted(self) -> AsyncIterator[None]:
        """Delete objects whose rows are deleted. Objects that the store fails to delete are tried
        again after all others; if it deletes none, at the next sweep.
        """
        left: set[str] = set()
        while self._shards:
            found = await self._retention_store.unwanted(self._shards, OBJECTS)
            asked = [one for one in found if one.place not in left]
            if not asked:
                return
            removed, stuck = await self._objects.remove([one.place for one in asked])
            aside = [one for one in asked if one.place in stuck]
            await self._transactor.rows(aside, self._retention_store.put_aside)
            done = [one for one in asked if one.place in removed]
            gone = set(await self._transactor.rows(done, self._retention_store.forget_objects))
            left |= {*removed, *stuck} - gone
            self._emit(Deleted(objects=len(gone)))
            if not gone:
                return
            yield


def _chosen(runs: Iterable[EndedRun], is_over: Callable[[EndedRun], bool]) -> list[EndedRun]:
    judged = each("ended run", runs, lambda run: (run, is_over(run)))
    return [run for run, over in judged if over]


def ago(now: datetime, length: timedelta) -> datetime:
    """Return the time `length` ago, or the earliest possible one."""
    try:
        return now - length
    except OverflowError:
        return _BEGINNING.scheduled_at
