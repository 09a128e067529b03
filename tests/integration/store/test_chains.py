"""A chain's runs are made once a cycle, from what has arrived, by who owns the child's shard."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schedd.core.ids import Id, TenureId, chained_run_id, new_id, redriven_run_id
from schedd.core.jobs.chains import OF_SCHEDULES, ChainParents, Wanted, When
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, Trigger
from schedd.core.runs.records import ChainRefused, Deletion, JobRecord, TimerEdit
from schedd.core.runs.redrive import RedriveLine
from schedd.core.runs.run_records import RunFilter, RunRecord
from schedkit.errors import TookTooLong
from support.store import START, Member, World, draft, firing, job_record, manual_run, ok, report

FAILED: dict[str, Any] = {"state": State.FAILED, "reason": Reason.EXIT_CODE, "dead": True}


async def chained(world: World, name: str, *after: str, shard: int = 0) -> JobRecord:
    """A stored job that runs after these."""
    made = await world.store.users.create_job(record(name, *after, shard=shard), None, ok("create"))
    assert isinstance(made, JobRecord), made
    return made


def record(name: str, *after: str, shard: int = 0) -> JobRecord:
    made = job_record(shard=shard, due=None, name=name)
    return replace(made, definition=replace(made.definition, after=after))


async def ended(me: Member, job: JobRecord, **how: Any) -> LiveRun:
    """A run of the job's first instant that ended so."""
    [run] = (await me.fire(firing(job))).runs
    return await finished(me, run, **how)


async def finished(me: Member, run: LiveRun, **how: Any) -> LiveRun:
    [assigned] = await me.assigned(draft(run))
    await me.store.results.accept([report(assigned, **how)])
    return assigned


async def joined(
    me: Member,
    *jobs: JobRecord,
    when: When = When.SUCCESS,
    payload: bytes | None = None,
    once: bool = False,
) -> list[LiveRun]:
    """Return the runs that one scan of the owner makes for these jobs."""
    shards = sorted({job.shard for job in jobs})
    due = await me.store.chains.due(shards)
    wanted = [
        Wanted(one, 1, ChainParents((), when), Priority.MEDIUM.value, payload, once)
        for one in due
        if one.child in {job.definition.job_id for job in jobs}
    ]
    return await me.store.chains.join(me.claim(*shards), wanted) if wanted else []


async def runs_of(world: World, job: JobRecord) -> list[RunRecord]:
    wanted = RunFilter(str(job.definition.job_id))
    found, _ = await world.store.users.list_runs("default", None, 10, wanted)
    return found


async def test_a_join_of_two_is_made_once_when_both_have_ended(world: World) -> None:
    """P5.3: also where its parents' shards are another member's."""
    parents, owner = await world.member(take=False), await world.member(take=False)
    await parents.take(1, 2)
    await owner.take(3)
    a, b = await world.job(shard=1, name="a"), await world.job(shard=2, name="b")
    c = await chained(world, "c", "a", "b", shard=3)
    await ended(parents, a)
    assert await joined(owner, c) == []
    [later] = await world.sql("SELECT look_at > clock_timestamp() FROM chain_arrivals")
    assert later == (True,), "b's timer still stands before that instant: it may come"
    await ended(parents, b)
    [run] = await joined(owner, c)
    assert run.key.run_id == chained_run_id(c.definition.job_id, START, OF_SCHEDULES)
    assert run.key.scheduled_at == START
    assert await joined(owner, c) == []
    assert await world.sql("SELECT * FROM chain_arrivals") == []
    [made] = await runs_of(world, c)
    assert made.trigger is Trigger.CHAIN
    assert [(one.job, one.state) for one in made.parents] == [
        ("a", State.SUCCEEDED),
        ("b", State.SUCCEEDED),
    ]


