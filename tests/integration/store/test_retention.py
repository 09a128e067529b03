"""Retention deletes expired rows with all that belongs to them, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection

from schedd.cluster.ownership import Ownership
from schedd.core.events import Deleted
from schedd.core.ids import RunId
from schedd.core.runs.broadcast import Closing
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.runs.retention import Retention
from schedd.dispatch.run_index import RunIndex
from schedd.reconcile.retention import RetentionLoop
from schedd.results.objects import StoredObjects
from schedd.store.reconcile import retention
from schedd.store.schema import partitions
from schedkit.clock import utcnow
from schedkit.objects import NoSuchObject, log_key
from schedkit.objects.files import Files
from support.owner_context import owner_context
from support.store import LANES, MINUTE, START, Member, World, draft, firing, job_record, report
from support.store import ok as audited

AGES = timedelta(days=36_500)
KEEPS = Retention(runs=AGES, logs=AGES)


class Clock:
    """Cluster time is this host's."""

    def now(self) -> datetime:
        return utcnow()


class Cluster:
    """An owner's loop of retention over a real database and a store of files."""

    def __init__(self, world: World, me: Member, folder: Path, kept: Retention) -> None:
        self.world, self.me, self.files = world, me, Files(folder / "results")
        self.source = folder / "source"
        self.source.write_bytes(b"content")
        self.deleted = {"runs": 0, "logs": 0, "objects": 0}
        ownership = Ownership(me.tenure, me.timeline, LANES)
        ownership.gain(me.epochs)
        context = owner_context(
            RunIndex(ownership, lambda _job: 0), clock=Clock(), emit=self._count
        )
        self.retaining = RetentionLoop(context, me.store.retention, StoredObjects(self.files), kept)

    def _count(self, event: object) -> None:
        assert isinstance(event, Deleted)
        for what in self.deleted:
            self.deleted[what] += getattr(event, what)

    async def sweep(self) -> None:
        """All pages, to the rest that follows."""
        while await self.retaining.step() != self.retaining.loop.interval:
            pass

    async def ended(self, at: datetime = START, **changes: object) -> LiveRun:
        """A run that wrote more than fits inline, and has ended."""
        job = changes.pop("job", None) or await self.world.job(due=at)
        [run] = (await self.me.fire(firing(job, at=at))).runs
        [assigned] = await self.me.assigned(draft(run))
        self.files.put(self.log(assigned), self.source)
        given = {"output": b"log", "result": b"42", "stored": True} | changes
        await self.me.store.results.accept([report(assigned, **given)])
        return assigned

    def log(self, run: LiveRun) -> str:
        return log_key("default", str(run.key.run_id), run.token)

    def has_log(self, run: LiveRun) -> bool:
        try:
            return self.files.read(self.log(run), 0, 100) == b"content"
        except NoSuchObject:
            return False

    async def rows(self, run_id: RunId) -> dict[str, int]:
        """How many rows of a run are in which table."""
        tables = ("runs", "attempts", "outputs", "results", "dead_letters")
        return {
            table: (
                await self.world.sql(f"SELECT count(*) FROM {table} WHERE run_id = %s", run_id)
            )[0][0]
            for table in tables
        }


async def test_an_old_run_is_deleted_with_its_rows_and_its_objects(
    world: World, tmp_path: Path
) -> None:
    cluster = Cluster(world, await world.member(), tmp_path, Retention())
    old = await cluster.ended()
    young = await cluster.ended(finished_at=utcnow())
    await cluster.sweep()
    assert set((await cluster.rows(old.key.run_id)).values()) == {0}
    assert not cluster.has_log(old)
    assert (await cluster.rows(young.key.run_id))["runs"] == 1
    assert cluster.has_log(young)
    assert cluster.deleted == {"runs": 1, "logs": 0, "objects": 1}
    assert await world.sql("SELECT count(*) FROM unwanted") == [(0,)]
    # What fires next, and who did what, is none of the run's row.
    assert await world.sql("SELECT due_at FROM timers WHERE job_id = %s", old.job_id) == [
        (START + MINUTE,)
    ]


async def test_a_dead_letter_that_waits_stays_with_its_log(world: World, tmp_path: Path) -> None:
    cluster = Cluster(world, await world.member(), tmp_path, Retention())
    dead = await cluster.ended(
        state=State.FAILED, reason=Reason.EXIT_CODE, dead=True, fingerprint="f"
    )
    await cluster.sweep()
    assert await cluster.rows(dead.key.run_id) == {
        "runs": 1, "attempts": 0, "outputs": 1, "results": 1, "dead_letters": 1,
    }  # fmt: skip
    assert cluster.has_log(dead)
    await world.sql(
        "UPDATE dead_letters SET resolution = 'DISCARDED' WHERE run_id = %s", dead.key.run_id
    )
    await cluster.sweep()
    assert set((await cluster.rows(dead.key.run_id)).values()) == {0}
    assert not cluster.has_log(dead)


