"""Delete data past its retention, at the owner of its shard: runs, dead letters, runs of jobs with
a retention of their own, logs, and objects of the result store whose rows are deleted.

A sweep reads old rows a page at a time, judges them, and deletes them fenced. After each page the
loop waits four times as long as the page took: due runs have priority.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from schedd.core.events import Deleted
from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.runs.model import RunKey
from schedd.core.runs.retention import EndedRun, OldRuns, Retention, is_over, log_is_over
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
        store, kept = self._retention_store, self._retention
        sweeps = (
            self._old(store.old_runs, kept.runs, lambda run: run.own is None and not run.waits),
            # Letters have a sweep of their own: with a shorter retention than other runs, each
            # sweep would read all of those.
            self._old(store.old_letters, kept.dead_letters, lambda run: run.waits),
            self._by_job(),
            self._old(store.old_logs, kept.logs, lambda _: True, logs=True),
            self._unwanted(),
        )
        for sweep in sweeps:
            async for _ in sweep:
                yield

    @property
    def _shards(self) -> list[ShardId]:
        return sorted(self._run_index.ownership.epochs)

    async def _old(
        self,
        read: Callable[[list[ShardId], RunKey, datetime, int], Awaitable[OldRuns]],
        kept: timedelta | None,
        applies: Callable[[EndedRun], bool],
        *,
        logs: bool = False,
    ) -> AsyncIterator[None]:
        """Delete the runs to which a retention of the cluster applies, or only their logs."""
        after, now = _BEGINNING, self._clock.now()
        while kept is not None and self._shards:
            page = await read(self._shards, after, ago(now, kept), PAGE)
            if page.last is None:
                return
            after = page.last
            await self._delete(filter(applies, page.runs), now, logs=logs)
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
                await self._delete(page, now)
                yield
            after = jobs[-1]
            yield

    async def _delete(self, runs: Iterable[EndedRun], now: datetime, *, logs: bool = False) -> None:
        expired = log_is_over if logs else is_over
        judged = each("ended run", runs, lambda run: (run, expired(run, self._retention, now)))
        over = [run for run, is_expired in judged if is_expired]
        if logs:
            gone = await self._transactor.rows(over, self._retention_store.delete_logs)
            self._emit(Deleted(logs=len(gone)))
        else:
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


def ago(now: datetime, length: timedelta) -> datetime:
    """Return the time `length` ago, or the earliest possible one."""
    try:
        return now - length
    except OverflowError:
        return _BEGINNING.scheduled_at
