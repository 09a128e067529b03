"""Gives birth to programs inside a cgroup, for a worker that can't do so itself.

    worker ──program, files──→ launcher ──clone3──→ child, born in its cgroup ──exec──→ program
       └──────────────────── its parent is the worker ─────────────┘

Moving a process into a cgroup takes milliseconds and comes too late: by then it may have forked.
To be born there it takes clone3, which is a fork; a worker is too big and has too many threads
for one, this process has neither. The child is made the worker's own (CLONE_PARENT), which waits
for it as for any other.

Run as `python -m workerd.launcher`, with a socket as standard input.

Invariants
- One thread, no more: what a fork copies is whole.
- A child that doesn't become its program says why, and ends; the worker reaps it.
- It ends when its worker does, and is deaf to the signals that end one.
- Standard library alone: it must be small.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import NoReturn

HEAD = struct.Struct("!I")
"""Length of the order that follows; the files come with it."""
REPLY = struct.Struct("!iii")
"""Number of the child (0: none was born), how far it came, errno."""
FAILURE = struct.Struct("!ii")

_CLONE3 = 435  # on every architecture
_CLONE_PARENT = 0x8000
_CLONE_INTO_CGROUP = 0x200000000
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Stage(IntEnum):
    """How far a child came."""

    CLONE = 0
    SETUP = 1
    CWD = 2
    EXEC = 3
    DONE = 4


@dataclass(frozen=True, slots=True)
class Order:
    """A program to become. Text stands for bytes, one character each."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    umask: int | None
    user: tuple[int, int] | None
    """uid and gid; it is in no other group then."""

    def encoded(self) -> bytes:
        """For the wire."""
        return json.dumps(asdict(self)).encode("ascii")


def main() -> int:
    """Serve until the worker's end of the socket closes."""
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as worker:
        while True:
            head, files, _, _ = socket.recv_fds(worker, HEAD.size, 4)
            if len(head) < HEAD.size:
                return 0
            order = _received(worker, HEAD.unpack(head)[0])
            if order is None:
                return 0
            reply = _launch(order, files)
            for fd in files:
                os.close(fd)
            worker.sendall(REPLY.pack(*reply))


def _received(worker: socket.socket, size: int) -> Order | None:
    body = worker.recv(size, socket.MSG_WAITALL)
    return Order(**json.loads(body)) if len(body) == size else None


def _launch(order: Order, files: Sequence[int]) -> tuple[int, Stage, int]:
    """`files`: the cgroup's folder, and what become standard input, output and error."""
    group, *standard = files
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0) as told:
        try:
            pid = _clone_into(group)
        except OSError as error:
            return 0, Stage.CLONE, error.errno or errno.EIO
        else:
            if pid == 0:
                _become(order, standard, writing)
        finally:
            os.close(writing)
        failure = told.read(FAILURE.size)  # closed by the beginning of the program
    stage, number = FAILURE.unpack(failure) if failure else (Stage.DONE, 0)
    return pid, Stage(stage), number


def _clone_into(group: int) -> int:
    """Fork into the cgroup with this open folder; 0 in the child, which is our parent's."""
    arguments = struct.pack(
        "11Q", _CLONE_PARENT | _CLONE_INTO_CGROUP, 0, 0, 0, 0, 0, 0, 0, 0, 0, group
    )
    libc = ctypes.PyDLL(None, use_errno=True)
    pid = int(libc.syscall(_CLONE3, arguments, ctypes.c_size_t(len(arguments))))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def _become(order: Order, standard: Sequence[int], telling: int) -> NoReturn:
    """The child's whole life until its program begins."""
    stage = Stage.SETUP
    try:
        for number in _DEAF_TO + _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for target, fd in enumerate(standard):
            os.dup2(fd, target)
        os.closerange(3, telling)
        os.closerange(telling + 1, os.sysconf("SC_OPEN_MAX"))
        stage = Stage.CWD
        os.chdir(_bytes(order.cwd))
        stage = Stage.SETUP
        if order.umask is not None:
            os.umask(order.umask)
        if order.user is not None:
            os.setgroups(())
            os.setgid(order.user[1])
            os.setuid(order.user[0])
        stage = Stage.EXEC
        argv = [_bytes(each) for each in order.argv]
        env = {_bytes(name): _bytes(value) for name, value in order.env.items()}
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell reads argv
    except OSError as error:
        os.write(telling, FAILURE.pack(stage, error.errno or errno.EIO))
    finally:
        os._exit(255)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


if __name__ == "__main__":
    sys.exit(main())
