"""Watch the runs of the demo's jobs: each change when it happens, and all runs for the verdict.

    follow ──each 0.3 s, runs newer than the oldest that hasn't ended──→ show, all_ended

Watching shows progress and finds the end; the verdict reads the runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import NoReturn

from schedclient import Attempt, Client, Job, Run
from showcase.verdict import Expected, Seen

PAGE = 1000
LOOK_EVERY = 0.3
LOOK_BACK = timedelta(seconds=20)
"""How late a run may appear after runs with later scheduled times."""


class Watch:
    """The known runs of some jobs."""

    def __init__(self, client: Client, show: Callable[[Run], None]) -> None:
        self._client = client
        self._show = show
        self._shown: set[tuple[str, str, int]] = set()
        self._live: dict[str, datetime] = {}
        self._ended: dict[str, set[datetime]] = {}
        self._newest: datetime | None = None
        self._changed = asyncio.Event()
        self.until: datetime | None = None
        """Runs of later scheduled times are not shown."""

    async def follow(self, jobs: Collection[Job]) -> NoReturn:
        """Record every change of these jobs' runs, until canceled."""
        self._newest = min(job.created_at for job in jobs if job.created_at)
        ours = {job.job_id for job in jobs}
        while True:
            runs = [run async for run in self._client.runs.list(after=self._mark())]
            for run in reversed(runs):
                if run.job_id in ours:
                    self._take(run)
            self._changed.set()
            await asyncio.sleep(LOOK_EVERY)

    async def all_ended(self, expected: Expected) -> None:
        """Return when the runs of all due times have ended, in any state."""
        while not self._ended.get(expected.job, set()).issuperset(expected.due):
            self._changed.clear()
            await self._changed.wait()

    def _mark(self) -> datetime:
        assert self._newest is not None
        return min([*self._live.values(), self._newest - LOOK_BACK]) - timedelta(milliseconds=1)

    def _take(self, run: Run) -> None:
        at = run.scheduled_at
        assert at is not None, "every run has a scheduled time"
        assert self._newest is not None
        self._newest = max(self._newest, at)
        if run.ended:
            self._live.pop(run.run_id, None)
            self._ended.setdefault(run.job or "", set()).add(at)
        else:
            self._live[run.run_id] = at
        state = (run.run_id, run.state, run.attempt)
        if state not in self._shown and (self.until is None or at <= self.until):
            self._shown.add(state)
            self._show(run)


async def due_instants(client: Client, job: Job, until: datetime) -> tuple[datetime, ...]:
    """Return the job's scheduled times since it was created, up to `until`, from its schedule."""
    found: list[datetime] = []
    after = job.created_at
    while True:
        page = await client.jobs.next(job.job_id, after=after, count=PAGE)
        found += [instant.scheduled_at for instant in page if instant.scheduled_at <= until]
        if len(page) < PAGE or page[-1].scheduled_at > until:
            return tuple(found)
        after = page[-1].scheduled_at


async def runs_seen(client: Client, job: Job, until: datetime) -> tuple[list[Run], list[Seen]]:
    """Return all runs of the job's scheduled times up to `until`, as values and for the verdict."""
    dead = {letter.run.run_id async for letter in client.dead_letters.list(job=job.job_id)}
    runs = [
        run
        async for run in client.runs.list(job=job.job_id)
        if run.scheduled_at is not None and run.scheduled_at <= until
    ]
    return runs, [Seen(run, await _tries(client, run), run.run_id in dead) for run in runs]


async def _tries(client: Client, run: Run) -> Sequence[Run | Attempt]:
    if run.assignments <= 1:
        return (run,) if run.started_at else ()
    attempts = await client.runs.attempts(run.run_id)
    started = [one for one in attempts if one.started_at is not None]
    return sorted(started, key=lambda one: one.fencing_token)
