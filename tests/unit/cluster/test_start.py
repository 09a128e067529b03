"""A daemon that starts before its database: it waits, and ends when it is asked to."""

import asyncio
import socket
from pathlib import Path

import pytest

from schedd.app.daemon import LOOK_EVERY, ServingStatus, once_available
from schedkit.daemon.service import Daemon, Notifier, answer_reloads
from schedkit.errors import Fault, Unavailable
from support.wait import WAIT_TIMEOUT, wait_until_async


@pytest.fixture
def daemon() -> Daemon:
    return Daemon(Notifier.from_environment({}))


async def test_a_daemon_waits_until_the_database_is_available(daemon: Daemon):
    answers = iter([Unavailable("away"), Unavailable("away")])

    async def look() -> str:
        for away in answers:
            raise away
        return "cluster"

    assert await once_available(look, "PostgreSQL", daemon) == "cluster"


async def test_a_stop_request_ends_a_member_that_waits(daemon: Daemon):
    async def look() -> str:
        daemon.drain("SIGTERM")
        raise Unavailable("away")

    async with asyncio.timeout(WAIT_TIMEOUT):
        assert await once_available(look, "PostgreSQL", daemon) is None


async def test_a_stop_request_ends_a_member_whose_database_doesnt_answer(daemon: Daemon):
    async def look() -> str:
        daemon.drain("SIGTERM")
        await asyncio.Event().wait()
        return "never"

    async with asyncio.timeout(WAIT_TIMEOUT):
        assert await once_available(look, "PostgreSQL", daemon) is None


async def test_a_bug_at_the_start_is_raised(daemon: Daemon):
    async def look() -> str:
        raise Fault("a bug")

    with pytest.raises(Fault):
        await once_available(look, "PostgreSQL", daemon)


@pytest.mark.slow
async def test_a_member_starts_once_etcd_answers_and_reports_why_it_isnt_ready(
    tmp_path: Path,
):
    answered, reasons, lines = [False], ["the member hasn't joined the cluster yet"], list[str]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(address := str(tmp_path / "notify"))
        daemon = Daemon(Notifier.from_environment({"NOTIFY_SOCKET": address}))
        serving_status = ServingStatus(daemon, "m1: up", lambda: answered[0], lambda: reasons)
        tasks = [asyncio.create_task(run()) for run in (serving_status.start, serving_status.tell)]

        async def receive(wanted: str) -> None:
            async with asyncio.timeout(WAIT_TIMEOUT):
                while True:
                    line = (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode()
                    lines.append(line)
                    if line == wanted:
                        return
                    assert answered[0] or not line.startswith("READY"), "etcd hasn't answered"

        await receive("STATUS=m1: up; waiting for etcd")
        await asyncio.sleep(0.5 * LOOK_EVERY)
        answered[0] = True
        await receive("READY=1\nSTATUS=m1: up")
        assert lines.count("STATUS=m1: up; waiting for etcd") == 1, "said once"
        await receive("STATUS=m1: up; not ready: the member hasn't joined the cluster yet")
        reasons.clear()
        await receive("STATUS=m1: up")
        daemon.draining.set()
        reasons.append("it was asked to end")
        await asyncio.sleep(1.2 * LOOK_EVERY)
        with pytest.raises(BlockingIOError):  # it tells that itself
            manager.recv(4096)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_each_reload_is_answered(tmp_path: Path):
    """The service manager waits for READY, and says that the reload has failed if none comes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(address := str(tmp_path / "notify"))
        taken: list[int] = []
        daemon = Daemon(
            Notifier.from_environment({"NOTIFY_SOCKET": address}), lambda: taken.append(1)
        )
        answering = asyncio.create_task(answer_reloads(daemon, "serving"), name="reload")
        for _ in range(2):
            daemon.reload.set()
            async with asyncio.timeout(WAIT_TIMEOUT):
                message = await asyncio.get_running_loop().sock_recv(manager, 4096)
            assert message == b"READY=1\nSTATUS=serving"
            assert not daemon.reload.is_set()
        assert taken == [1, 1]
        daemon.draining.set()
        daemon.reload.set()
        await wait_until_async(
            lambda: not daemon.reload.is_set(), WAIT_TIMEOUT, "the reload to be handled"
        )
        with pytest.raises(BlockingIOError):  # it isn't ready: it ends
            manager.recv(4096)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
