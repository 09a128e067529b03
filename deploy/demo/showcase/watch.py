"""Watch the runs of the demo's jobs: each change when it happens, and all runs for the verdict.

Watching shows progress; the verdict reads the runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from schedclient import Attempt, Client, Job, Run
from showcase.verdict import Expected, Seen

PAGE = 1000
LOOK_EVERY = 0.3


class Watch:
    """Shows the runs of some jobs. `until`: runs of later scheduled times aren't shown."""

    def __init__(self, client: Client, show: Callable[[Run], None]) -> None:
        self._client = client
        self._show = show
        self._shown: set[tuple[str, str, int]] = set()
        self.until: datetime | None = None

    async def follow(self, jobs: Collection[Job]) -> None:
        """Show every change of these jobs' runs, until canceled."""
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(self._follow(job), name=f"watch {job.name}")

    async def _follow(self, job: Job) -> None:
        async for run in self._client.runs.watch(job=job.job_id):
            at, state = run.scheduled_at, (run.run_id, run.state, run.attempt)
            late = self.until is not None and at is not None and at > self.until
            if state not in self._shown and not late:
                self._shown.add(state)
                self._show(run)


async def all_ended(client: Client, job: Job, expected: Expected) -> None:
    """Return when the runs of all due times have ended, in any state."""
    ended: set[datetime | None] = set()
    while not ended.issuperset(expected.due):
        runs = client.runs.list(job=job.job_id)
        ended = {run.scheduled_at async for run in runs if run.ended}
        await asyncio.sleep(LOOK_EVERY)


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
