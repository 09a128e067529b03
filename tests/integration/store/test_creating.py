"""Concurrent creates on a real PostgreSQL: one transaction, and each as if it were alone."""

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


def create(key: str | None = None, digest: bytes = b"digest", **definition: Any) -> Create:
    record = job_record(shard=3, due=START)
    definition = {"retention": timedelta(days=3)} | definition
    record = replace(record, definition=replace(record.definition, **definition))
    entry = ok("create", f"job/{record.definition.job_id}")
    claim = None if key is None else Idempotency("default", key, "CreateJob", digest)
    return Create.first(record, claim, entry)


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


async def test_a_create_with_others_leaves_the_rows_of_a_lone_create(world: World) -> None:
    await world.member()
    alone, together = create("alone"), create("together")
    database = world.store.database

    one = await database.call(lambda c: job_insert.create(c, alone))
    stored = await database.call(lambda c: job_insert.create_all(c, [create(), together, create()]))

    assert sorted(stored) == [0, 1, 2]
    assert isinstance(one, JobRecord)
    record = stored[1].record
    assert replace(record, definition=one.definition, created_at=one.created_at) == replace(
        one, updated_at=record.updated_at
    )
    found = await rows(world, together)
    assert found == await rows(world, alone)
    assert all(len(each) == 1 for each in found.values())


async def test_a_create_returns_what_reading_the_job_returns(world: World) -> None:
    await world.member()
    wanted = [create("one"), create("two")]
    database = world.store.database

    answers = await database.call(lambda c: job_insert.create_all(c, wanted))

    ids = [one.record.definition.job_id for one in wanted]
    found = await database.call(lambda c: jobs.records_of(c, ids))
    read = {one.definition.job_id: one for one in found}
    assert [answers[0].record, answers[1].record] == [read[job_id] for job_id in ids]


async def test_each_of_many_callers_receives_its_own_job(world: World) -> None:
    await world.member()
    wanted = [create(f"key-{n}") for n in range(200)]

    answers = await created(world, wanted)

    made = [one.record.definition.job_id for one in wanted]
    assert [answer.definition.job_id for answer in answers] == made
    for table in TABLES:
        assert await world.sql(f"SELECT count(*) FROM {table}") == [(200,)]


async def test_one_key_creates_a_single_job_for_all_callers(world: World) -> None:
    await world.member()
    wanted = [create("one") for _ in range(50)] + [create("one", b"other"), create("two")]

    *same, other, two = await created(world, wanted)

    made = {answer.definition.job_id for answer in same}
    assert len(made) == 1
    assert other == StoreConflict("key", made.pop())
    assert isinstance(two, JobRecord)
    assert await world.sql("SELECT count(*) FROM jobs") == [(2,)]
    assert await world.sql("SELECT count(*) FROM audit") == [(2,)]


async def test_a_name_belongs_to_one_job_and_other_callers_receive_its_id(world: World) -> None:
    """Their keys are free afterwards: the same call may be retried once the name is free."""
    await world.member()
    [there] = await created(world, [create(name="taken")])

    answers = await created(
        world,
        [create("a", name="taken"), create("b", name="new"), create("c", name="new"), create("d")],
    )

    assert answers[0] == StoreConflict("name", there.definition.job_id)
    assert answers[2] == StoreConflict("name", answers[1].definition.job_id)
    assert isinstance(answers[3], JobRecord)
    assert await world.sql("SELECT key FROM idempotency_keys ORDER BY key") == [("b",), ("d",)]


async def test_used_keys_with_new_names_fail_no_other_create_of_the_batch(world: World) -> None:
    """A bisection of 500 such creates takes seconds, for which all other calls would wait."""
    await world.member()
    await created(world, [create(f"key-{n}") for n in range(3)])
    wanted = [create(f"key-{n}") for n in range(5)]

    stored = await world.store.database.call(lambda c: job_insert.create_all(c, wanted))

    assert sorted(stored) == [3, 4]


async def test_a_key_that_was_used_a_day_ago_makes_another_job(world: World) -> None:
    await world.member()
    [first] = await created(world, [create("k")])
    await world.sql("UPDATE idempotency_keys SET created_at = created_at - interval '25 h'")

    again = await created(world, [create("k"), create("k")])

    ids = [one.definition.job_id for one in (*again, first)]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("round_", range(3))
async def test_keys_used_by_two_members_at_once_create_one_job_each(
    world: World, round_: int
) -> None:
    first, second = await world.member(), await world.member()
    keys = [f"key-{round_}-{n}" for n in range(100)]

    async def asked(users: Any, order: Sequence[str]) -> list[JobId]:
        batch = [create(key) for key in order]
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


async def test_names_wanted_by_two_members_at_once_belong_to_one_job_each(world: World) -> None:
    first, second = await world.member(), await world.member()
    names = [f"job-{n}" for n in range(100)]

    async def asked(users: Any, own: str, order: Sequence[str]) -> dict[str, Any]:
        batch = [create(f"{own}-{name}", name=name) for name in order]
        answers = await asyncio.gather(
            *(users.create_job(one.record, one.key, one.entry) for one in batch)
        )
        return dict(zip(order, answers, strict=True))

    answers = await asyncio.wait_for(
        asyncio.gather(
            asked(first.store.users, "first", names),
            asked(second.store.users, "second", [*names[::-1], "alone"]),
        ),
        timeout=60,
    )

    alone = answers[1].pop("alone")
    assert isinstance(alone, JobRecord)
    for name in names:
        [made] = [one[name] for one in answers if isinstance(one[name], JobRecord)]
        [refused] = [one[name] for one in answers if one[name] is not made]
        assert refused == StoreConflict("name", made.definition.job_id)
    for table in TABLES:
        assert await world.sql(f"SELECT count(*) FROM {table}") == [(101,)]
