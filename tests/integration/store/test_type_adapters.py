"""Columns as the driver reads them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from schedd.core.ids import Id, new_id
from schedd.store.connection.type_adapters import EARLIEST, LATEST, LONGEST
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


OUT_OF_RANGE = [
    ("infinity", LATEST),
    ("-infinity", EARLIEST),
    ("294276-12-31 23:59:59.999999+00", LATEST),
    ("10000-01-01 12:00:00+00", LATEST),
    ("4713-01-01 00:00:00+00 BC", EARLIEST),
    ("0001-12-31 23:59:59+00 BC", EARLIEST),
]
NEAR_THE_ENDS = [
    "0001-01-01 00:00:00+00",
    "0001-01-01 09:00:00+00",
    "9999-12-31 23:59:59.999999+00",
]


@pytest.mark.parametrize(
    "zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu", "<x>+15:59"]
)
async def test_every_timestamp_that_postgresql_holds_is_read_in_every_zone(
    world: World, zone: str
) -> None:
    def body(connection: Connection) -> list[datetime]:
        connection.exec_driver_sql(f"SET LOCAL timezone = '{zone}'")
        texts = [text for text, _ in OUT_OF_RANGE] + NEAR_THE_ENDS
        rows = connection.exec_driver_sql("SELECT unnest(%s::timestamptz[])", (texts,))
        return [row[0] for row in rows]

    me = await world.member()
    found = await me.store.database.call(body)
    assert found[: len(OUT_OF_RANGE)] == [read for _, read in OUT_OF_RANGE]
    day = timedelta(days=1)
    for read, near in zip(found[len(OUT_OF_RANGE) :], (EARLIEST, EARLIEST, LATEST), strict=True):
        assert abs(read - near) <= 2 * day
        assert read.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1 day 02:03:04.5", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("-3 days", timedelta(days=-3)),
        ("178000000 years", LONGEST),
        ("-178000000 years", -LONGEST),
        ("2147483647 days", LONGEST),
        ("2562047788:00:54.775807", LONGEST),
    ],
)
async def test_every_interval_that_postgresql_holds_is_read(
    world: World, text: str, read: timedelta
) -> None:
    await world.member()
    assert await world.sql(f"SELECT '{text}'::interval") == [(read,)]


async def test_a_null_timestamp_is_read_as_none(world: World) -> None:
    await world.member()
    assert await world.sql("SELECT NULL::timestamptz, NULL::uuid") == [(None, None)]


async def test_ids_are_read_as_the_library_reads_them(world: World) -> None:
    given = [new_id() for _ in range(100)]

    def body(connection: Connection) -> list[Id]:
        rows = connection.exec_driver_sql("SELECT unnest(%s::uuid[])", ([str(g) for g in given],))
        return [row[0] for row in rows]

    me = await world.member()
    found = await me.store.database.call(body)
    assert found == given
    assert [hash(one) for one in found] == [hash(one) for one in given]
    assert [str(one) for one in found] == [str(one) for one in given]
    assert pickle.loads(pickle.dumps(found)) == given
