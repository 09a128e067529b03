"""A starter process in its own cgroup, which starts programs there one after the other.

    order, with the three standard files ─→ BORN: the pid, or the error ─→ ENDED: exit code ─→ "."

`cgroup_launcher` defines the messages. When the other end closes or hangs, the whole cgroup is
killed, with all processes that were started in it.
"""

import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from schedkit.clock import boottime
from workerd.core.resource_limits import WITHIN, at_limit, out_of_memory
from workerd.process import cgroups, proc_files
from workerd.process.cgroup_launcher import BORN, ENDED, HEAD, Order
from workerd.process.cgroup_limits import Controllers, Hold
from workerd.process.programs import Begun, Program

ANSWER_TIMEOUT: Final = 5.0
"""Seconds to wait for an answer of a launcher; it usually takes less than 5 ms."""


class Starter:
    """The worker's end of a starter process in its own cgroup."""

    def __init__(self, group: Path, ours: socket.socket) -> None:
        self.group = group
        self._folder = str(group)
        self._socket = ours
        self._killed = False
        self._hold: Hold | None = None
        self.own_pid = 0
        """PID of the starter; 0: it isn't known yet."""
        self.since = boottime()
        """When it was requested, or became idle."""
        self.once = False
        """Whether it must not be reused."""
        self.over = False
        """Whether its attempt has ended. It may still have processes."""
        self.pid = 0
        """PID of the program."""
        self.excess = WITHIN
        """The limits that the program exceeded."""

    def bound(self, controllers: Controllers, program: Program) -> None:
        """Set the program's limits on the cgroup, permanently. Raises OSError."""
        self.once = True
        helpers = 0 if program.user is None else 1  # `privileges`
        self._hold = controllers.hold(self.slot, program.bounds, helpers)
        self._hold.limit_starter(self.own_pid)

    def start(self, program: Program, mark: str, out: int, err: int) -> None:
        """Start a program. Raises as `PlainProgram` does, and `Begun` if the starter was lost."""
        order = _order(program, mark).encoded()
        with _opened(program.stdin) as stdin:
            try:
                socket.send_fds(self._socket, [HEAD.pack(len(order))], [stdin, out, err])
                self._socket.sendall(order)
                pid, number, about_cwd = BORN.unpack(received(self._socket, BORN.size))
            except OSError as error:
                self.kill()
                if self.overran():  # by the program, before it began
                    raise ValueError(out_of_memory(program.bounds)) from error
                raise Begun(
                    errno.EAGAIN,
                    "the worker's launcher, which starts programs, has ended",
                    program.argv[0],
                ) from error
        if not pid:
            about = str(program.cwd) if about_cwd else program.argv[0]
            raise OSError(number, os.strerror(number), about)
        self.pid = pid
        if self._hold is not None:
            self._hold.lower_process_limit()

    def overran(self) -> bool:
        """Return whether a process was killed by the memory limit; then all must be killed."""
        return self._hold is not None and self._hold.excess().memory

    @property
    def slot(self) -> str:
        return self.group.name

    def fileno(self) -> int:
        return self._socket.fileno()

    def wait(self) -> int:
        """Return the program's exit code; if the starter was killed, so was the program."""
        code = self._exit_code()
        if self._hold is not None:
            self.excess = self._hold.excess()
        return code

    def _exit_code(self) -> int:
        try:
            self._socket.settimeout(None)
            (code,) = ENDED.unpack(received(self._socket, ENDED.size))
        except OSError:
            self.kill()
            return -signal.SIGKILL
        self._socket.settimeout(ANSWER_TIMEOUT)
        with contextlib.suppress(BrokenPipeError):  # killed meanwhile; nothing is reaped too early
            self._socket.sendall(b".")
        return int(code)

    def kill(self) -> bool:
        """Kill all processes in the cgroup. Return False if it must be retried."""
        self._killed = True
        try:
            cgroups.kill(self.group)
        except OSError as error:
            if not at_limit(error):
                raise
            return False
        return True

    def reusable(self) -> bool:
        """Return whether the starter is running, and alone in its cgroup. Raises OSError: there is
        no descriptor for the check.
        """
        return not self._killed and cgroups.holds_only(self._folder, self.own_pid)

    def remove(self) -> bool:
        """Remove the cgroup. Return False if a process in it is still running."""
        if not cgroups.remove_tree(self.group) or not (self._hold is None or self._hold.remove()):
            return False
        self._socket.close()
        return True


def received(ours: socket.socket, size: int) -> bytes:
    """Receive so many bytes. Raises OSError if the other end closes or times out."""
    data = b""
    while len(data) < size:
        more = ours.recv(size - len(data))
        if not more:
            raise ConnectionResetError(
                errno.ECONNRESET,
                "the worker's launcher, which starts programs in cgroups, has ended",
            )
        data += more
    return data


def _order(program: Program, mark: str) -> Order:
    """Return the order for a program. Raises ValueError for invalid arguments or variables."""
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
        raise ValueError(
            "an argument or variable of the program contains a NUL character: remove it from"
            " the job"
        )
    return os.fsencode(text).decode("latin-1")


def _name(name: str) -> str:
    if "=" in name:
        raise ValueError(
            f"the name {name!r} of an environment variable isn't valid: it contains an =;"
            " correct `env` of the job"
        )
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
