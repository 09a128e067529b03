"""The loop of retention: what it reads, and that what has to stay keeps nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.runs.model import Claim, RunKey
from schedd.core.runs.retention import EndedRun, OldRuns, Retention, Unwanted
from schedd.dispatch.run_index import RunIndex
from schedd.reconcile.retention import OBJECTS, RetentionLoop
from schedd.store.reconcile.retention import RetentionStore
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import NOW, owning

DAY = timedelta(days=1)
AT_ONCE = 100
"""Of one job, in a page."""


@fake_of(RetentionStore, besides=("remove", "check"))
class Rows:
    """Old rows and unwanted objects, in memory; `stays`: what the database doesn't delete."""

    def __init__(self, *runs: EndedRun) -> None:
        self.runs = sorted(runs, key=_key)
        self.stays: set[RunId] = set()
        self.objects: list[str] = []
        self.stuck: set[str] = set()
        self.asked: list[str] = []
        self.read = 0

    def _page(self, some: list[EndedRun], after: RunKey, before: datetime, limit: int) -> OldRuns:
        old = [run for run in some if run.key.scheduled_at < before and _key(run) > _of(after)]
        self.read += len(old[:limit])
        return OldRuns(old[:limit], old[:limit][-1].key if old else None)

    async def old_runs(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        return self._page(self.runs, after, before, limit)

    async def old_letters(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        return self._page([run for run in self.runs if run.waits], after, before, limit)

    async def old_logs(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        return OldRuns([], None)

    async def with_retention(self, after: JobId, limit: int) -> list[JobId]:
        found = sorted({run.job_id for run in self.runs if run.own is not None})
        return [job for job in found if job > after][:limit]

    async def old_runs_of(
        self, shards: Sequence[ShardId], past: Mapping[JobId, RunKey], now: datetime, limit: int
    ) -> list[EndedRun]:
        found: list[EndedRun] = []
        for job, key in past.items():
            mine = [run for run in self.runs if run.job_id == job and _key(run) > _of(key)]
            found += mine[:AT_ONCE]
        return found[:limit]

    async def delete_runs(self, claim: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
        gone = [run.key.run_id for run in chosen if run.key.run_id not in self.stays]
        self.runs = [run for run in self.runs if run.key.run_id not in gone]
        return gone

    async def delete_logs(self, claim: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
        raise AssertionError("there are none")

    async def unwanted(self, shards: Sequence[ShardId], limit: int) -> list[Unwanted]:
        return [Unwanted(place, ShardId(0)) for place in self.objects[:limit]]

    async def put_aside(self, claim: Claim, stuck: Sequence[Unwanted]) -> list[str]:
        places = [one.place for one in stuck]
        self.objects = [one for one in self.objects if one not in places] + places
        return places

    async def forget_objects(self, claim: Claim, removed: Sequence[Unwanted]) -> list[str]:
        places = [one.place for one in removed]
        self.objects = [one for one in self.objects if one not in places]
        return places

    # -- the result store --

    def parts(self, key: str, size: int, sha256: bytes) -> AsyncIterator[bytes]:
        raise AssertionError("no caller reads one")

    async def remove(self, places: Sequence[str]) -> tuple[list[str], list[str]]:
        """As the real one: three in a row that it doesn't take away say that it is away."""
        gone: list[str] = []
        kept: list[str] = []
        for place in places:
            self.asked.append(place)
            (kept if place in self.stuck else gone).append(place)
            if len(kept) > 2 and list(places[: len(gone) + len(kept)])[-3:] == kept[-3:]:
                break
        return gone, kept

    async def check(self) -> str:
        return ""


def _of(key: RunKey) -> tuple[datetime, RunId]:
    return key.scheduled_at, key.run_id


def _key(run: EndedRun) -> tuple[datetime, RunId]:
    return _of(run.key)


def ended(n: int, *, days: int = 40, job: int = 1, own: timedelta | None = None) -> EndedRun:
    at = NOW - days * DAY + n * timedelta(seconds=1)
    key = RunKey(at, RunId(Id.from_int(n)))
    return EndedRun(key, ShardId(0), JobId(Id.from_int(job)), at, at, own)


async def sweep(rows: Rows, kept: Retention | None = None) -> None:
    context = owner_context(RunIndex(owning(0), lambda _job: 0))
    retaining = RetentionLoop(context, rows, rows, kept or Retention())
    for _ in range(1_000):
        if await retaining.step() == retaining.loop.interval:
            return
    raise AssertionError("a sweep has an end")


async def test_sweeps_of_expired_dead_letters_dont_read_longer_kept_runs() -> None:
    kept = Retention(runs=30 * DAY, dead_letters=DAY)
    letter = replace(ended(2_000, days=20), waits=True)
    rows = Rows(*(ended(n, days=20) for n in range(1_500)), letter)
    await sweep(rows, kept)
    assert letter not in rows.runs
    assert len(rows.runs) == 1_500
    assert rows.read == 1


async def test_dead_letters_stay_without_a_retention_setting() -> None:
    rows = Rows(letter := replace(ended(1), waits=True), ended(2))
    await sweep(rows)
    assert rows.runs == [letter]


async def test_a_kept_run_of_a_job_keeps_none_of_its_later_runs() -> None:
    rows = Rows(
        *(ended(n, own=DAY) for n in range(350)),
        *(ended(n, own=DAY, job=2) for n in range(1_000, 1_700)),
    )
    rows.stays = {RunId(Id.from_int(n)) for n in (*range(120), *range(1_000, 1_600))}
    await sweep(rows)
    assert {run.key.run_id for run in rows.runs} == rows.stays


async def test_objects_that_the_store_keeps_are_requested_after_all_others() -> None:
    rows = Rows()
    rows.objects = [f"o{n}" for n in range(3 * OBJECTS)]
    rows.stuck = {"o5", "o150"}
    await sweep(rows)
    assert set(rows.objects) == rows.stuck, "neither ends the sweep"
    assert rows.asked.count("o5") == 1, "once a sweep"


async def test_three_stuck_sweeps_in_a_row_delay_no_other_for_longer_than_a_sweep() -> None:
    rows = Rows()
    rows.objects = [f"o{n}" for n in range(3 * OBJECTS)]
    rows.stuck = {"o0", "o1", "o2"}
    await sweep(rows)
    assert rows.asked == ["o0", "o1", "o2"], "the store may be away"
    await sweep(rows)
    assert set(rows.objects) == rows.stuck