@pytest.mark.parametrize(
    ("when", "how", "state"),
    [
        (When.SUCCESS, {}, State.PENDING),
        (When.SUCCESS, FAILED, State.SKIPPED),
        (When.FAILURE, {}, State.SKIPPED),
        (When.FAILURE, FAILED, State.PENDING),
        (When.ANY, {}, State.PENDING),
        (When.ANY, FAILED, State.PENDING),
    ],
)
async def test_the_outcome_of_a_parent_decides_the_state_of_its_child(
    world: World, when: When, how: dict[str, Any], state: State
) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    run = await ended(me, a, **how)
    await joined(me, b, when=when)
    [made] = await runs_of(world, b)
    assert made.run.state is state
    if state is State.SKIPPED:
        assert made.reason == Reason.AFTER
        assert str(run.key.run_id) in made.excluded_by


async def test_a_skipped_run_counts_as_ended_for_its_own_children(world: World) -> None:
    """P5.3: no cleaning up is lost with what it cleans up after."""
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    c, d = await chained(world, "c", "b"), await chained(world, "d", "b")
    await ended(me, a, **FAILED)
    assert await joined(me, b) == []
    assert await joined(me, c) == []
    [cleans] = await joined(me, d, when=When.ANY)
    assert cleans.job_id == d.definition.job_id
    [skipped] = await runs_of(world, c)
    assert "of b is SKIPPED" in skipped.excluded_by


async def test_a_member_that_lost_the_shard_makes_no_run_and_the_next_owner_does(
    world: World,
) -> None:
    """P5.3: it is judged under the claim of the child's shard."""
    old, new = await world.member(), await world.member(take=False)
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    await ended(old, a)
    [due] = await old.store.chains.due([b.shard])
    claim = old.claim(b.shard)
    await old.store.membership.fence_own(old.tenure)
    await new.take()
    wanted = [Wanted(due, 1, ChainParents((), When.SUCCESS), 2)]
    assert await old.store.chains.join(claim, wanted) == []
    assert await runs_of(world, b) == []
    [run] = await joined(new, b)
    assert run.job_id == b.definition.job_id


async def test_a_member_that_dies_before_the_commit_has_made_nothing_and_the_next_makes_it(
    world: World, dsn: str
) -> None:
    """P5.3: the run is made in the transaction that takes its arrivals away."""
    me, a = await world.member(), await world.job(name="a")
    b = await chained(world, "b", "a")
    await ended(me, a)
    await me.store.membership.fence_own(me.tenure)
    dies = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.chain_joiner", dsn),
        cwd=Path(__file__).parents[2],
        env=os.environ | {"SCHEDD_FAILPOINTS": "chain.before_commit=kill"},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await dies.communicate()
    assert (said, dies.returncode) == (b"1\n", -signal.SIGKILL)

    [(tenure,)] = await world.sql("SELECT DISTINCT owner FROM shards")
    assert tenure != me.tenure
    await me.store.membership.fence_own(TenureId(tenure))
    next_one = await world.member()
    assert await runs_of(world, b) == []
    [run] = await joined(next_one, b)
    assert run.key.run_id == chained_run_id(b.definition.job_id, START, OF_SCHEDULES)
    assert await world.sql("SELECT * FROM chain_arrivals") == []


async def test_concurrent_joins_create_one_run(world: World) -> None:
    """P5.3: the arrivals go in the transaction that inserts the run."""
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    await ended(me, a)
    [due] = await me.store.chains.due([b.shard])
    wanted = [Wanted(due, 1, ChainParents((), When.SUCCESS), 2)]
    answers = await asyncio.gather(
        *(me.store.chains.join(me.claim(b.shard), wanted) for _ in range(3))
    )
    assert sum(map(len, answers)) == 1


async def test_an_arrival_during_a_join_makes_the_join_due_at_once(world: World) -> None:
    """P5.3: only what was read is put off, or taken away."""
    me = await world.member()
    a, b = await world.job(name="a"), await world.job(name="b")
    c = await chained(world, "c", "a", "b")
    await ended(me, a)
    [seen] = await me.store.chains.due([c.shard])
    await ended(me, b)
    wanted = [Wanted(seen, 1, ChainParents((), When.SUCCESS), 2)]
    assert await me.store.chains.join(me.claim(c.shard), wanted) == []
    await me.store.chains.put_off(me.claim(c.shard), [seen], timedelta(hours=1))
    [due] = await me.store.chains.due([c.shard])
    assert {one.job for one in due.arrived.values()} == {"a", "b"}
    [run] = await joined(me, c)
    assert run.job_id == c.definition.job_id


