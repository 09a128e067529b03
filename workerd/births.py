"""How programs are started: in a cgroup by a cradle, or plainly where there are none.

    launcher (a process) ──makes──→ cradle (a process in a cgroup) ──starts──→ program, and another

Invariants
- Either way the program leads a session and a process group of its own, and carries the worker's
  mark in its environment from its first instruction.
- A cradle is used again only when nothing but itself is left in its cgroup; else all of it goes.
- Nothing ran when an `OSError` is raised, unless it is a `Begun`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from workerd import cgroups, procs
from workerd.launcher import BORN, ENDED, HEAD, Order

log = logging.getLogger(__name__)

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

    def fileno(self) -> int:
        """An open file that can be read from when it has ended, until `wait` has returned."""
        ...

    def wait(self) -> int:
        """Kill its process group and reap it: its exit code, or minus the signal that ended it."""
        ...


class Plain:
    """A child of this process, in no cgroup of its own."""

    def __init__(self, program: Program, mark: str, out: int, err: int) -> None:
        """Start it; `out` and `err` are open files.

        Raises:
            OSError: it can't be started.
            ValueError: an argument or a variable can't be passed on, such as one with a zero byte.
        """
        user = program.user
        self._process = subprocess.Popen(
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
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)

    def fileno(self) -> int:
        """Of its pidfd."""
        return self._pidfd

    def wait(self) -> int:
        """Reap it, its group first."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        os.close(self._pidfd)
        return self._process.wait()


class Cradle:
    """A process in a cgroup of its own that starts one program after the other there."""

    def __init__(self, group: cgroups.Group, pid: int, ours: socket.socket) -> None:
        self._group = group
        self._pid = pid
        self._socket = ours
        self._killed = False
        self.pid = 0
        """Of the program."""

    def start(self, program: Program, mark: str, out: int, err: int) -> None:
        """Start it. Raises as `Plain` does, and a `Begun` when the cradle was lost meanwhile."""
        order = _order(program, mark).encoded()
        try:
            with _opened(program.stdin) as stdin:
                socket.send_fds(self._socket, [HEAD.pack(len(order))], [stdin, out, err])
            self._socket.sendall(order)
            pid, number, about_cwd = BORN.unpack(_received(self._socket, BORN.size))
        except OSError as error:
            self.kill()
            raise Begun(errno.EAGAIN, "a cradle was lost", program.argv[0]) from error
        if not pid:
            about = str(program.cwd) if about_cwd else program.argv[0]
            raise OSError(number, os.strerror(number), about)
        self.pid = pid

    def fileno(self) -> int:
        """Of the socket on which its end is told."""
        return self._socket.fileno()

    def wait(self) -> int:
        """What the cradle tells of its end; where it was killed, so was the program."""
        try:
            self._socket.settimeout(None)
            (code,) = ENDED.unpack(_received(self._socket, ENDED.size))
        except OSError:
            self.kill()
            return -signal.SIGKILL
        self._socket.settimeout(_PATIENCE)
        with contextlib.suppress(BrokenPipeError):  # killed since; nothing is reaped too early
            self._socket.sendall(b".")
        return int(code)

    def kill(self) -> None:
        """All that stands in its cgroup, and itself."""
        self._killed = True
        self._group.kill()

    def reusable(self) -> bool:
        """Whether it lives, and nothing but itself is in its cgroup."""
        return not self._killed and self._group.holds_only(self._pid)

    def remove(self) -> bool:
        """Away with its cgroup; False when something in it still lives."""
        if not self._group.remove():
            return False
        self._socket.close()
        return True


class Launcher:
    """The worker's hold on its launcher process, and on the tree in which it gives birth."""

    def __init__(self, tree: Path, mark: str) -> None:
        """Make the tree, start the process, and try it; blocks for a moment.

        Raises:
            OSError: no process can be born in a cgroup here; nothing is left of the attempt.
        """
        self.tree = tree
        self._mark = mark
        self._numbers = itertools.count(1)
        self._idle: list[Cradle] = []
        tree.mkdir()
        self._start()
        try:
            self._socket.settimeout(_PATIENCE_AT_START)
            self.give_back(self.take())
            self._socket.settimeout(_PATIENCE)
        except OSError:
            self.close()
            raise

    def take(self) -> Cradle:
        """One that is idle, or a new one.

        Raises:
            OSError: EAGAIN, none can be had now.
        """
        while self._idle:
            cradle = self._idle.pop()
            if cradle.reusable():  # and wasn't killed by a stranger
                return cradle
            cradle.kill()
            cradle.remove()
        path = self.tree / f"slot-{next(self._numbers)}"
        try:
            group = cgroups.Group(path)
        except OSError as error:  # a limit of the host's, no failure of a program's
            raise OSError(errno.EAGAIN, f"no cgroup: {error.strerror}", path) from error
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = self._birth(group, theirs)
            except OSError as error:
                ours.close()
                group.kill()
                group.remove()
                about = f"no birth in a cgroup: {error.strerror or error}"
                raise OSError(errno.EAGAIN, about, path) from error
        ours.settimeout(_PATIENCE)
        return Cradle(group, pid, ours)

    def give_back(self, cradle: Cradle) -> None:
        """It is alone, and may be used again."""
        self._idle.append(cradle)

    def close(self) -> None:
        """End it, and whatever is left in the tree."""
        self._end()
        cgroups.clear(self.tree, self._mark)

    def _birth(self, group: cgroups.Group, theirs: socket.socket) -> int:
        if self._process.poll() is not None:
            log.error("the launcher process is gone; starting another")
            self._end()
            self._start()
        folder = os.open(group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            socket.send_fds(self._socket, [b"."], [folder, theirs.fileno()])
            pid, number, _ = BORN.unpack(_received(self._socket, BORN.size))
        finally:
            os.close(folder)
        if number:
            raise OSError(number, os.strerror(number))
        return int(pid)

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


def _received(ours: socket.socket, size: int) -> bytes:
    """Raises OSError when the other end closes or stands still."""
    data = b""
    while len(data) < size:
        more = ours.recv(size - len(data))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "it has ended")
        data += more
    return data


def _order(program: Program, mark: str) -> Order:
    """Raises ValueError for what no program can be given."""
    user = program.user
    return Order(
        argv=[_text(each) for each in program.argv],
        env={_name(name): _text(value) for name, value in program.env.items()} | {procs.MARK: mark},
        cwd=_text(str(program.cwd)),
        umask=-1 if program.umask is None else program.umask,
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


@contextlib.contextmanager
def _opened(stdin: BinaryIO | int) -> Iterator[int]:
    if stdin != subprocess.DEVNULL:
        yield stdin if isinstance(stdin, int) else stdin.fileno()
        return
    fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
