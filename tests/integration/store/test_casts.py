"""Columns as the driver reads them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection

from support.store import World

WRITTEN = [
    ("2026-11-24 23:30:11.123456+00", datetime(2026, 11, 24, 23, 30, 11, 123456, UTC)),
    ("2026-11-24 23:30:11.1-03", datetime(2026, 11, 25, 2, 30, 11, 100000, UTC)),
    ("2026-11-24 23:30:11+05:45", datetime(2026, 11, 24, 17, 45, 11, tzinfo=UTC)),
    ("1890-01-01 00:00:00+00", datetime(1890, 1, 1, tzinfo=UTC)),
]
"""The last is of a time when zones had seconds."""
EXTREME = [
    ("0001-01-01 00:00:00+00", datetime(1, 1, 1, tzinfo=UTC)),
    ("9999-12-31 23:59:59.999999+00", datetime.max.replace(tzinfo=UTC)),
]


@pytest.mark.parametrize(
    ("zone", "written"),
    [
        ("UTC", WRITTEN + EXTREME),
        ("Asia/Kathmandu", WRITTEN),
        ("America/St_Johns", WRITTEN),
    ],
)
async def test_instants_are_read_in_utc_whatever_the_sessions_zone(
    world: World, zone: str, written: list[tuple[str, datetime]]
) -> None:
    def body(connection: Connection) -> list[datetime | None]:
        connection.exec_driver_sql(f"SET LOCAL timezone = '{zone}'")
        texts = [text for text, _ in written]
        rows = connection.exec_driver_sql("SELECT unnest(%s::timestamptz[])", (texts,))
        return [row[0] for row in rows]

    me = await world.member()
    found = await me.store.database.call(body)
    assert found == [read for _, read in written]
    assert {one.utcoffset() for one in found if one} == {timedelta(0)}


async def test_no_instant_is_none(world: World) -> None:
    await world.member()
    assert await world.sql("SELECT NULL::timestamptz, NULL::uuid") == [(None, None)]


async def test_ids_are_read_as_the_library_reads_them(world: World) -> None:
    given = [uuid4() for _ in range(100)]

    def body(connection: Connection) -> list[UUID]:
        rows = connection.exec_driver_sql("SELECT unnest(%s::uuid[])", ([str(g) for g in given],))
        return [row[0] for row in rows]

    me = await world.member()
    found = await me.store.database.call(body)
    assert found == given
    assert [hash(one) for one in found] == [hash(one) for one in given]
    assert [str(one) for one in found] == [str(one) for one in given]
    assert pickle.loads(pickle.dumps(found)) == given
