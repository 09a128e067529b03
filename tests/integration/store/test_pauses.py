"""The pause of the cluster (P3.11): judged by fire and assign on the row, under the fence."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, event

from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditRecord, Trigger
from schedd.core.timers.cluster_pauses import Pauses
from support.store import World, draft, firing, manual_run, ok, wait_for_waiter


def audited(before: Pauses, after: Pauses) -> AuditRecord:
    return AuditRecord("ann", "pause", "cluster", "ok", before=str(before), after=str(after))


async def test_nothing_fires_while_the_cluster_is_paused(world: World) -> None:
    """P3.11: the statement judges the cluster's row, whatever the owner knows."""
    me = await world.member()
    job = await world.job()
    await me.store.pauses.pause("ann", "upgrade", audited)

    answer = await me.fire(firing(job))

    assert (answer.runs, answer.refused) == ([], [job.definition.job_id])
    assert await world.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_nothing_starts_while_the_cluster_is_paused_not_even_what_a_person_triggers(
    world: World,
) -> None:
    """P3.11: the statement that assigns judges the cluster's row."""
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire(firing(job))).runs
    await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.MEDIUM,
        None,
        None,
        ok("trigger"),
    )
    runs = await me.store.owner.live_runs([job.shard], [State.PENDING])
    await me.store.pauses.pause("ann", "", audited)

    answer = await me.assign(*map(draft, runs))

    assert answer.assigned == []
    assert set(answer.waiting) == {one.key for one in runs} > {run.key}
    assert await world.sql("SELECT DISTINCT state FROM runs") == [("PENDING",)]


async def test_a_step_computed_before_the_resume_advances_no_timer(
    world: World,
) -> None:
    """P3.11: it didn't reckon with the pause, and would fire its instants."""
    me = await world.member()
    job = await world.job()
    step = firing(job)
    paused = await me.store.pauses.pause("ann", "", audited)
    assert paused.switched == 1
    resumed = await me.store.pauses.resume(False, None, audited)
    claim = me.claim(job.shard)

    for switched in (0, 1):
        stale = await me.store.owner.fire(claim, [step], switched)
        assert (stale.runs, stale.refused) == ([], [job.definition.job_id])
    known = await me.store.owner.fire(claim, [step], resumed.switched)
    assert len(known.runs) == 1


