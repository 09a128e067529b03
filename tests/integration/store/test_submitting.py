"""Concurrent submits on a real PostgreSQL: one transaction, and each as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schedd.core.ids import JobId, RunId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.records import Idempotency, StoreConflict, Submit
from schedd.core.runs.run_records import RunRecord
from schedd.store.jobs import submits
from schedd.store.runs import runs
from schedkit.errors import BrokenData
from support.store import World, job_record, manual_run, ok

TABLES = {
    "jobs": "job_id",
    "timers": "job_id",
    "runs": "run_id",
    "live": "run_id",
    "audit": "run_id",
    "idempotency_keys": "made",
}
OWN = ("job_id", "run_id", "name", "made", "key", "seq", "at", "object", "created_at", "updated_at")
"""Columns in which two submits differ."""


def submit(key: str | None = None, digest: bytes = b"digest", **changes: Any) -> Submit:
    record = job_record(shard=3, due=None, ephemeral=True)
    run = manual_run()
    entry = replace(ok("submit"), object=f"run/{run.key.run_id}", run_id=run.key.run_id)
    claim = None if key is None else Idempotency("default", key, "SubmitRun", digest)
    return replace(Submit(record, run, claim, entry, Priority.HIGH), **changes)


async def submitted(world: World, wanted: Sequence[Submit]) -> list[Any]:
    """As calls do, all at one time."""
    return await asyncio.gather(
        *map(world.store.users.submit_run, wanted),
        return_exceptions=True,
    )


async def rows(world: World, wanted: Submit) -> dict[str, list[Any]]:
    ids = {"job_id": wanted.record.definition.job_id}
    ids["run_id"] = ids["made"] = JobId(wanted.run.key.run_id)
    return {
        table: await world.sql(
            f"SELECT to_jsonb(t) - '{{{','.join(OWN)}}}'::text[] FROM {table} t"
            f" WHERE {column} = '{ids[column]}'"
        )
        for table, column in TABLES.items()
    }


@pytest.mark.parametrize("paused", [False, True])
async def test_a_submit_returns_what_reading_the_run_returns(world: World, paused: bool) -> None:
    await world.member()
    await world.sql("UPDATE cluster SET paused = %s", paused)
    wanted = [submit("one"), submit("two")]
    database = world.store.database

    answers = await database.call(lambda c: submits.submit_all(c, wanted))

    ids = [one.run.key.run_id for one in wanted]
    read = {one.run.key.run_id: one for one in await world.store.users.get_runs(ids)}
    assert [answers[0], answers[1]] == [read[run_id] for run_id in ids]
    assert answers[0].cluster_paused == paused


async def test_a_submit_with_others_leaves_the_rows_of_a_lone_submit(world: World) -> None:
    await world.member()
    kept = job_record(shard=3, due=None, ephemeral=True)
    kept = replace(kept, definition=replace(kept.definition, retention=timedelta(days=3)))
    alone = submit("alone", record=kept, payload=b"own")
    together = submit("together", payload=b"own")
    together = replace(
        together,
        record=replace(
            together.record,
            definition=replace(together.record.definition, retention=timedelta(days=3)),
        ),
    )
    database = world.store.database

    await database.call(lambda c: runs.submit_run(c, alone))
    stored = await database.call(lambda c: submits.submit_all(c, [submit(), together, submit()]))

    assert sorted(stored) == [0, 1, 2]
    found = await rows(world, together)
    assert found == await rows(world, alone)
    assert all(len(each) == 1 for each in found.values())
    assert [each["payload"] for (each,) in found["runs"]] == ["\\x6f776e"]


async def test_each_of_many_callers_receives_its_own_run(world: World) -> None:
    await world.member()
    wanted = [submit(f"key-{n}") for n in range(200)]

    answers = await submitted(world, wanted)

    assert [answer.run.key for answer in answers] == [one.run.key for one in wanted]
    for table in TABLES:
        assert await world.sql(f"SELECT count(*) FROM {table}") == [(200,)]


async def test_one_key_creates_a_single_run_for_all_callers(world: World) -> None:
    await world.member()
    wanted = [submit("one") for _ in range(50)] + [submit("one", b"other"), submit("two")]

    *same, other, two = await submitted(world, wanted)

    made = {answer.run.key.run_id for answer in same}
    assert len(made) == 1
    assert other == StoreConflict("key", JobId(next(iter(made))))
    assert isinstance(two, RunRecord)
    assert await world.sql("SELECT count(*) FROM runs") == [(2,)]
    assert await world.sql("SELECT count(*) FROM audit") == [(2,)]


async def test_two_keys_that_the_database_holds_as_one_are_one(world: World) -> None:
    await world.member()

    first, second = await submitted(world, [submit("a\0"), submit("a␀")])

    assert first.run.key == second.run.key


async def test_a_key_that_was_used_a_day_ago_makes_another_run(world: World) -> None:
    await world.member()
    [first] = await submitted(world, [submit("k")])
    await world.sql("UPDATE idempotency_keys SET created_at = created_at - interval '25 h'")

    again = await submitted(world, [submit("k"), submit("k")])

    assert again[0].run.key == again[1].run.key != first.run.key


async def test_a_statement_that_the_database_refuses_fails_its_own_call_alone(world: World) -> None:
    await world.member()
    [there] = await submitted(world, [submit()])
    taken = submit()
    taken = replace(
        taken,
        record=replace(
            taken.record, definition=replace(taken.record.definition, job_id=there.run.job_id)
        ),
    )

    good, broken, last = await submitted(world, [submit("a"), taken, submit("b")])

    assert isinstance(good, RunRecord)
    assert isinstance(broken, BrokenData | StoreConflict)
    assert isinstance(last, RunRecord)
    assert await world.sql("SELECT count(*) FROM runs") == [(3,)]


@pytest.mark.parametrize("pool", ["narrow"])
async def test_an_unknown_pool_rejects_only_its_own_submit(world: World, pool: str) -> None:
    await world.member()
    into = replace(submit(), record=job_record(shard=3, due=None, ephemeral=True, pool=pool))

    plain, refused = await submitted(world, [submit(), into])

    assert isinstance(plain, RunRecord)
    assert refused == StoreConflict("pool", into.record.definition.job_id)


async def test_batches_of_two_members_with_the_same_keys_dont_wait_for_each_other_forever(
    world: World,
) -> None:
    first, second = await world.member(), await world.member()
    keys = [f"key-{n}" for n in range(100)]

    async def asked(database: Any, order: Sequence[str]) -> list[RunId]:
        batch = [submit(key) for key in order]
        stored = await database.call(lambda c: submits.submit_all(c, batch))
        return [each.run.key.run_id for each in stored.values()]

    made = await asyncio.wait_for(
        asyncio.gather(asked(first.store.database, keys), asked(second.store.database, keys[::-1])),
        timeout=20,
    )

    assert len({run for runs in made for run in runs}) == len(keys)
