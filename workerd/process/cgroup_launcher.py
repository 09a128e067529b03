"""Fork processes directly into cgroups, for a worker that can't fork safely.

    worker ──a cgroup, a socket──→ launcher ──clone3──→ starter, created in that cgroup
       └───────────── program, files ─────────────────────→ starter ──vfork, exec──→ program
       ←───────────── pid … exit code ──────────────────────────┘

Moving a process into a cgroup takes milliseconds and is too late: it may have forked already.
Creating it there needs clone3, which is a fork. A worker has too much memory and too many threads
for a fork; this process is small. Children of a starter are created in the starter's cgroup, so one
fork serves many attempts, one after the other.

Run as `python -m workerd.process.cgroup_launcher`, with a socket as standard input.

Invariants
- One thread only, so the memory that a fork copies is consistent. (A starter, which forks only
  programs, briefly has another one: `privileges`.)
- A starter is a child of the worker (CLONE_PARENT), and has one program at a time.
- Before a program is reaped, its group is killed and the worker has received its end: until then
  its pid isn't reused.
- Both processes end with the worker, and ignore the signals that end a worker.
- Standard library only: the process must be small.
"""

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
from typing import NamedTuple, NoReturn

from workerd.process.privileges import started

HEAD = struct.Struct("!I")
"""Length of the following order; sent with the files."""
BORN = struct.Struct("!ii?")
"""PID (0: not started), errno, and whether the working directory caused the error."""
ENDED = struct.Struct("!i")
"""Exit code, or minus the signal."""

_CLONE3 = 435  # on every architecture
_CLONE_PARENT = 0x8000
_CLONE_INTO_CGROUP = 0x200000000
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Order(NamedTuple):
    """A program to start. Texts are bytes in Latin-1."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    umask: int
    """-1: unchanged."""
    user: tuple[int, int] | None
    """uid and gid, without supplementary groups."""
    files: int = 0
    """Maximum open files; 0: unchanged. The starter isn't used again after a limit."""

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode("ascii")


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
                    _be_starter(theirs)
            for fd in files:
                os.close(fd)
            try:
                worker.sendall(BORN.pack(pid, failure, False))
            except ConnectionError:  # the worker has ended, and the starter notices it
                return 0


def _nothing(_number: int, _frame: object) -> None:
    """Ignore a signal."""


def _clone_into(libc: ctypes.PyDLL, group: int) -> int:
    """Fork into the cgroup of this open directory. Return 0 in the child, a child of our parent."""
    arguments = struct.pack(
        "11Q", _CLONE_PARENT | _CLONE_INTO_CGROUP, 0, 0, 0, 0, 0, 0, 0, 0, 0, group
    )
    pid = int(libc.syscall(_CLONE3, arguments, ctypes.c_size_t(len(arguments))))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def _be_starter(theirs: int) -> NoReturn:
    """Run as a starter until the worker closes the socket."""
    try:
        os.dup2(theirs, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        worker = socket.socket(fileno=0)
        with contextlib.suppress(ConnectionError):  # the worker has ended
            while _serve(worker):
                pass
    finally:
        os._exit(0)


def _serve(worker: socket.socket) -> bool:
    """Run one program from start to end. Return False if no other will follow."""
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
        # Python names the directory if that caused the error, otherwise the program.
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
    received = worker.recv(1)
    process.wait()
    return bool(received)


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