async def test_a_pause_waits_for_the_batch_in_flight_and_stops_later_batches(
    world: World,
) -> None:
    """P3.11: without locks on the shards' rows the batch would commit after the confirmed pause."""
    me = await world.member()
    other = await world.member(take=False)
    first, second = await world.job(shard=3), await world.job(shard=3)
    order: list[str] = []
    inside = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow_batch(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT 1 FROM shards WHERE id = 3 FOR NO KEY UPDATE")
        loop.call_soon_threadsafe(inside.set)
        wait_for_waiter(connection)

    async def batch() -> None:
        await other.store.database.call(slow_batch)
        order.append("batch")

    async def pause() -> None:
        await inside.wait()
        await me.store.pauses.pause("ann", "", audited)
        order.append("pause")

    async with asyncio.TaskGroup() as group:
        group.create_task(batch(), name="batch")
        group.create_task(pause(), name="pause")

    assert order == ["batch", "pause"]
    assert (await me.fire(firing(first), firing(second))).runs == []


async def test_a_resume_skips_only_early_runs_of_times_within_the_pause(
    world: World,
) -> None:
    """P3.12: no merged row will account for it, since its row is there already."""
    me = await world.member(horizon=timedelta(seconds=30))
    soon = datetime.now(UTC) + timedelta(seconds=2)
    past, early = await world.job(), await world.job(due=soon)
    await me.fire(firing(past), firing(early))
    await me.store.pauses.pause("ann", "", audited)
    await world.sql("SELECT pg_sleep_until(%s)", soon)

    await me.store.pauses.resume(False, None, audited)

    states = await world.sql(
        "SELECT job_id, state, reason, finished_at IS NOT NULL FROM runs ORDER BY scheduled_at"
    )
    assert states == [
        (past.definition.job_id, "PENDING", None, False),
        (early.definition.job_id, "SKIPPED", "PAUSED", True),
    ]
    assert await world.sql("SELECT job_id FROM live") == [(past.definition.job_id,)]


async def test_a_resume_with_catch_up_keeps_early_runs(world: World) -> None:
    me = await world.member(horizon=timedelta(seconds=30))
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    early = await world.job(due=soon)
    await me.fire(firing(early))
    await me.store.pauses.pause("ann", "", audited)
    await world.sql("SELECT pg_sleep_until(%s)", soon)

    ended = await me.store.pauses.resume(True, None, audited)

    assert [pause.caught_up for pause in ended.all] == [True]
    assert await world.sql("SELECT state FROM runs") == [("PENDING",)]


async def test_pausing_again_changes_the_note_and_resuming_again_nothing(world: World) -> None:
    me = await world.member()
    first = await me.store.pauses.pause("ann", "upgrade", audited)
    again = await me.store.pauses.pause("bob", "upgrade, still", audited)
    assert (again.switched, len(again.all)) == (first.switched, 1)
    assert again.present is not None
    assert (again.present.by, again.present.note) == ("ann", "upgrade, still")
    assert again.present.began == first.all[0].began
    silent = await me.store.pauses.pause("eve", "", audited)
    assert silent.present == again.present, "who says nothing wipes nothing"

    same = await me.store.pauses.pause("eve", "upgrade, still", audited)
    assert same.present == again.present

    resumed = await me.store.pauses.resume(False, None, audited)
    assert (resumed.present, resumed.switched) == (None, 2)
    assert await me.store.pauses.resume(False, None, audited) == resumed

    lines = await me.store.users.list_audit(None, "cluster", None, None, 10)
    assert len(lines) == 3, (
        "what changes nothing isn't one: a resume, a pause that says nothing new"
    )
    assert all(entry.before and entry.after for _, entry in lines)


async def test_a_note_with_a_nul_and_an_emoji_is_kept(world: World) -> None:
    me = await world.member()
    paused = await me.store.pauses.pause("ann", "nul\x00 and 💥", audited)
    assert paused.present is not None
    assert "💥" in paused.present.note
    assert await me.store.pauses.read() == paused


async def test_a_read_of_known_pauses_reads_one_row(
    world: World,
) -> None:
    me = await world.member()
    await world.sql(
        "INSERT INTO pauses (began, paused_by, ended)"
        " SELECT now() - n * interval '1 h', 'ann', now() - n * interval '1 h' + interval '1 min'"
        " FROM generate_series(1000, 1, -1) n"
    )
    await me.store.pauses.pause("ann", "upgrade", audited)
    known = await me.store.pauses.read()
    assert len(known.all) == 1001
    read: list[int] = []

    def count(_conn: object, cursor: Any, *_rest: object) -> None:
        read.append(cursor.rowcount)

    event.listen(me.store.database._engine, "after_cursor_execute", count)
    assert await me.store.pauses.read(known) == known
    assert await me.store.pauses.present() == known.present
    assert read == [1, 1]


async def test_changes_since_the_last_read_are_returned(world: World) -> None:
    me = await world.member()
    known = await me.store.pauses.read()
    for change in (
        me.store.pauses.pause("ann", "upgrade", audited),
        me.store.pauses.pause("bob", "another note", audited),
        me.store.pauses.resume(True, None, audited),
        me.store.pauses.pause("ann", "again", audited),
    ):
        changed = await change
        known = await me.store.pauses.read(known)
        assert known == changed == await me.store.pauses.read()


async def test_pauses_are_read_again_after_a_fail_over_to_an_equal_count(
    world: World,
) -> None:
    me = await world.member()
    known = await me.store.pauses.pause("ann", "lost in the fail-over", audited)
    await world.sql("DELETE FROM pauses")
    await world.sql("UPDATE cluster SET paused = false, switched = 0")
    present = await me.store.pauses.pause("ann", "of the new primary", audited)
    assert present.switched == known.switched
    assert await me.store.pauses.read(known) == present