async def test_a_cycle_whose_other_parent_has_no_run_then_is_skipped(world: World) -> None:
    me = await world.member()
    a = await world.job(name="a")
    await world.job(name="b", due=START + timedelta(minutes=7))
    c = await chained(world, "c", "a", "b")
    await ended(me, a)
    assert await joined(me, c) == []
    [skipped] = await runs_of(world, c)
    assert (skipped.run.state, skipped.reason) == (State.SKIPPED, Reason.AFTER)
    assert skipped.excluded_by == "b had no run in this cycle"


async def test_a_join_waits_for_indirect_parents_in_progress(world: World) -> None:
    """P5.3: a → b → c → d and a → d: d waits for c, of which there is nothing while b runs."""
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    c = await chained(world, "c", "b")
    d = await chained(world, "d", "a", "c")
    await ended(me, a)
    assert await joined(me, d) == []
    assert await runs_of(world, d) == []
    [of_b] = await joined(me, b)
    await world.sql("UPDATE chain_arrivals SET look_at = clock_timestamp()")
    assert await joined(me, d) == []
    assert await runs_of(world, d) == []
    await finished(me, of_b)
    [of_c] = await joined(me, c)
    await finished(me, of_c)
    assert [run.job_id for run in await joined(me, d)] == [d.definition.job_id]


async def test_a_missing_parent_is_waited_for_no_longer_than_a_week(world: World) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await world.job(name="b")
    c = await chained(world, "c", "a", "b")
    await me.fire(firing(b))
    await ended(me, a)
    assert await joined(me, c) == []
    assert await runs_of(world, c) == []
    await world.sql(
        "UPDATE chain_arrivals SET look_at = clock_timestamp(),"
        " arrived_at = clock_timestamp() - interval '7 days 1 s'"
    )
    await joined(me, c)
    [skipped] = await runs_of(world, c)
    assert skipped.excluded_by == "waited 7 days for b"


async def test_a_trigger_of_a_root_is_a_cycle_of_its_own(world: World) -> None:
    me = await world.member()
    a, b = await world.job(name="a", due=None), await chained(world, "b", "a")
    for _ in range(2):
        await me.store.users.insert_run(
            a.definition.job_id, manual_run(), Trigger.MANUAL, Priority.MEDIUM, None, None, ok("t")
        )
    for run in await me.store.owner.live_runs([a.shard], [State.PENDING]):
        await finished(me, run)
    made = await joined(me, b)
    assert len({run.key.run_id for run in made}) == 2


async def test_a_successful_redrive_of_a_parent_runs_the_children_skipped_for_it(
    world: World,
) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await world.job(name="b")
    c, d = await chained(world, "c", "a", "b"), await chained(world, "d", "c")
    dead = await ended(me, a, **FAILED)
    await ended(me, b)
    await joined(me, c)
    await joined(me, d)
    assert [one.run.state for one in await runs_of(world, d)] == [State.SKIPPED]
    again = await me.store.dead_letters.once_more(
        dead.key.run_id, None, RedriveLine(1, Overlap.BUFFER_ALL, 1), "anna", ok("retry")
    )
    assert isinstance(again, RunRecord)
    await finished(me, again.run)
    [run] = await joined(me, c)
    first = chained_run_id(c.definition.job_id, START, OF_SCHEDULES)
    assert run.key.run_id == redriven_run_id(first)
    await finished(me, run)
    [last] = await joined(me, d)
    assert last.job_id == d.definition.job_id
    await finished(me, last)
    assert await world.sql("SELECT * FROM chain_arrivals") == []