async def test_dead_letters_are_deleted_where_the_cluster_is_configured_to(
    world: World, tmp_path: Path
) -> None:
    kept = replace(KEEPS, dead_letters=timedelta(days=1))
    cluster = Cluster(world, await world.member(), tmp_path, kept)
    dead = await cluster.ended(
        state=State.FAILED, reason=Reason.EXIT_CODE, dead=True, fingerprint="f"
    )
    other = await cluster.ended()
    await cluster.sweep()
    assert set((await cluster.rows(dead.key.run_id)).values()) == {0}
    assert (await cluster.rows(other.key.run_id))["runs"] == 1


async def test_live_runs_are_kept(world: World, tmp_path: Path) -> None:
    me = await world.member()
    cluster = Cluster(world, me, tmp_path, Retention())
    [waits] = (await me.fire(firing(await world.job()))).runs
    [runs] = await me.assigned(draft((await me.fire(firing(await world.job()))).runs[0]))
    await cluster.sweep()
    assert (await cluster.rows(waits.key.run_id))["runs"] == 1
    assert (await cluster.rows(runs.key.run_id))["runs"] == 1


async def test_a_log_is_deleted_before_its_run(world: World, tmp_path: Path) -> None:
    kept = Retention(runs=AGES, logs=timedelta(days=7))
    cluster = Cluster(world, await world.member(), tmp_path, kept)
    run = await cluster.ended()
    await cluster.sweep()
    rows = await cluster.rows(run.key.run_id)
    assert (rows["runs"], rows["outputs"], rows["results"]) == (1, 0, 1)
    assert not cluster.has_log(run)
    assert cluster.deleted == {"runs": 0, "logs": 1, "objects": 1}


async def test_a_jobs_own_retention_has_priority_over_the_clusters(
    world: World, tmp_path: Path
) -> None:
    me = await world.member()
    kept = Retention(runs=timedelta(days=30), logs=timedelta(days=7))
    cluster = Cluster(world, me, tmp_path, kept)
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
    records = {}
    for name, own in (("short", timedelta(hours=1)), ("long", AGES)):
        record = job_record(due=at if name == "short" else START)
        own_record = replace(record, definition=replace(record.definition, retention=own))
        records[name] = await me.store.users.create_job(own_record, None, audited("create"))
    short = await cluster.ended(at, job=records["short"], finished_at=at)
    long = await cluster.ended(job=records["long"])
    await cluster.sweep()
    assert set((await cluster.rows(short.key.run_id)).values()) == {0}
    assert await cluster.rows(long.key.run_id) == {
        "runs": 1, "attempts": 0, "outputs": 1, "results": 1, "dead_letters": 0,
    }  # fmt: skip
    assert cluster.has_log(long)


async def test_a_member_that_lost_the_shard_deletes_nothing(world: World, tmp_path: Path) -> None:
    me = await world.member()
    cluster = Cluster(world, me, tmp_path, Retention())
    run = await cluster.ended()
    await me.store.membership.fence_own(me.tenure)
    await world.member()
    await cluster.sweep()
    assert (await cluster.rows(run.key.run_id))["runs"] == 1
    assert cluster.has_log(run)


async def test_submitted_work_is_deleted_with_its_last_run(world: World, tmp_path: Path) -> None:
    me = await world.member()
    cluster = Cluster(world, me, tmp_path, Retention())
    record = await me.store.users.create_job(job_record(ephemeral=True), None, audited("submit"))
    run = await cluster.ended(job=record)
    [more] = (await me.fire(firing(record, at=START + MINUTE))).runs
    await cluster.sweep()
    assert (await cluster.rows(run.key.run_id))["runs"] == 0
    assert await world.sql("SELECT 1 FROM jobs WHERE job_id = %s", run.job_id) == [(1,)]
    [assigned] = await me.assigned(draft(more))
    await me.store.results.accept([report(assigned)])
    await cluster.sweep()
    for table in ("jobs", "timers"):
        assert not await world.sql(f"SELECT 1 FROM {table} WHERE job_id = %s", run.job_id)


async def test_objects_of_an_unavailable_store_are_deleted_when_it_is_back(
    world: World, tmp_path: Path
) -> None:
    cluster = Cluster(world, await world.member(), tmp_path, Retention())
    run = await cluster.ended()
    namespace, aside = tmp_path / "results" / "default", tmp_path / "aside"
    namespace.rename(aside)
    namespace.write_bytes(b"no folder")
    await cluster.sweep()
    assert (await cluster.rows(run.key.run_id))["runs"] == 0
    assert await world.sql("SELECT place FROM unwanted") == [(f"default/{run.key.run_id}/",)]
    namespace.unlink()
    aside.rename(namespace)
    await cluster.sweep()
    assert not cluster.has_log(run)
    assert await world.sql("SELECT place FROM unwanted") == []


async def test_past_days_without_rows_are_dropped_and_no_others(world: World) -> None:
    me = await world.member()
    today = datetime.now(UTC).date()
    empty, full = today - timedelta(days=9), today - timedelta(days=8)
    for day in (empty, full):
        assert await me.store.database.call(partitions.make_day, day)
    at = datetime(full.year, full.month, full.day, 12, tzinfo=UTC)
    await me.fire(firing(await world.job(due=at), at=at))
    assert await me.store.drop_empty_days() == 1
    names = {row[0] for row in await world.sql(partitions.EXISTING)}
    assert partitions.name_of(full) in names
    assert partitions.name_of(empty) not in names
    assert partitions.name_of(today) in names


