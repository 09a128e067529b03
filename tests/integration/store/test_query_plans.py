"""Hot statements keep to their indexes, at 20,000 runs in several partitions."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg2.extensions import connection
from sqlalchemy import event

from schedctl.dev.servers import postgres
from schedd.core.ids import BackfillId, Id, IncarnationId, JobId, RunId, ShardId, new_id
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.change_stream import Scope
from schedd.core.runs.deadlines import DeadlineExpiry
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, Loss, OverlapCandidates, RunKey
from schedd.core.runs.records import Unstarted
from schedd.core.runs.redrive import LetterFilter, RedriveLine
from schedd.core.timers import packed_timer
from schedd.core.timers.backfill import BackfillRequest, Rerun
from schedd.core.timers.packed_timer import LastLoad
from schedd.store.runs.change_stream import ChangeStore
from support.databases import copied
from support.postgres import ScratchServer
from support.store import (
    MINUTE,
    World,
    draft,
    firing,
    job_record,
    ok,
    report,
    successes,
    to_slot,
)

BATCH = 500

FILL = """
INSERT INTO jobs (job_id, namespace, name, shard, generation, spec, created_at, created_by,
    updated_at)
SELECT gen_random_uuid(), 'default', 'filler-' || n, n & 255, 1, '', now(), '', now()
FROM generate_series(1, 20000) n;
INSERT INTO timers (job_id, shard, due_at, nominal, generation)
SELECT job_id, shard, now() + interval '1 day', now() + interval '1 day', 1 FROM jobs;
INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, trigger, state, ready_at)
SELECT now() - n * interval '1 minute' / 10, gen_random_uuid(), job_id, now(), shard, 2, 'SCHEDULE',
    'SUCCEEDED', now()
FROM (SELECT job_id, shard, row_number() OVER () n FROM jobs) j;
"""


@pytest.fixture(scope="module")
def full_template(server: ScratchServer, template: str, superuser: connection) -> Iterator[str]:
    with copied(server, superuser, template) as dsn:
        name = dsn.rpartition("/")[2]
        for statement in (FILL, "VACUUM ANALYZE"):
            server.execute(statement, postgres.dsn(server.port, database=name, role=postgres.ADMIN))
        yield name


@pytest.fixture
async def full_world(
    server: ScratchServer, full_template: str, superuser: connection
) -> AsyncIterator[World]:
    with copied(server, superuser, full_template) as dsn:
        async with World.at(dsn) as world:
            yield world


@pytest.fixture
def world_of_tables(request: pytest.FixtureRequest, tables: str) -> World:
    made: World = request.getfixturevalue("full_world" if tables == "full" else "world")
    return made


@pytest.fixture(autouse=True)
def _by_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements of small batches are executed by their text, which EXPLAIN can be put before."""
    monkeypatch.setattr("schedd.store.connection.prepared.MOST_ROWS", 0)


async def analyzed(world: World) -> None:
    raw = world.store.database._engine.raw_connection()
    raw.driver_connection.autocommit = True
    with raw.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("RESET statement_timeout")
    raw.driver_connection.autocommit = False
    raw.close()


BATCHES = ("unnest", "live l", "timers t", "dead_letters l")


