"""A cradle: a process in a cgroup of its own, in which programs are started one after the other.

    order, with the three standard files ─→ BORN: its pid, or why not ─→ ENDED: its exit code ─→ "."

What is said over its socket stands in `launcher`. When the other end closes or stands still, the
cgroup is killed whole: what was started there has ended then, whatever it had become.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import BinaryIO, Final

from workerd.core.limit_errors import at_limit
from workerd.core.resource_limits import WITHIN, out_of_memory
from workerd.process import cgroups, proc_files
from workerd.process.cgroup_launcher import BORN, ENDED, HEAD, Order
from workerd.process.cgroup_limits import Controllers, Hold
from workerd.process.programs import Begun, Program

PATIENCE: Final = 5.0
"""Seconds within which a launcher answers; it takes less than one thousandth of that."""


class Cradle:
    """A process in a cgroup of its own that starts one program after the other there."""

    def __init__(self, group: cgroups.Cgroup, pid: int, ours: socket.socket) -> None:
        self._group = group
        self._pid = pid
        self._socket = ours
        self._killed = False
        self._hold: Hold | None = None
        self.pid = 0
        """Of the program."""
        self.excess = WITHIN
        """What that had wanted more of than it might have."""

    def bound(self, controllers: Controllers, program: Program) -> None:
        """Set its limits on the cgroup, once and for all. Raises OSError if that can't be done."""
        helpers = 0 if program.user is None else 1  # `privileges`
        self._hold = controllers.hold(self.slot, program.bounds, helpers)
        self._hold.take(self._pid)

    def start(self, program: Program, mark: str, out: int, err: int) -> None:
        """Start it. Raises as `Plain` does, and a `Begun` when the cradle was lost meanwhile."""
        order = _order(program, mark).encoded()
        with _opened(program.stdin) as stdin:
            try:
                socket.send_fds(self._socket, [HEAD.pack(len(order))], [stdin, out, err])
                self._socket.sendall(order)
                pid, number, about_cwd = BORN.unpack(received(self._socket, BORN.size))
            except OSError as error:
                self.kill()
                if self.overran():  # by its program, before that could begin
                    raise ValueError(out_of_memory(program.bounds)) from error
                raise Begun(errno.EAGAIN, "a cradle was lost", program.argv[0]) from error
        if not pid:
            about = str(program.cwd) if about_cwd else program.argv[0]
            raise OSError(number, os.strerror(number), about)
        self.pid = pid
        if self._hold is not None:
            self._hold.begun()

    def overran(self) -> bool:
        """Whether something in it was killed for want of memory; then all of it is to go."""
        return self._hold is not None and self._hold.excess().memory

    @property
    def slot(self) -> str:
        """The name of its cgroup in the worker's tree."""
        return self._group.path.name

    def fileno(self) -> int:
        """Of the socket on which its end is told."""
        return self._socket.fileno()

    def wait(self) -> int:
        """What the cradle tells of its end; where it was killed, so was the program."""
        code = self._told()
        if self._hold is not None:
            self.excess = self._hold.excess()
        return code

    def _told(self) -> int:
        try:
            self._socket.settimeout(None)
            (code,) = ENDED.unpack(received(self._socket, ENDED.size))
        except OSError:
            self.kill()
            return -signal.SIGKILL
        self._socket.settimeout(PATIENCE)
        with contextlib.suppress(BrokenPipeError):  # killed since; nothing is reaped too early
            self._socket.sendall(b".")
        return int(code)

    def kill(self) -> bool:
        """All that stands in its cgroup, and itself; False when it has to be tried again."""
        self._killed = True
        try:
            self._group.kill()
        except OSError as error:
            if not at_limit(error):
                raise
            return False
        return True

    def reusable(self) -> bool:
        """Whether it lives, and nothing but itself is in its cgroup.

        Raises:
            OSError: there is no descriptor to look with.
        """
        return not self._killed and self._group.holds_only(self._pid)

    def remove(self) -> bool:
        """Away with its cgroup; False when something in it still lives."""
        if not self._group.remove() or not (self._hold is None or self._hold.remove()):
            return False
        self._socket.close()
        return True


def received(ours: socket.socket, size: int) -> bytes:
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
        env={_name(name): _text(value) for name, value in program.env.items()}
        | {proc_files.MARK: mark},
        cwd=_text(str(program.cwd)),
        umask=-1 if program.umask is None else program.umask,
        user=None if user is None else (user.pw_uid, user.pw_gid),
        files=program.bounds.files,
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