async def test_a_skipped_child_is_judged_again_with_its_parents(world: World) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await world.job(name="b")
    c = await chained(world, "c", "a", "b")
    well, badly = await ended(me, a), await ended(me, b, **FAILED)
    assert await joined(me, c) == []
    await world.sql(
        "INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)"
        " SELECT %s, r.scheduled_at, %s, r.job_id, r.run_id, 'SUCCEEDED' FROM runs r"
        " WHERE r.run_id = %s RETURNING 1",
        *(c.definition.job_id, Id.from_int(0), badly.key.run_id),
    )
    [due] = await me.store.chains.due([c.shard])
    assert {one.run_id for one in due.skipped_by.values()} == {well.key.run_id, badly.key.run_id}


async def test_arrivals_of_a_removed_parent_are_deleted(world: World) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await world.job(name="b")
    c = await chained(world, "c", "a", "b")
    await ended(me, a)
    await world.store.users.update_job(
        c.definition.job_id,
        c.definition.generation,
        replace(c.definition, generation=2, after=("b",)),
        TimerEdit(),
        ok("update"),
    )
    assert await world.sql("SELECT parent FROM chain_arrivals") == []
    await ended(me, b)
    [due] = await me.store.chains.due([c.shard])
    assert list(due.arrived) == [b.definition.job_id]


async def test_a_cycle_that_ends_while_the_child_is_paused_is_skipped(world: World) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    await ended(me, a)
    await world.sql("UPDATE timers SET paused = true WHERE job_id = %s", b.definition.job_id)
    assert await joined(me, b) == []
    [skipped] = await runs_of(world, b)
    assert (skipped.run.state, skipped.reason) == (State.SKIPPED, Reason.PAUSED)


async def test_a_join_is_not_evaluated_by_an_old_definition_or_in_a_cluster_pause(
    world: World,
) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    await ended(me, a)
    [due] = await me.store.chains.due([b.shard])
    await world.sql("UPDATE cluster SET paused = true")
    wanted = [Wanted(due, 1, ChainParents((), When.SUCCESS), 2)]
    assert await me.store.chains.join(me.claim(b.shard), wanted) == []
    assert await me.store.chains.due([b.shard]) == []
    await world.sql("UPDATE cluster SET paused = false")
    old = [Wanted(due, 7, ChainParents((), When.SUCCESS), 2)]
    assert await me.store.chains.join(me.claim(b.shard), old) == []
    assert await runs_of(world, b) == []
    assert len(await me.store.chains.join(me.claim(b.shard), wanted)) == 1


async def restore_database(world: World) -> None:
    """The database was restored; what was lost reached until now."""
    await world.sql(
        "INSERT INTO pauses (began, ended, paused_by, note, lost_until, caught_up)"
        " VALUES (%s, clock_timestamp(), 'schedd', '', clock_timestamp(), true) RETURNING 1",
        START,
    )


@pytest.mark.parametrize("once", [True, False])
async def test_an_at_most_once_child_is_skipped_in_a_cycle_begun_in_lost_data(
    world: World, once: bool
) -> None:
    """P5.3: its parent ends again, and may have ended there too; nor by a redrive of that."""
    me = await world.member()
    a, b = await world.job(name="a"), await world.job(name="b")
    c, d = await chained(world, "c", "a"), await chained(world, "d", "b")
    await restore_database(world)
    await ended(me, a)
    dead = await ended(me, b, **FAILED)
    made = await joined(me, c, once=once)
    assert await joined(me, d, once=once) == []
    again = await me.store.dead_letters.once_more(
        dead.key.run_id, None, RedriveLine(1, Overlap.BUFFER_ALL, 1), "anna", ok("retry")
    )
    assert isinstance(again, RunRecord)
    await finished(me, again.run)
    made += await joined(me, d, once=once)
    assert len(made) == (0 if once else 2)
    for job in (c, d) if once else ():
        [skipped] = await runs_of(world, job)
        assert (skipped.run.state, skipped.reason) == (State.SKIPPED, Reason.AFTER)
        assert "may have run" in skipped.excluded_by
    assert await world.sql("SELECT * FROM chain_arrivals") == []


