"""A daemon that starts before its database: it waits, and ends when it is asked to."""

import asyncio

import pytest

from schedd.app.lifecycle import answer_reloads, once_available
from schedkit.errors import Fault, Unavailable
from schedkit.notify import Notifier
from schedkit.service import Daemon
from support.wait import PATIENCE, wait_until_async


@pytest.fixture
def daemon() -> Daemon:
    return Daemon(Notifier.take({}))


async def test_it_waits_until_the_database_is_there(daemon: Daemon):
    answers = iter([Unavailable("away"), Unavailable("away")])

    async def look() -> str:
        for away in answers:
            raise away
        return "cluster"

    assert await once_available(look, "PostgreSQL", daemon) == "cluster"


async def test_asked_to_end_while_it_waits_it_ends(daemon: Daemon):
    async def look() -> str:
        daemon.drain("SIGTERM")
        raise Unavailable("away")

    async with asyncio.timeout(PATIENCE):
        assert await once_available(look, "PostgreSQL", daemon) is None


async def test_asked_to_end_while_the_database_doesnt_answer_it_ends(daemon: Daemon):
    async def look() -> str:
        daemon.drain("SIGTERM")
        await asyncio.Event().wait()
        return "never"

    async with asyncio.timeout(PATIENCE):
        assert await once_available(look, "PostgreSQL", daemon) is None


async def test_a_bug_at_the_start_comes_out(daemon: Daemon):
    async def look() -> str:
        raise Fault("a bug")

    with pytest.raises(Fault):
        await once_available(look, "PostgreSQL", daemon)


async def test_a_reload_is_answered(daemon: Daemon):
    daemon.reload.set()
    answering = asyncio.create_task(answer_reloads(daemon, "serving"), name="reload")
    await wait_until_async(
        lambda: not daemon.reload.is_set(), PATIENCE, "the reload to be answered"
    )
    answering.cancel()
