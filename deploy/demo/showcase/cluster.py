"""Start the demo's cluster with `schedctl dev up`, and remove it at the end.

A guard process holds a pipe to the demo. If the pipe closes without a message, the demo was killed,
and the guard stops the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
MEMBERS, WORKERS, SLOTS = 3, 2, 16


class CommandFailed(Exception):
    """A `schedctl` command failed. Shows its output. `code` is its exit code."""

    def __init__(self, command: str, code: int, said: str) -> None:
        super().__init__(f"{command} failed ({code}):\n{said.strip()}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Addresses:
    """The cluster's addresses: `host:port` of each member's gRPC, and the dashboard."""

    endpoints: tuple[str, ...]
    dashboard: str


class Cluster:
    """A development cluster in a folder. `ours`: the folder is deleted with it."""

    def __init__(self, folder: Path, *, ours: bool) -> None:
        self.folder = folder
        self._ours = ours
        self._guard: subprocess.Popen[bytes] | None = None

    async def up(self) -> Addresses:
        """Start everything and wait until it is ready.

        Raises:
            CommandFailed: the start failed.
        """
        self._guard = _guard(self._down_command())
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        await schedctl(
            *("dev", "up", "--detach", "--dir", str(self.folder)),
            *("--members", str(MEMBERS), "--workers", str(WORKERS), "--slots", str(SLOTS)),
            *("--set", 'workerd.handlers=["demo_handlers"]'),
            env={"PYTHONPATH": os.pathsep.join(paths)},
        )
        members = json.loads((self.folder / "cluster.json").read_text())["members"]
        return Addresses(
            tuple(member["grpc"] for member in members), f"http://{members[0]['http']}"
        )

    def keep(self) -> None:
        self._dismiss_guard()

    def down(self) -> None:
        """Stop everything. Blocks until no process runs. Ctrl-C doesn't interrupt it.

        Raises:
            CommandFailed: something may be left; the message says what.
        """
        done = subprocess.run(
            self._down_command(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        self._dismiss_guard()
        if done.returncode:
            raise CommandFailed("schedctl dev down", done.returncode, done.stderr)

    def _down_command(self) -> list[str]:
        return _command("dev", "reset" if self._ours else "down", "--dir", str(self.folder))

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.communicate(b"\n")
            self._guard = None


async def schedctl(*args: str, env: Mapping[str, str] | None = None) -> str:
    """Run a `schedctl` command. Return its stdout.

    Raises:
        CommandFailed: its exit code isn't 0.
    """
    process = await asyncio.create_subprocess_exec(
        *_command(*args),
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode:
        name = " ".join(("schedctl", *args[:2]))
        raise CommandFailed(name, process.returncode, err.decode(errors="replace"))
    return out.decode()


def _command(*args: str) -> list[str]:
    return [sys.executable, "-P", "-m", "schedctl", *args]


def _guard(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # A line means a normal end. The end of the pipe without a line means that the demo was
        # killed.
        ["sh", "-c", 'read _ || exec "$@"', "guard", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
