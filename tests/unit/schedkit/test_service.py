"""The life cycle of a daemon: a real process, real signals, a real socket of a service manager."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schedkit.daemon.service import Notifier

SOON = 20.0

PROGRAM = """
import asyncio, os, sys
from schedkit.daemon import logs
from schedkit.errors import Fault, Misconfigured, NotNow
from schedkit.daemon.service import Daemon, run_daemon

async def main(daemon: Daemon) -> None:
    logs.configure("info", "text", "test")
{body}

sys.exit(run_daemon(main))
"""

SERVES = """
    daemon.ready("serving\\ntwo lines")
    await daemon.draining.wait()
    daemon.status("handing over")
"""
NEVER_DRAINS = """
    daemon.ready("serving")
    await asyncio.Event().wait()
"""
LEAVES_DEAF_ONES_BEHIND = """
    async def deaf():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
    global kept
    kept = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    raise Misconfigured("no such thing")
"""
RELOADS = """
    daemon.ready("serving")
    await daemon.reload.wait()
    daemon.reload.clear()
    daemon.ready("serving again")
    await daemon.draining.wait()
"""
HANGS = """
    daemon.ready("serving")
    await asyncio.sleep(0.2)
    daemon.status("hanging")
    os.read(0, 1)
"""


class Manager:
    """A service manager that receives messages."""

    def __init__(self, ear: socket.socket, address: str) -> None:
        self.address = address
        self._ear = ear

    def receives(self, line: str) -> list[str]:
        """Return the lines of the first message that contains `line`."""
        while True:
            lines = self._ear.recv(4096).decode().splitlines()
            if line in lines:
                return lines

    def receives_within(self, line: str, seconds: float) -> bool:
        """Return whether the line arrives in this time."""
        self._ear.settimeout(seconds)
        try:
            self.receives(line)
        except TimeoutError:
            return False
        finally:
            self._ear.settimeout(SOON)
        return True


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = f"{tmp_path}/notify" if request.param == "path" else f"@schedd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.settimeout(SOON)
        ear.bind(path.replace("@", "\0"))
        yield Manager(ear, path)


@contextmanager
def daemon(body: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    indented = textwrap.indent(textwrap.dedent(body), "    ")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=indented)],
        env=os.environ | environ,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ends(process: subprocess.Popen[str]) -> int:
    return process.wait(SOON)


def test_sigterm_drains_and_the_service_manager_receives_each_stage(manager: Manager) -> None:
    with daemon(SERVES, NOTIFY_SOCKET=manager.address) as process:
        assert manager.receives("READY=1") == ["READY=1", "STATUS=serving two lines"]
        process.send_signal(signal.SIGTERM)
        assert manager.receives("STOPPING=1") == ["STOPPING=1", "STATUS=draining: SIGTERM"]
        manager.receives("STATUS=handing over")
        assert ends(process) == 0


@pytest.mark.slow
def test_a_task_that_swallows_its_cancel_does_not_keep_a_daemon_running() -> None:
    with daemon(LEAVES_DEAF_ONES_BEHIND) as process:
        assert ends(process) == 2
        assert process.stderr is not None
        output = process.stderr.read()
    assert "no such thing" in output
    assert "some tasks don't end" in output


def test_the_same_signal_twice_ends_the_process_at_once(manager: Manager) -> None:
    with daemon(NEVER_DRAINS, NOTIFY_SOCKET=manager.address) as process:
        manager.receives("READY=1")
        process.send_signal(signal.SIGTERM)
        manager.receives("STOPPING=1")
        process.send_signal(signal.SIGTERM)
        assert ends(process) == 128 + signal.SIGTERM


def test_an_interrupt_and_a_termination_drain_once(manager: Manager) -> None:
    body = """
        daemon.ready("serving")
        await daemon.draining.wait()
        os.read(0, 1)
    """
    with daemon(body, NOTIFY_SOCKET=manager.address) as process:
        manager.receives("READY=1")
        process.send_signal(signal.SIGINT)
        manager.receives("STOPPING=1")
        process.send_signal(signal.SIGTERM)
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
        assert ends(process) == 0


def test_sighup_reloads_and_the_daemon_is_ready_again(manager: Manager) -> None:
    with daemon(RELOADS, NOTIFY_SOCKET=manager.address) as process:
        manager.receives("READY=1")
        process.send_signal(signal.SIGHUP)
        assert manager.receives("RELOADING=1")[1].startswith("MONOTONIC_USEC=")
        assert manager.receives("READY=1") == ["READY=1", "STATUS=serving again"]
        process.send_signal(signal.SIGTERM)
        assert ends(process) == 0


@pytest.mark.slow
def test_the_watchdog_is_fed_until_the_loop_hangs(manager: Manager) -> None:
    period = {"WATCHDOG_USEC": "80000"}
    with daemon(HANGS, NOTIFY_SOCKET=manager.address, **period) as process:
        manager.receives("WATCHDOG=1")
        manager.receives("WATCHDOG=1")
        manager.receives("STATUS=hanging")
        assert not manager.receives_within("WATCHDOG=1", 0.5)
        assert process.poll() is None


def test_a_bug_ends_the_process_with_1_and_its_traceback() -> None:
    body = """
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60), name="sleeper")
            raise Fault("two owners")
    """
    with daemon(body) as process:
        assert ends(process) == 1
        assert process.stderr is not None
        output = process.stderr.read()
    assert "a bug ends this process" in output
    assert "Traceback" in output
    assert "two owners" in output


def test_a_write_that_the_operating_system_rejects_exits_with_74_and_no_traceback() -> None:
    body = """
        daemon.ready("serving")
        async with asyncio.TaskGroup() as group:
            raise OSError(30, os.strerror(30), "/var/lib/workerd/1.journal")
    """
    with daemon(body) as process:
        assert ends(process) == 74
        assert process.stderr is not None
        output = process.stderr.read()
    assert "/var/lib/workerd/1.journal: Read-only file system; mount the file system" in output
    assert "bug" not in output
    assert "Traceback" not in output


def test_an_invalid_configuration_exits_with_2_and_no_traceback() -> None:
    body = """
        async with asyncio.TaskGroup() as group:
            raise Misconfigured("schedd.toml:3: unknown key 'x'")
    """
    with daemon(body) as process:
        assert ends(process) == 2
        assert process.stderr is not None
        assert process.stderr.read() == "schedd.toml:3: unknown key 'x'\n"


@pytest.mark.parametrize("error", ["Misconfigured", "NotNow"])
def test_a_daemon_that_has_served_never_exits_with_a_code_that_prevents_its_restart(
    error: str,
) -> None:
    body = f"""
        daemon.ready("serving")
        raise {error}("a certificate can't be read")
    """
    with daemon(body) as process:
        assert ends(process) == 1
        assert process.stderr is not None
        assert "a certificate can't be read" in process.stderr.read()


def test_a_temporary_problem_exits_with_75() -> None:
    with daemon('raise NotNow("No space left on device")') as process:
        assert ends(process) == 75
        assert process.stderr is not None
        assert process.stderr.read() == "No space left on device\n"


def test_children_cannot_notify_in_the_daemons_name() -> None:
    environ = {
        "NOTIFY_SOCKET": "/run/none",
        "WATCHDOG_USEC": "1000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/root",
    }
    notifier = Notifier.from_environment(environ)
    assert environ == {"HOME": "/root"}
    assert notifier.watchdog == 1.0
    notifier.close()


def test_a_watchdog_for_another_process_is_ignored() -> None:
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"})
    assert notifier.watchdog is None


@pytest.mark.parametrize("address", ["", "/nonexistent/notify", "@no-listener-here"])
def test_a_missing_service_manager_causes_no_failure(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "schedkit.daemon.service")
    notifier = Notifier(address)
    notifier.ready("serving")
    notifier.beat()
    notifier.close()
    notifier.stopping("stopped")
    unheard = [record.getMessage().split(":")[0] for record in caplog.records]
    tried = ["READY=1", "WATCHDOG=1"] if address else []
    assert unheard == [f"notification to the service manager failed ({what})" for what in tried]