def explain(
    world: World, having: tuple[str, ...] = BATCHES, options: str = "(FORMAT JSON)"
) -> dict[str, list[dict[str, Any]]]:
    """From here on, plans of statements that have one of these, under their first words."""
    found: dict[str, list[dict[str, Any]]] = {}
    engine = world.members[0].store.database._engine

    def look(conn, cursor, statement, parameters, context, executemany):
        if any(word in statement for word in having):
            cursor.execute(f"EXPLAIN {options} {statement}", parameters)
            [(plan,)] = cursor.fetchall()
            plan = json.loads(plan) if isinstance(plan, str) else plan
            found.setdefault(" ".join(statement.split()[:14]), []).append(plan[0]["Plan"])

    event.listen(engine, "before_cursor_execute", look)
    return found


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each scan of a table in a plan; partitions under their own names."""
    if "Relation Name" in plan and "Scan" in plan["Node Type"]:
        yield plan
    for child in plan.get("Plans", ()):
        yield from scans(child)


async def test_hot_statements_never_scan_a_big_table(full_world: World) -> None:
    me = await full_world.member()
    now = datetime.now(UTC)
    # Even shards: one lane.
    jobs = [
        await full_world.job(shard=2 * (n % 128), due=now - timedelta(minutes=1)) for n in range(60)
    ]
    found = explain(full_world)

    shards = sorted(me.epochs)
    _, oldest = await me.store.owner.new_timers(shards, now, BATCH, None)
    await me.store.owner.new_timers(
        shards, now, BATCH, LastLoad(oldest, now), [jobs[0].definition.job_id]
    )
    await me.store.owner.due_timers(shards, now, BATCH)
    await me.store.owner.due_timers(shards, now, BATCH, latest=True)
    runs = (await me.fire(*map(firing, jobs))).runs
    assert len(runs) == len(jobs)
    await me.store.owner.definitions_by_text([run.job_id for run in runs])
    await me.store.owner.timers([run.job_id for run in runs])
    running = await me.assigned(*map(draft, runs))
    shards, states = [ShardId(0), ShardId(2)], [State.RUNNING, State.PENDING]
    await me.store.owner.live_runs(shards, states)
    await me.store.owner.runs_by_key([run.live_key for run in runs], now)
    await me.store.owner.live_keys(shards)
    await me.store.owner.written_runs(shards, await me.store.owner.moment())
    await me.store.owner.changed_assignments([(run.key, run.token) for run in running])
    await me.store.owner.next_runs(shards, now - timedelta(hours=1), runs[-1].key, now)
    more = [firing(job, at=now) for job in jobs[:20]]
    waiting = (await me.fire(*more)).runs
    held = await me.assign(*(draft(run, overlap=Overlap.CANCEL_OTHER) for run in waiting))
    assert len(held.held) == len(waiting)
    parted = await me.store.owner.part(
        me.claim(*{run.shard for run in waiting}),
        [OverlapCandidates(run.job_id, run.shard, 1, Overlap.CANCEL_OTHER, now) for run in waiting],
    )
    assert len(parted.cancelled) == len(waiting)
    await me.store.results.reported_runs([run.key for run in running])
    await me.store.results.started([(run.key, run.token, now) for run in running])
    back, lost, done = running[:5], running[5:10], running[10:]
    await me.store.owner.give_back(
        me.claim(*{run.shard for run in back}),
        [Unstarted(run.key, run.shard, run.token) for run in back],
    )
    await me.store.owner.rescue(me.claim(*{run.shard for run in lost}), list(map(loss, lost)))
    await me.store.owner.end_waiting(
        me.claim(*{run.shard for run in back}),
        [
            DeadlineExpiry(run.key, run.job_id, run.shard, State.MISSED, Reason.START_DEADLINE)
            for run in back
        ],
    )
    done, plain = done[:10], done[10:]  # the others are being canceled
    assert await me.store.results.accept_successes(successes(plain)) == []
    await me.store.results.accept([report(run) for run in done])
    await me.store.users.waits()
    await me.store.users.slot_holders(["w1"])

    assert len(found) >= 10, sorted(found)
    big = {
        name
        for (name,) in await full_world.sql("SELECT relname FROM pg_class WHERE reltuples > 999")
    }
    assert big >= {"timers", "jobs"}
    assert [name for name in big if re.fullmatch(r"runs_\d+", name)]
    walked = {
        (name, scan["Relation Name"])
        for name, plans in found.items()
        for plan in plans
        for scan in scans(plan)
        if scan["Node Type"] == "Seq Scan" and scan["Relation Name"] in big
    }
    assert walked == set()


@pytest.mark.parametrize("tables", ["empty", "unanalyzed", "full"])
async def test_due_timers_are_read_up_to_the_limit_however_many_are_overdue(
    world_of_tables: World, tables: str
) -> None:
    """P3.9: after an outage millions are overdue, and the statistics say what was before."""
    world, limit = world_of_tables, 100
    me = await world.member()
    if tables == "empty":
        await analyzed(world)
    began = datetime.now(UTC) - timedelta(hours=1)
    jobs = [job_record(shard=n % 256, due=began + n * timedelta(seconds=1)) for n in range(BATCH)]
    await world.jobs(jobs)
    if tables == "full":
        await analyzed(world)
    found = explain(world, ("timers t",), "(ANALYZE, FORMAT JSON)")
    shards, until = sorted(me.epochs), datetime.now(UTC) + timedelta(days=2)

    first = await me.store.owner.due_timers(shards, until, limit)
    last = await me.store.owner.due_timers(shards, began + timedelta(days=0.5), 10, latest=True)
    soon, later = began + timedelta(seconds=30.5), began + timedelta(seconds=40.5)
    few, oldest = await me.store.owner.new_timers(shards, soon, limit, None)
    more, _ = await me.store.owner.new_timers(shards, later, limit, LastLoad(oldest, soon))
    any_, _ = await me.store.owner.new_timers(shards, until, limit, None)

    due = [job.definition.job_id for job in jobs]
    assert [timer.job_id for timer in packed_timer.unpacked(first)] == due[:limit]
    assert [timer.job_id for timer in packed_timer.unpacked(last)] == due[-10:][::-1]
    assert [timer.job_id for timer in packed_timer.unpacked(few)] == due[:31]
    assert [timer.job_id for timer in packed_timer.unpacked(more)] == due[31:41]
    assert len(any_) == limit
    looks = [scan for plans in found.values() for plan in plans for scan in scans(plan)]
    by_page = [scan for scan in looks if scan["Node Type"] == "Bitmap Heap Scan"]
    assert {
        (scan["Node Type"], scan.get("Index Name")) for scan in looks if scan not in by_page
    } == {("Index Scan", "timers_due")}
    [[index]] = [scan["Plans"] for scan in by_page]
    assert (index["Index Name"], index["Actual Rows"]) == ("timers_due", 41)
    read = sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in looks)
    assert read <= 2 * limit + 10 + 31 + 10 + 2 * len(shards)


@pytest.mark.parametrize("tables", ["unanalyzed", "full"])
async def test_statistics_of_timers_read_only_timers_that_are_overdue(
    world_of_tables: World, tables: str
) -> None:
    """Ten million timers that are due later cost nothing."""
    me = await world_of_tables.member()
    found = explain(world_of_tables)

    stats = await me.store.statistics.read_queue_stats(sorted(me.epochs))

    assert stats.overdue == 0
    looks = [scan for plans in found.values() for plan in plans for scan in scans(plan)]
    of_timers = [s for s in looks if s["Relation Name"] == "timers" and "due_at" in str(s)]
    assert len(of_timers) >= 2
    assert [scan for scan in of_timers if "due_at <" not in scan.get("Index Cond", "")] == []


ARRIVED = """
SET LOCAL statement_timeout = 0;
INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)
SELECT gen_random_uuid(), scheduled_at, run_id, job_id, run_id, 'SUCCEEDED' FROM runs
OFFSET 500;
ANALYZE chain_arrivals
"""


async def test_retention_finds_arrivals_of_chains_by_an_index(
    full_world: World,
) -> None:
    me = await full_world.member()
    await full_world.sql(ARRIVED)
    found = explain(full_world)
    page = await me.store.retention.old_runs(
        sorted(me.epochs),
        RunKey(datetime(2026, 1, 1, tzinfo=UTC), RunId(Id.from_int(0))),
        datetime.now(UTC),
        BATCH,
    )
    some = [run for run in page.runs if run.shard == page.runs[0].shard]
    await me.store.retention.delete_runs(me.claim(some[0].shard), some)
    plans = [plan for name, plans in found.items() if "waiting" in name for plan in plans]
    used = [s for plan in plans for s in scans(plan) if s["Relation Name"] == "chain_arrivals"]
    assert used
    assert [one["Node Type"] for one in used if one["Node Type"] == "Seq Scan"] == []


REDRIVEN = """
INSERT INTO redrives (redrive_id, shard, namespace, rate, total, open, created_by)
VALUES (%(id)s, 0, 'default', 1000, 20000, true, 'ann');
INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint, redrive, resolution)
SELECT run_id, scheduled_at, job_id, 'f', CASE WHEN n <= 10000 THEN %(id)s::uuid END,
    CASE WHEN n <= 9000 THEN 'REDRIVEN' END