async def test_a_past_day_that_is_slow_to_scan_delays_no_caller_and_no_other_day(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    me = await world.member()
    today = datetime.now(UTC).date()
    first, second = today - timedelta(days=9), today - timedelta(days=8)
    for day in (first, second):
        assert await me.store.database.call(partitions.make_day, day)
    as_it_is, slow = partitions.is_empty, {first}

    def is_empty(connection: Connection, day: date) -> bool:
        """Full of rows that were deleted, and not vacuumed yet."""
        if day in slow:
            return connection.exec_driver_sql("SELECT pg_sleep(30)").first() is None
        return as_it_is(connection, day)

    monkeypatch.setattr(partitions, "is_empty", is_empty)
    assert await me.store.database.call(partitions.drop_day, first) is False, "under the lock"
    await me.store.keep_house()
    assert str(first) in caplog.text
    names = {row[0] for row in await world.sql(partitions.EXISTING)}
    assert partitions.name_of(first) in names
    assert partitions.name_of(second) not in names
    slow.clear()
    assert await me.store.drop_empty_days() == 1


async def test_rows_of_a_job_that_must_stay_keep_no_later_ones(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(world, me := await world.member(), tmp_path, KEEPS)
    record = job_record()
    record = replace(record, definition=replace(record.definition, retention=timedelta(hours=1)))
    job = await me.store.users.create_job(record, None, audited("create"))
    runs = [await cluster.ended(START + n * MINUTE, job=job) for n in range(3)]
    child = (await world.job(name="child")).definition.job_id
    await world.sql(
        "INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)"
        " SELECT %s, scheduled_at, run_id, job_id, run_id, 'SUCCEEDED' FROM runs"
        " WHERE run_id = ANY (%s::uuid[]) RETURNING 1",
        *(child, [str(run.key.run_id) for run in runs[:2]]),
    )
    # A page has room for those that stay alone.
    monkeypatch.setattr(retention, "OF_JOBS", retention.OF_JOBS.replace("LIMIT 100", "LIMIT 2"))
    await cluster.sweep()
    left = [(await cluster.rows(run.key.run_id))["runs"] for run in runs]
    assert left == [1, 1, 0]


async def test_a_dead_letter_is_deleted_before_rows_that_are_kept_longer(
    world: World, tmp_path: Path
) -> None:
    kept = replace(KEEPS, dead_letters=timedelta(days=1))
    cluster = Cluster(world, me := await world.member(), tmp_path, kept)
    dead = await cluster.ended(
        state=State.FAILED, reason=Reason.EXIT_CODE, dead=True, fingerprint="f"
    )
    await cluster.ended()
    before = datetime.now(UTC)
    first = RunKey(START - timedelta(days=1), dead.key.run_id)
    page = await me.store.retention.old_letters(sorted(me.epochs), first, before, 10)
    assert [run.key for run in page.runs] == [dead.key]
    assert (
        await me.store.retention.old_letters(sorted(me.epochs), dead.key, before, 10)
    ).runs == []
    await cluster.sweep()
    assert (await cluster.rows(dead.key.run_id))["runs"] == 0


async def test_a_child_stays_until_its_broadcast_has_ended(world: World, tmp_path: Path) -> None:
    cluster = Cluster(world, me := await world.member(), tmp_path, Retention())
    [run] = (await me.fire(firing(await world.job()))).runs
    begun = (await me.assign(draft(run, worker="", incarnation=None, targets=("w1", "w2")))).begun
    first, second = (one for one in begun if one.parent is not None)

    async def ends(child: LiveRun) -> None:
        [assigned] = await me.assigned(draft(child, worker=child.target))
        await me.store.results.accept([report(assigned)])

    await ends(first)
    await cluster.sweep()
    assert (await cluster.rows(first.key.run_id))["runs"] == 1, "it says how the whole ended"
    await ends(second)
    await me.store.owner.close(me.claim(run.shard), [Closing(run.key, run.job_id, run.shard)])
    await cluster.sweep()
    assert (await cluster.rows(first.key.run_id))["runs"] == 0


async def test_a_run_with_a_pending_arrival_is_retained(world: World, tmp_path: Path) -> None:
    cluster = Cluster(world, await world.member(), tmp_path, Retention())
    run = await cluster.ended()
    child = (await world.job(name="child")).definition.job_id
    await world.sql(
        "INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)"
        " VALUES (%s, %s, %s, %s, %s, 'SUCCEEDED') RETURNING 1",
        *(child, run.key.scheduled_at, run.key.run_id, run.job_id, run.key.run_id),
    )
    await cluster.sweep()
    assert (await cluster.rows(run.key.run_id))["runs"] == 1
    await world.sql("DELETE FROM chain_arrivals RETURNING 1")
    await cluster.sweep()
    assert (await cluster.rows(run.key.run_id))["runs"] == 0
