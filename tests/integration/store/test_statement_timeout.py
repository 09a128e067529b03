"""A PostgreSQL that stands still: none of its own timeouts ends what waits for it (M10)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection

from schedd.store.connection.database import Database
from schedkit.errors import OutcomeUnknown, ScheddError, Unavailable
from support.postgres import ScratchServer
from support.wait import WAIT_TIMEOUT, wait_until_async


def pid_of(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_call_ends_though_the_server_hangs_and_the_next_one_is_served(
    dsn: str,
) -> None:
    """M10: a thread that waits for ever would be lost to the pool."""
    database = Database(dsn, lanes=1, readers=1, timeout=0.5)
    [backend] = [await database.call(pid_of)]
    with frozen(backend):
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await database.call(pid_of)
        assert time.monotonic() - began < 5
        assert await database.call(pid_of) != backend
    database.close()


async def test_a_commit_that_isnt_answered_in_time_is_in_doubt(dsn: str) -> None:
    """P1.3: cut off after COMMIT was sent, and not tried again: it may stand."""
    database = Database(dsn, lanes=1, readers=1, timeout=0.5)
    seen: list[int] = []

    def body(connection: Connection) -> None:
        seen.append(pid_of(connection))
        os.kill(seen[0], signal.SIGSTOP)

    try:
        with pytest.raises(OutcomeUnknown):
            await database.call(body)
    finally:
        os.kill(seen[0], signal.SIGCONT)
    assert len(seen) == 1
    database.close()


async def test_a_connection_that_broke_before_it_could_be_cut_ends_as_unavailable(
    dsn: str,
) -> None:
    """The server ended just at the timeout: its connection has no socket any more."""
    database = Database(dsn, lanes=1, readers=2, timeout=0.5)
    broken, seen = threading.Event(), threading.Event()

    def breaks(connection: Connection) -> None:
        connection.connection.dbapi_connection.close()  # type: ignore[union-attr]  # it has one
        broken.set()
        seen.wait(WAIT_TIMEOUT)

    breaking = asyncio.create_task(database.call(breaks), name="breaking")
    await asyncio.to_thread(broken.wait)
    calls = database._timeouts._calls
    await wait_until_async(
        lambda: any(call.cut for call in calls), WAIT_TIMEOUT, "its time to be over"
    )
    backend = await database.call(pid_of)
    with frozen(backend), pytest.raises(Unavailable):
        async with asyncio.timeout(5):
            await database.call(pid_of)
    seen.set()
    with pytest.raises(ScheddError):
        await breaking
    database.close()


async def test_closing_doesnt_wait_for_a_hung_server(dsn: str) -> None:
    """M10: else a member that was asked to end wouldn't."""
    database = Database(dsn, lanes=1, readers=1)
    backend = await database.call(pid_of)
    at_work = asyncio.Event()
    loop = asyncio.get_running_loop()

    def body(connection: Connection) -> int:
        loop.call_soon_threadsafe(at_work.set)
        return pid_of(connection)

    with frozen(backend):
        waiting = asyncio.create_task(database.call(body), name="waiting")
        queued = asyncio.create_task(database.call(body), name="queued")
        await at_work.wait()
        began = time.monotonic()
        database.close()
        assert time.monotonic() - began < 5
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await queued


async def test_a_call_that_is_done_quickly_is_never_cut(dsn: str) -> None:
    """Each has its own time: a connection lives longer than any of them."""
    database = Database(dsn, lanes=1, readers=1, timeout=1.5)
    ends = time.monotonic() + 3.5
    pids = set()
    while time.monotonic() < ends:
        pids.add(await database.call(pid_of))
        await asyncio.sleep(0.01)
    assert len(pids) == 1
    database.close()


async def test_after_a_reconnect_calls_go_over_new_connections(
    dsn: str, server: ScratchServer
) -> None:
    """P2.6: a server that was replaced is left at once."""
    database = Database(dsn, lanes=1, readers=1)
    before = await database.call(pid_of)
    database.reconnect()
    assert await database.call(pid_of) != before
    database.close()


async def test_a_rename_leaves_no_session_under_the_old_name(
    dsn: str, server: ScratchServer
) -> None:
    """P2.4: fencing finds the sessions of a tenure by their name. Idle threads keep none."""
    database = Database(dsn, lanes=2, readers=3, name="old tenure")
    together = threading.Barrier(5)

    def body(connection: Connection) -> int:
        together.wait(WAIT_TIMEOUT)
        return pid_of(connection)

    def named(name: str) -> int:
        query = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
        [(count,)] = server.execute(query)
        return int(count)

    try:
        calls = [database.on_lane([lane], body) for lane in (0, 1)]
        assert len(set(await asyncio.gather(*calls, *(database.call(body) for _ in "123")))) == 5
        assert named("old tenure") == 5
        database.rename("new tenure")
        await wait_until_async(lambda: named("old tenure") == 0, WAIT_TIMEOUT, "the old sessions")
        await database.call(pid_of)
        assert (named("old tenure"), named("new tenure")) == (0, 1)
    finally:
        database.close()


async def test_a_connection_that_was_at_work_during_a_reconnect_is_closed_when_its_call_ends(
    dsn: str,
) -> None:
    """Else it stays open until the collector comes, and so do many after a few changes."""
    database = Database(dsn, lanes=1, readers=2)
    at_work = asyncio.Event()
    proceed = threading.Event()
    loop = asyncio.get_running_loop()

    def body(connection: Connection) -> int:
        pid = pid_of(connection)
        loop.call_soon_threadsafe(at_work.set)
        assert proceed.wait(WAIT_TIMEOUT)
        return pid

    call = asyncio.create_task(database.call(body), name="at work")
    await at_work.wait()
    database.reconnect()
    proceed.set()
    pid = await call

    def others(connection: Connection) -> int:
        lives = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        return int(connection.exec_driver_sql(lives, (pid,)).scalar_one())

    async def gone() -> bool:
        return await database.on_lane([0], others) == 0  # the thread of the call stays idle

    await wait_until_async(gone, WAIT_TIMEOUT, "the old connection to be closed")
    database.close()