FROM (SELECT *, row_number() OVER (ORDER BY scheduled_at DESC) n FROM runs) r
"""
"""Of its 10,000 letters 1,000 are left; 10,000 older ones wait outside its filter."""


async def test_a_redrive_of_very_many_reads_only_its_remaining_letters(full_world: World) -> None:
    me = await full_world.member()
    await me.store.database.call(lambda c: c.exec_driver_sql(REDRIVEN, {"id": new_id()}))
    await analyzed(full_world)
    found = explain(full_world)

    [one] = await me.store.owner.redrives([*me.epochs])
    lines = dict.fromkeys(one.jobs, RedriveLine(1, None, None))
    assert await me.store.owner.redrive(me.claim(0), [one], lines)

    all_ = [scan for plans in found.values() for plan in plans for scan in scans(plan)]
    of_letters = [scan for scan in all_ if scan["Relation Name"] == "dead_letters"]
    assert len(of_letters) >= 5
    assert {scan.get("Index Name") for scan in of_letters} <= {
        "dead_letters_queued",
        "dead_letters_pkey",
    }
    assert not [
        scan
        for scan in all_
        if scan["Node Type"] == "Seq Scan" and scan["Relation Name"] not in {"redrives", "cluster"}
    ]


async def test_groups_of_dead_letters_read_only_partitions_of_their_runs(
    full_world: World,
) -> None:
    me = await full_world.member()
    await me.store.database.call(lambda c: c.exec_driver_sql(REDRIVEN, {"id": new_id()}))
    await analyzed(full_world)
    found = explain(full_world, ("dead_letters",))

    groups, waiting = await me.store.dead_letters.groups(LetterFilter("default"), 50)
    assert (len(groups), waiting) == (50, 11_000)
    [[plan]] = found.values()
    looks = list(scans(plan))
    of_days = [scan for scan in looks if scan["Relation Name"].startswith("runs_")]
    assert len(of_days) > 3
    assert [scan for scan in of_days if "scheduled_at = " not in _keys(scan)] == []
    letters = [scan for scan in looks if scan["Relation Name"] == "dead_letters"]
    assert len(letters) == 2
    assert not [scan for scan in looks if scan["Node Type"] == "Seq Scan"]


def _keys(scan: dict[str, Any]) -> str:
    """By what it is looked for."""
    return f"{scan.get('Index Cond', '')} {scan.get('Filter', '')}"


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("analyze", ["before", "never"])
async def test_batches_look_rows_up_by_key_though_statistics_say_the_tables_are_empty(
    world: World, short: bool, analyze: str
) -> None:
    """Else the join becomes a loop over the batch for each row of the day."""
    me = await world.member()
    now = datetime.now(UTC)
    jobs = [job_record(shard=n % 2 * 2, due=now - timedelta(minutes=1)) for n in range(BATCH)]
    await world.jobs(jobs)
    if analyze == "before":
        await analyzed(world)
    found = explain(world)

    runs = (await me.fire(*map(firing, jobs))).runs
    running = await me.assigned(*map(draft, runs))
    if short:
        assert await me.store.results.accept_successes(successes(running)) == []
    else:
        await me.store.results.accept([report(run) for run in running])

    looks = [scan for plans in found.values() for plan in plans for scan in scans(plan)]
    today = f"runs_{now:%Y%m%d}"
    by_key = {
        (scan["Relation Name"], " = " in (scan.get("Index Cond") or scan.get("TID Cond", "")))
        for scan in looks
        if scan["Relation Name"] in {"live", "timers", today}
    }
    assert by_key == {("live", True), ("timers", True), (today, True)}
    # Forbidden and taken all the same, it costs so much that PostgreSQL compiles the statement.
    whole = {scan["Relation Name"] for scan in looks if scan["Node Type"] == "Seq Scan"}
    assert whole <= {"shards"}


@pytest.mark.parametrize("tables", ["empty", "unanalyzed", "full"])
async def test_a_batch_that_is_fired_to_slots_looks_rows_up_by_key(
    world_of_tables: World, tables: str
) -> None:
    """Whatever the statistics say of the tables, and whether a job has another live run."""
    world = world_of_tables
    me = await world.member()
    now = datetime.now(UTC)
    if tables == "empty":
        await analyzed(world)
    jobs = [job_record(shard=n % 2 * 2, due=now - timedelta(minutes=1)) for n in range(BATCH)]
    await world.jobs(jobs)
    if tables == "full":
        await analyzed(world)
    found = explain(world)

    first = (await me.fire_running(*map(to_slot, jobs))).runs
    again = [to_slot(job, at=job.due_at + MINUTE) for job in jobs if job.due_at]
    beside = (await me.fire_running(*again)).runs

    assert {run.state for run in first} == {State.RUNNING}
    assert {run.state for run in beside} == {State.PENDING}
    looks = [scan for plans in found.values() for plan in plans for scan in scans(plan)]
    by_key = {
        (scan["Relation Name"], " = " in (scan.get("Index Cond") or scan.get("TID Cond", "")))
        for scan in looks
        if scan["Relation Name"] not in {"shards", "cluster"}
    }
    assert by_key == {("live", True), ("timers", True)}
    whole = {scan["Relation Name"] for scan in looks if scan["Node Type"] == "Seq Scan"}
    assert whole <= {"shards", "cluster"}


async def test_timers_due_at_the_same_time_are_found_by_their_primary_keys(
    world: World,
) -> None:
    """By shard and instant all of them would be looked at for each."""
    me = await world.member()
    now = datetime.now(UTC)
    jobs = [job_record(shard=n % 128 * 2, due=now - timedelta(minutes=1)) for n in range(BATCH)]
    await world.jobs(jobs)
    await analyzed(world)
    found = explain(world)

    await me.assigned(*map(draft, (await me.fire(*map(firing, jobs))).runs))

    looks = [scan for plans in found.values() for plan in plans for scan in scans(plan)]
    used = [scan["Index Name"] for scan in looks if scan["Relation Name"] == "timers"]
    assert used == ["timers_pkey"] * 2


async def test_the_feed_of_backfills_scans_no_big_table_each_tenth_of_a_second(
    full_world: World,
) -> None:
    me = await full_world.member()
    now = datetime.now(UTC)
    jobs = [await full_world.job(shard=2 * n, due=now + timedelta(days=1)) for n in range(20)]
    past = tuple(now - timedelta(minutes=n) for n in range(100, 0, -1))
    for job in jobs:
        id_ = BackfillId(new_id())
        request = BackfillRequest(
            id_, past[0], past[-1], past, Rerun.NONE, None, 5, Priority.LOW, "tester"
        )
        await me.store.backfills.create(job.definition.job_id, 1, request, None, ok("backfill"))

    found = explain(full_world)
    wanted = await me.store.owner.backfills(sorted(me.epochs))
    assert len(wanted) == len(jobs)
    made = await me.store.owner.feed(me.claim(*{one.shard for one in wanted}), wanted)
    assert len(made) == 5 * len(jobs)
    assert await me.store.owner.backfills(sorted(me.epochs)) == []

    assert len(found) >= 4, sorted(found)
    walked = {
        (name, scan["Relation Name"])
        for name, plans in found.items()
        for plan in plans
        for scan in scans(plan)
        if scan["Node Type"] == "Seq Scan"
    }
    assert {relation for _, relation in walked} <= {"shards"}, walked


async def test_a_search_for_changes_scans_no_table_of_runs(
    full_world: World,
) -> None:
    await full_world.member()
    [[job]] = await full_world.sql("SELECT job_id FROM runs LIMIT 1")
    await analyzed(full_world)
    looks = ChangeStore(full_world.store.database, 100)
    now = await looks.now()

    found = explain(full_world)
    assert (await looks.since(now, None)).before is not None
    assert (await looks.since(now, [JobId(job)])).before is None

    all_scans = [scan for plans in found.values() for plan in plans for scan in scans(plan)]
    of_runs = [scan for scan in all_scans if scan["Relation Name"].startswith("runs")]
    assert len(found) == 2, sorted(found)
    assert not [scan for scan in of_runs if scan["Node Type"] == "Seq Scan"]


LIVING = """
UPDATE runs SET state = 'PENDING';
INSERT INTO live (shard, job_id, run_id, scheduled_at)
SELECT shard, job_id, run_id, scheduled_at FROM runs
"""


async def test_a_stream_that_begins_sorts_nothing_however_many_have_not_ended(
    full_world: World,
) -> None:
    await full_world.member()
    await full_world.sql(LIVING)
    await analyzed(full_world)
    [[job]] = await full_world.sql("SELECT job_id FROM runs LIMIT 1")
    looks = ChangeStore(full_world.store.database)
    plans: list[dict[str, Any]] = []

    def look(conn, cursor, statement, parameters, context, executemany):
        if "LIMIT" in statement:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, parameters)
            [([plan],)] = cursor.fetchall()
            plans.append(plan["Plan"])

    event.listen(full_world.store.database._engine, "before_cursor_execute", look)
    assert len(await looks.unended(Scope("default"), BATCH)) == BATCH
    assert len(await looks.unended(Scope("default", JobId(job)), BATCH)) == 1

    assert len(plans) == 3, "of a namespace one statement, of a job whose runs are few one more"
    assert not [name for plan in plans for name in nodes(plan) if name == "Sort"]
    read = [scan["Actual Rows"] for scan in scans(plans[0])]
    assert sum(read) <= 2 * BATCH + 20, "a row of each run and of its job, and one of each day"
    assert not [scan for plan in plans for scan in scans(plan) if scan["Node Type"] == "Seq Scan"]


def nodes(plan: dict[str, Any]) -> Iterator[str]:
    """Return the steps of a plan, one by one."""
    yield plan["Node Type"]
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def loss(run: LiveRun) -> Loss:
    assert run.incarnation is not None
    return Loss(
        run.key,
        run.shard,
        run.token,
        IncarnationId(run.incarnation or new_id()),
        State.RETRYING,
        Reason.WORKER_LOST,
    )
