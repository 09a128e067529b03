"""Gives birth inside cgroups, for a worker that can't do so itself.

    worker ──a cgroup, a socket──→ launcher ──clone3──→ cradle, born in that cgroup
       └───────────── program, files ─────────────────────→ cradle ──vfork, exec──→ program
       ←───────────── number … how it ended ───────────────────┘

Moving a process into a cgroup takes milliseconds and comes too late: by then it may have forked.
To be born there without having moved takes clone3, which is a fork; a worker is too big and has
too many threads for one, this process has neither. And since what is born in a cradle is born in
the cradle's cgroup, one fork serves many attempts, one after the other.

Run as `python -m workerd.process.cgroup_launcher`, with a socket as standard input.

Invariants
- One thread, no more: what a fork copies is whole. (A cradle, which never forks but for a program,
  has another for a moment: `privileges`.)
- A cradle is a child of the worker (CLONE_PARENT), and has one program at a time.
- A program's group is killed, and its worker has heard of its end, before it is reaped: until
  then its number can't be given to others.
- Both end when the worker does, and are deaf to the signals that end one.
- Standard library alone: it must be small.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NoReturn

from schedkit.records import dataclass
from workerd.process.privileges import started

HEAD = struct.Struct("!I")
"""Length of the order that follows; the files come with it."""
BORN = struct.Struct("!ii?")
"""Number of the process (0: none), errno, and whether it is the directory that was wrong."""
ENDED = struct.Struct("!i")
"""Exit code, or minus the signal."""

_CLONE3 = 435  # on every architecture
_CLONE_PARENT = 0x8000
_CLONE_INTO_CGROUP = 0x200000000
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Order:
    """A program to start. Text stands for bytes, one character each."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    umask: int
    """-1: as it is."""
    user: tuple[int, int] | None
    """uid and gid; it is in no other group then."""
    files: int = 0
    """Open at once, at most; 0: as many as this process may. A cradle has no order after such."""

    def encoded(self) -> bytes:
        """For the wire."""
        return json.dumps(asdict(self)).encode("ascii")


def main() -> int:
    """Serve until the worker's end of the socket closes."""
    for number in _DEAF_TO:
        signal.signal(number, _nothing)  # and not SIG_IGN, which programs would inherit
    libc = ctypes.PyDLL(None, use_errno=True)
    with socket.socket(fileno=0) as worker:
        while True:
            word, files, _, _ = socket.recv_fds(worker, 1, 2)
            if not word:
                return 0
            group, theirs = files
            try:
                pid, failure = _clone_into(libc, group), 0
            except OSError as error:
                pid, failure = 0, error.errno or errno.EIO
            else:
                if pid == 0:
                    _be_cradle(theirs)
            for fd in files:
                os.close(fd)
            try:
                worker.sendall(BORN.pack(pid, failure, False))
            except ConnectionError:  # the worker has died, and the cradle hears it by itself
                return 0


def _nothing(_number: int, _frame: object) -> None:
    """What a signal does that isn't meant for this process."""


def _clone_into(libc: ctypes.PyDLL, group: int) -> int:
    """Fork into the cgroup with this open folder; 0 in the child, which is our parent's."""
    arguments = struct.pack(
        "11Q", _CLONE_PARENT | _CLONE_INTO_CGROUP, 0, 0, 0, 0, 0, 0, 0, 0, 0, group
    )
    pid = int(libc.syscall(_CLONE3, arguments, ctypes.c_size_t(len(arguments))))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def _be_cradle(theirs: int) -> NoReturn:
    """The whole life of a cradle."""
    try:
        os.dup2(theirs, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        worker = socket.socket(fileno=0)
        with contextlib.suppress(ConnectionError):  # the worker has died
            while _serve(worker):
                pass
    finally:
        os._exit(0)


def _serve(worker: socket.socket) -> bool:
    """One program, from its birth to its end; False when none will follow."""
    head, files, _, _ = socket.recv_fds(worker, HEAD.size, 3)
    if len(head) < HEAD.size:
        return False
    (size,) = HEAD.unpack(head)
    body = worker.recv(size, socket.MSG_WAITALL)
    if len(body) < size:
        return False
    order = Order(**json.loads(body))
    try:
        process = _started(order, files)
    except OSError as error:
        # Python names the directory when that was wrong, and the program else.
        about_cwd = error.filename == _bytes(order.cwd)
        worker.sendall(BORN.pack(0, error.errno or errno.EIO, about_cwd))
        return True
    finally:
        for fd in files:
            os.close(fd)
    worker.sendall(BORN.pack(process.pid, 0, False))
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None, "it was waited for"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    worker.sendall(ENDED.pack(code))
    heard = worker.recv(1)
    process.wait()
    return bool(heard)


def _started(order: Order, files: Sequence[int]) -> subprocess.Popen[bytes]:
    if order.files:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        least = order.files if most == resource.RLIM_INFINITY else min(order.files, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, least))
    return started(
        [_bytes(each) for each in order.argv],
        {_bytes(name): _bytes(value) for name, value in order.env.items()},
        _bytes(order.cwd),
        files,
        umask=order.umask,
        user=order.user,
    )


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


if __name__ == "__main__":
    sys.exit(main())