async def test_a_cycle_of_a_run_of_its_own_had_begun_when_that_was_made(world: World) -> None:
    me = await world.member()
    a, b = await world.job(name="a", due=None), await chained(world, "b", "a")

    async def triggered() -> list[LiveRun]:
        await me.store.users.insert_run(
            a.definition.job_id, manual_run(), Trigger.MANUAL, Priority.MEDIUM, None, None, ok("t")
        )
        return await me.store.owner.live_runs([a.shard], [State.PENDING])

    [before] = await triggered()
    await restore_database(world)
    await finished(me, before)
    assert await joined(me, b, once=True) == []
    [after] = await triggered()
    await finished(me, after)
    [run] = await joined(me, b, once=True)
    assert run.key.scheduled_at == after.key.scheduled_at


async def test_a_join_that_takes_too_long_is_reported_and_changes_nothing(
    world: World,
) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    await ended(me, a)
    await world.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_sleep(30); RETURN NULL; END$$;"
        "CREATE TRIGGER slow AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION slow();"
        "SELECT 1"
    )
    [(name,)] = await world.sql("SELECT current_database()")
    await world.sql(
        f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" SET statement_timeout = 300; SELECT 1'
    )
    me.store.database.reconnect()
    with pytest.raises(TookTooLong):
        await joined(me, b)
    await world.sql("DROP TRIGGER slow ON runs; SELECT 1")
    [run] = await joined(me, b)
    assert run.job_id == b.definition.job_id


async def test_a_cycle_in_the_graph_is_refused_with_its_path(world: World) -> None:
    await world.member()
    await world.job(name="a", due=None)
    await chained(world, "b", "a")
    await chained(world, "c", "b")
    assert await change(world, "a", "c") == ChainRefused("cycle", "a → b → c → a")
    missing = await world.store.users.create_job(record("d", "a", "x"), None, ok("create"))
    assert missing == ChainRefused("parent", "x")
    itself = await world.store.users.create_job(record("d", "d"), None, ok("create"))
    assert itself == ChainRefused("cycle", "d → d")


async def test_one_of_two_concurrent_edits_that_close_a_cycle_is_rejected(world: World) -> None:
    """P5.3: edges are added by one at a time."""
    await world.member()
    for name in ("a", "b"):
        await world.job(name=name, due=None)
    answers = await asyncio.gather(change(world, "a", "b"), change(world, "b", "a"))
    assert sum(isinstance(one, ChainRefused) for one in answers) == 1, answers
    assert len(await world.sql("SELECT * FROM chain_edges")) == 1


async def test_a_job_that_others_run_after_is_not_deleted(world: World) -> None:
    await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    users = world.store.users
    refused = await users.delete_job(a.definition.job_id, ok("delete"))
    assert refused == ChainRefused("child", "b")
    assert await users.delete_job(b.definition.job_id, ok("delete")) == Deletion(0)
    assert await users.delete_job(a.definition.job_id, ok("delete")) == Deletion(0)


async def test_a_child_that_is_deleted_while_it_waits_leaves_nothing(world: World) -> None:
    me = await world.member()
    a, b = await world.job(name="a"), await chained(world, "b", "a")
    await ended(me, a)
    await me.store.users.delete_job(b.definition.job_id, ok("delete"))
    assert await world.sql("SELECT * FROM chain_arrivals") == []
    late = (b.definition.job_id, START, new_id(), a.definition.job_id, new_id())
    await world.sql(
        "INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)"
        " VALUES (%s, %s, %s, %s, %s, 'SUCCEEDED')",
        *late,
    )
    assert await me.store.chains.due([b.shard]) == []
    await me.store.keep_house()
    assert await world.sql("SELECT * FROM chain_arrivals") == []


async def change(world: World, name: str, *after: str) -> object:
    stored = await world.store.users.get_job("default", name)
    assert stored is not None
    edited = replace(stored.definition, after=after)
    return await world.store.users.update_job(
        stored.definition.job_id, stored.definition.generation, edited, TimerEdit(), ok("update")
    )
