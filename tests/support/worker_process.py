"""A real `python -m workerd`, and the members it attaches to.

async with cluster(tmp_path) as (member, worker):
    stream = await member.attached()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

from support import fork_server
from support.fake_member import FakeMember
from support.wait import WAIT_TIMEOUT, wait_until_async


class WorkerProcess:
    """A worker daemon with a spool and a log of its own."""

    def __init__(self, home: Path, endpoints: Sequence[str], name: str = "w1", **how: str) -> None:
        """`how` are further flags, such as `slots="2"`."""
        self.home = home
        self.spool = home / "spool"
        self.log = home / "worker.log"
        self.flags = {
            "name": name,
            "endpoints": ",".join(endpoints),
            "spool": str(self.spool),
            "listen_http": "127.0.0.1:0",
            "log_level": "debug",
        } | how
        self.config = ""
        """TOML for what has no flag."""
        self.environ: dict[str, str] = {}
        self.cgroup: Path | None = None
        """Where it is started, if not where the test stands."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; returns before it is attached."""
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / "workerd.toml"
        file.write_text(self._settings())
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.flags.items()]
        with self.log.open("ab") as log:
            self._process = fork_server.Popen(
                [*self._moved(), sys.executable, "-m", "workerd", f"--config={file}", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
            )

    def _settings(self) -> str:
        """The configuration, with a result store of its own if it names none."""
        url = f'[results]\nurl = "{(self.home / "results").absolute().as_uri()}"\n'
        if "[results]\n" not in self.config:
            return f"{self.config}\n{url}"
        return self.config if "\nurl =" in self.config else self.config.replace("[results]\n", url)

    def _moved(self) -> list[str]:
        if self.cgroup is None:
            return []
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.cgroup / "cgroup.procs")]

    def runs(self) -> bool:
        """Return whether it was started and hasn't ended."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def ended(self, timeout: float = WAIT_TIMEOUT) -> int:
        """Its exit code."""
        process = self._process
        assert process is not None
        await wait_until_async(lambda: process.poll() is not None, timeout, "the worker's end")
        assert process.returncode is not None
        return process.returncode

    async def stop(self) -> None:
        """End it, by force if it must be."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            await self.ended(3.0)
        except AssertionError:
            self.kill()

    async def http_port(self) -> int:
        """Where it serves health and metrics; where it did last, if it was started again and isn't
        attached yet.
        """

        def ports() -> list[str]:
            return re.findall(r"listens on port (\d+)", self.log.read_text())

        return int((await wait_until_async(ports, WAIT_TIMEOUT, "the worker's port"))[-1])

    def keeper_pid(self) -> int:
        """Its keeper process."""
        (keeper,) = self.own("workerd.process.keeper")
        return keeper

    def own(self, module: str) -> list[int]:
        """Its child processes that run this module of its own."""
        return [child for child in self.children() if module.encode() in _command(child)]

    def children(self) -> list[int]:
        """All its child processes."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(each) for each in text.split()]

    def strangers(self) -> list[int]:
        """Its child processes that run none of its own modules, the dead among them."""
        own = self.own("workerd.")
        return [child for child in self.children() if child not in own]


@contextlib.asynccontextmanager
async def cluster(
    home: Path,
    *,
    config: str = "",
    environ: dict[str, str] | None = None,
    ahead: timedelta = timedelta(),
    ttl: float = 15.0,
    cgroup: Path | None = None,
    **how: str,
) -> AsyncIterator[tuple[FakeMember, WorkerProcess]]:
    """A member that acknowledges results, and a worker that is attached and has slots granted.

    `ahead`: by how much the member's time is ahead of this host's. `ttl`: of the worker's lease.
    `cgroup`: where the worker is started.
    """
    async with FakeMember(ttl=ttl) as member:
        member.acknowledge_results = True
        member.ahead = ahead
        worker = WorkerProcess(home, [member.address], **how)
        worker.config = config
        worker.environ = environ or {}
        worker.cgroup = cgroup
        worker.start()
        try:
            await (await member.attached()).granted_at_least(1)
            yield member, worker
        except BaseException:
            sys.stderr.write(worker.log.read_text())
            raise
        finally:
            member.acknowledge_results = True
            await worker.stop()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie doesn't)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def pid_in(file: Path) -> int:
    """The process id that a job writes to a file."""
    text = await wait_until_async(
        lambda: file.exists() and file.read_text().strip(), WAIT_TIMEOUT, f"a pid in {file.name}"
    )
    return int(str(text))


def _command(pid: int) -> bytes:
    """How it was called; nothing of one that has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def wait_until_ended(pid: int, within: float = WAIT_TIMEOUT) -> None:
    """Return when the process has ended."""
    await wait_until_async(lambda: not alive(pid), within, f"the end of process {pid}")


async def http_get(port: int, path: str) -> tuple[int, str]:
    """A plain request to this host."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body
