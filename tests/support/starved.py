"""A worker's sessions and its shell executor, real, in a process that runs out of descriptors.

    python -m support.starved DIRECTORY {cgroups|births} {start|user|end|kill} [greedy]

`start`: attempts begin with room for 0, 1, 2, … more files; `user`: as a named user; `end`: one
ends when there is none left; `kill`: it is killed then. Both leave a process behind, which left its
session and cleared its environment. `greedy`: whatever is given back another takes at once.

Prints a line of JSON for each attempt, and one for what is left at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pwd
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from schedkit.clock import utcnow
from schedproto.v1 import job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.attempts import attempt_start
from support.descriptors import only, open_files
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.outcome import AttemptOutcome, Cause
from workerd.executors.base import AttemptStart, Stop
from workerd.executors.shell import ShellExecutor
from workerd.process import proc_files
from workerd.process.process_supervisor import ProcessSupervisor

CODE = 7
"""By which each program ends."""
_ROOMS = range(14)
_LONG = "86399"
"""Seconds that what an attempt leaves behind would sleep."""


def attempt(run: str, script: str, user: str = "") -> AttemptStart:
    key = pb.AssignmentKey(run_id=run, fencing_token=1)
    shell = job_pb2.ShellAction(script=script, user=user)
    assignment = pb.Assignment(key=key, shell=shell)
    assignment.kill_after.FromTimedelta(timedelta(seconds=0.5))
    return attempt_start(assignment, "worker", utcnow() + timedelta(hours=1))


@contextlib.contextmanager
def starved(left: int, *, greedy: bool) -> Iterator[None]:
    """No more files than so many; `greedy`: and none that is given back."""
    close, taken = os.close, []

    def close_and_take(fd: int) -> None:
        close(fd)
        with contextlib.suppress(OSError):
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    with only(left):
        if greedy:
            os.close = close_and_take
        try:
            yield
        finally:
            os.close = close
            for fd in taken:
                close(fd)


def report(outcome: AttemptOutcome, **more: object) -> None:
    line = {"verdict": outcome.verdict.name, "code": outcome.exit_code, "began": outcome.began}
    print(json.dumps({**line, "error": outcome.error, **more}), flush=True)


def sleepers() -> list[int]:
    """Return the running processes that attempts left behind."""
    found = []
    for process in proc_files.everyone():
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            if line[:2] == [b"sleep", _LONG.encode()] and process.session == process.pid:
                found.append(process.pid)
    return found


async def begin(shell: ShellExecutor, left: int, user: str, *, greedy: bool) -> None:
    with starved(left, greedy=greedy):
        outcome = await shell.run(attempt(f"{left}", f"exit {CODE}", user), Stop())
    report(outcome, left=left)


async def end(shell: ShellExecutor, home: Path, *, greedy: bool, kill: bool) -> None:
    """Run an attempt that leaves a process behind; it may end when a folder `go` exists."""
    go, stop, before = home / "go", Stop(), {*sleepers()}
    script = (
        f"env -i setsid -f sleep {_LONG} >/dev/null 2>&1\n"
        f"until [ -e {go} ]; do sleep 0.01; done\nexit {CODE}"
    )
    running = asyncio.create_task(shell.run(attempt("end", script), stop), name="attempt")
    await wait_until_async(lambda: {*sleepers()} - before, WAIT_TIMEOUT, "what it leaves behind")
    with starved(0, greedy=greedy):
        if kill:
            stop.ask(Cause.CANCEL, kill=True)
        else:
            go.mkdir()
        outcome = await running
    report(outcome)
    await wait_until_async(
        lambda: not {*sleepers()} - before, WAIT_TIMEOUT, "the end of what it left"
    )


async def main(home: Path, way: str, story: str, *, greedy: bool) -> None:
    before = open_files()
    sessions = ProcessSupervisor(home, wanted=way == "cgroups", handlers=False)
    assert sessions.grouped == (way == "cgroups")
    shell = ShellExecutor(sessions, home / "scratch")
    watching = asyncio.create_task(sessions.watch(), name="watch")
    report(await shell.run(attempt("first", f"exit {CODE}"), Stop()))
    if story in ("start", "user"):
        user = pwd.getpwuid(os.getuid()).pw_name if story == "user" else ""
        for left in _ROOMS:
            await begin(shell, left, user, greedy=greedy)
    else:
        await end(shell, home, greedy=greedy, kill=story == "kill")
    report(await shell.run(attempt("last", f"exit {CODE}"), Stop()))
    if watching.done():
        await watching
    watching.cancel()
    scratch = [path.name for path in (home / "scratch").iterdir()]
    sessions.close()
    leaked = {fd: name for fd, name in open_files().items() if before.get(fd) != name}
    alive = [process.pid for process in proc_files.everyone() if process.parent == os.getpid()]
    print(json.dumps({"leaked": leaked, "alive": alive, "scratch": scratch}), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    _, folder, *said = sys.argv
    asyncio.run(main(Path(folder), *said[:2], greedy="greedy" in said))
