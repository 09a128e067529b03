"""How programs are started: in a cgroup by the launcher, or plainly where there are none.

Invariants
- Either way the program leads a session and a process group of its own, is a child of this
  process, and carries the worker's mark in its environment from its first instruction.
- Nothing ran when an `OSError` is raised, unless it is a `Begun`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from workerd import cgroups, procs
from workerd.launcher import HEAD, REPLY, Order, Stage

_PATIENCE_AT_START = 30.0
_PATIENCE = 5.0
"""Seconds within which a launcher answers; it takes less than one thousandth of that."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and in which surroundings."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdin: BinaryIO | int
    user: pwd.struct_passwd | None = None
    umask: int | None = None


class Begun(OSError):
    """What failed after the program had begun, or may have; it was killed."""


class Process(Protocol):
    """A program that was started."""

    @property
    def pid(self) -> int:
        """Its number, until `wait` has returned."""
        ...

    def wait(self) -> int:
        """Reap it: its exit code, or minus the signal that ended it."""
        ...


def plainly(program: Program, mark: str, out: int, err: int) -> Process:
    """Start it; `out` and `err` are open files.

    Raises:
        OSError: it can't be started.
        ValueError: an argument or a variable can't be passed on, such as one with a zero byte.
    """
    user = program.user
    return subprocess.Popen(
        program.argv,
        env={**program.env, procs.MARK: mark},
        cwd=program.cwd,
        stdin=program.stdin,
        stdout=out,
        stderr=err,
        start_new_session=True,
        umask=-1 if program.umask is None else program.umask,
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        extra_groups=None if user is None else (),
    )


class Launcher:
    """The worker's hold on its launcher process, and on the tree in which it gives birth."""

    def __init__(self, tree: Path, mark: str) -> None:
        """Make the tree, start the process, and try it; blocks for a moment.

        Raises:
            OSError: no process can be born in a cgroup here; nothing is left of the attempt.
        """
        self.tree = tree
        self._mark = mark
        tree.mkdir()
        try:
            self._start()
            self._try()
        except OSError:
            self.close()
            raise

    def launch(self, program: Program, group: cgroups.Group, out: int, err: int) -> Process:
        """Start it inside `group`. Raises as `plainly` does."""
        order = _order(program, self._mark).encoded()
        with contextlib.ExitStack() as stack:
            files = [_folder(group.path, stack), _file(program.stdin, stack), out, err]
            try:
                socket.send_fds(self._socket, [HEAD.pack(len(order))], files)
                self._socket.sendall(order)
                reply = self._socket.recv(REPLY.size, socket.MSG_WAITALL)
            except OSError:  # it was killed, or stands still
                reply = b""
        if len(reply) < REPLY.size:
            group.kill()  # whatever was born meanwhile; it is reaped as an orphan
            self._end()
            self._start()
            raise Begun(errno.EAGAIN, "the launcher process was lost", program.argv[0])
        pid, stage, number = REPLY.unpack(reply)
        if stage == Stage.DONE:
            return _Child(pid)
        if stage == Stage.CLONE:  # no failure of the program's
            raise OSError(errno.EAGAIN, f"no birth in a cgroup: {os.strerror(number)}", group.path)
        os.waitpid(pid, 0)
        about = str(program.cwd) if stage == Stage.CWD else program.argv[0]
        raise OSError(number, os.strerror(number), about)

    def close(self) -> None:
        """End it, and whatever is left in the tree."""
        self._end()
        cgroups.clear(self.tree, self._mark)

    def _try(self) -> None:
        """Where a program that isn't there is missed, a child was born that missed it."""
        group = cgroups.Group(self.tree / "trial")
        missing = Program([str(group.path / "no-program")], {}, Path("/"), subprocess.DEVNULL)
        with Path(os.devnull).open("wb") as nowhere, contextlib.suppress(FileNotFoundError):
            self._socket.settimeout(_PATIENCE_AT_START)
            self.launch(missing, group, nowhere.fileno(), nowhere.fileno())
        self._socket.settimeout(_PATIENCE)
        group.remove()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_PATIENCE)
        safe_path = ["-P"] if sys.flags.safe_path else []
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *safe_path, "-m", "workerd.launcher"],
                stdin=theirs.fileno(),
                start_new_session=True,
            )

    def _end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def _order(program: Program, mark: str) -> Order:
    """Raises ValueError for what no program can be given."""
    user = program.user
    return Order(
        argv=[_text(each) for each in program.argv],
        env={_name(name): _text(value) for name, value in program.env.items()} | {procs.MARK: mark},
        cwd=_text(str(program.cwd)),
        umask=program.umask,
        user=None if user is None else (user.pw_uid, user.pw_gid),
    )


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("embedded null byte")
    return os.fsencode(text).decode("latin-1")


def _name(name: str) -> str:
    if "=" in name:
        raise ValueError(f"illegal environment variable name: {name!r}")
    return _text(name)


def _folder(path: Path, stack: contextlib.ExitStack) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _file(stdin: BinaryIO | int, stack: contextlib.ExitStack) -> int:
    if stdin == subprocess.DEVNULL:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        return fd
    return stdin if isinstance(stdin, int) else stdin.fileno()
