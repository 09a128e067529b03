"""Creates that come at one time on a real PostgreSQL: one transaction, and each as if by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schedd.core.ids import JobId
from schedd.core.runs.records import Create, Idempotency, JobRecord, StoreConflict
from schedd.store.jobs import job_insert, jobs
from support.store import START, World, job_record, ok

TABLES = {"jobs": "job_id", "timers": "job_id", "audit": "object", "idempotency_keys": "made"}
OWN = ("job_id", "name", "made", "key", "seq", "at", "object", "created_at", "updated_at")
"""Columns in which two creates differ."""


def wish(key: str | None = None, digest: bytes = b"digest", **definition: Any) -> Create:
    record = job_record(shard=3, due=START)
    definition = {"retention": timedelta(days=3)} | definition
    record = replace(record, definition=replace(record.definition, **definition))
    entry = ok("create", f"job/{record.definition.job_id}")
    told = None if key is None else Idempotency("default", key, "CreateJob", digest)
    return Create(record, told, entry)


async def created(world: World, wanted: Sequence[Create]) -> list[Any]:
    """As calls do, all at one time."""
    users = world.store.users
    return await asyncio.gather(
        *(users.create_job(one.record, one.key, one.entry) for one in wanted),
        return_exceptions=True,
    )


async def rows(world: World, wanted: Create) -> dict[str, list[Any]]:
    job = wanted.record.definition.job_id
    ids = {"job_id": job, "made": job, "object": f"job/{job}"}
    return {
        table: await world.sql(
            f"SELECT to_jsonb(t) - '{{{','.join(OWN)}}}'::text[] FROM {table} t"
            f" WHERE {column} = '{ids[column]}'"
        )
        for table, column in TABLES.items()
    }


async def test_a_create_with_others_leaves_the_rows_of_one_by_itself(world: World) -> None:
    await world.member()
    alone, together = wish("alone"), wish("together")
    database = world.store.database

    one = await database.call(lambda c: job_insert.create(c, alone))
    stored = await database.call(lambda c: job_insert.create_all(c, [wish(), together, wish()]))

    assert sorted(stored) == [0, 1, 2]
    assert isinstance(one, JobRecord)
    assert replace(stored[1], definition=one.definition, created_at=one.created_at) == replace(
        one, updated_at=stored[1].updated_at
    )
    found = await rows(world, together)
    assert found == await rows(world, alone)
    assert all(len(each) == 1 for each in found.values())


async def test_what_is_told_of_a_create_is_what_reading_it_gives(world: World) -> None:
    await world.member()
    wanted = [wish("one"), wish("two")]
    database = world.store.database

    told = await database.call(lambda c: job_insert.create_all(c, wanted))

    ids = [one.record.definition.job_id for one in wanted]
    found = await database.call(lambda c: jobs.records_of(c, ids))
    read = {one.definition.job_id: one for one in found}
    assert [told[0], told[1]] == [read[job_id] for job_id in ids]


async def test_each_of_many_hears_of_its_own_job(world: World) -> None:
    await world.member()
    wanted = [wish(f"key-{n}") for n in range(200)]

    answers = await created(world, wanted)

    made = [one.record.definition.job_id for one in wanted]
    assert [answer.definition.job_id for answer in answers] == made
    for table in TABLES:
        assert await world.sql(f"SELECT count(*) FROM {table}") == [(200,)]


async def test_of_one_key_a_single_job_is_made_whoever_comes_with_it(world: World) -> None:
    await world.member()
    wanted = [wish("one") for _ in range(50)] + [wish("one", b"other"), wish("two")]

    *same, other, two = await created(world, wanted)

    made = {answer.definition.job_id for answer in same}
    assert len(made) == 1
    assert other == StoreConflict("key", made.pop())
    assert isinstance(two, JobRecord)
    assert await world.sql("SELECT count(*) FROM jobs") == [(2,)]
    assert await world.sql("SELECT count(*) FROM audit") == [(2,)]


async def test_a_name_is_one_jobs_and_the_others_hear_whose(world: World) -> None:
    """Their keys are free afterwards: the same call may come again once the name is."""
    await world.member()
    [there] = await created(world, [wish(name="taken")])

    answers = await created(
        world, [wish("a", name="taken"), wish("b", name="new"), wish("c", name="new"), wish("d")]
    )

    assert answers[0] == StoreConflict("name", there.definition.job_id)
    assert answers[2] == StoreConflict("name", answers[1].definition.job_id)
    assert isinstance(answers[3], JobRecord)
    assert await world.sql("SELECT key FROM idempotency_keys ORDER BY key") == [("b",), ("d",)]


async def test_a_key_that_was_used_a_day_ago_makes_another_job(world: World) -> None:
    await world.member()
    [first] = await created(world, [wish("k")])
    await world.sql("UPDATE idempotency_keys SET created_at = created_at - interval '25 h'")

    again = await created(world, [wish("k"), wish("k")])

    ids = [one.definition.job_id for one in (*again, first)]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("round_", range(3))
async def test_keys_that_another_member_takes_meanwhile_make_one_job_each(
    world: World, round_: int
) -> None:
    first, second = await world.member(), await world.member()
    keys = [f"key-{round_}-{n}" for n in range(100)]

    async def asked(users: Any, order: Sequence[str]) -> list[JobId]:
        batch = [wish(key) for key in order]
        answers = await asyncio.gather(
            *(users.create_job(one.record, one.key, one.entry) for one in batch)
        )
        return [answer.definition.job_id for answer in answers]

    one, other = await asyncio.wait_for(
        asyncio.gather(asked(first.store.users, keys), asked(second.store.users, keys[::-1])),
        timeout=60,
    )

    assert one == other[::-1]
    assert await world.sql("SELECT count(*) FROM jobs") == [(100,)]
    assert await world.sql("SELECT count(*) FROM timers") == [(100,)]
