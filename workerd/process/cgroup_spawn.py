"""Start programs in cgroups: the launcher creates starter processes there, and reuses them.

    launcher (a process) ──creates──→ starter (a process in a cgroup) ──starts──→ programs
    order, with the three standard files ─→ BORN: the pid, or the error ─→ ENDED: exit code ─→ "."

`cgroup_launcher` defines the messages.

Invariants
- A starter is reused only if it is alone in its cgroup; otherwise the cgroup is killed.
- One starter is requested at a time. A request that times out after `ANSWER_TIMEOUT` stays pending:
  no call waits for it again, no other starter is requested, and the next caller gets it.
- A launcher process that ended, or hasn't answered for `START_TIMEOUT`, is replaced by another; its
  starters continue.
- A starter that was idle for `IDLE_FOR` is removed, so the starters of a burst don't stay.
"""

import contextlib
import errno
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from schedkit.clock import boottime
from workerd.core.resource_limits import WITHIN, at_limit, out_of_memory
from workerd.process import cgroups, proc_files
from workerd.process.cgroup_launcher import BORN, ENDED, HEAD, Order
from workerd.process.cgroup_limits import Controllers, Hold
from workerd.process.programs import Begun, Program

log = logging.getLogger(__name__)

ANSWER_TIMEOUT: Final = 5.0
"""Seconds to wait for an answer of a launcher; it usually takes less than 5 ms."""
START_TIMEOUT: Final = 30.0
"""Seconds for a launcher to start and answer, on a slow host."""
IDLE_FOR: Final = 30.0
"""Seconds for which an idle starter is kept; it uses memory, and descriptors in the worker."""
GONE: Final = "the process that starts programs has ended"
SLOW: Final = "the process that starts programs timed out"


class Starter:
    """The worker's end of a starter process in its own cgroup, which starts programs there, one
    after the other. When the other end closes or hangs, the whole cgroup is killed.
    """

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
                pid, number, about_cwd = BORN.unpack(_received(self._socket, BORN.size))
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
            (code,) = ENDED.unpack(_received(self._socket, ENDED.size))
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


def _received(ours: socket.socket, size: int) -> bytes:
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


class Launcher:
    def __init__(self, tree: Path, mark: str) -> None:
        """Create the tree, start the process, and test it. Blocks briefly. Raises OSError: no
        process can be created in a cgroup here; nothing is left behind.
        """
        self.tree = tree
        self._mark = mark
        self._numbers = itertools.count(1)
        self._idle: list[Starter] = []
        """A stack: the first ones have been idle for the longest time."""
        self._leaving: list[Starter] = []
        """Starters to remove, whose cgroups may still have processes."""
        self._pending: Starter | None = None
        self._running: _Running | None = None
        self._held = cgroups.make(tree)
        self.controllers = Controllers(tree)
        """The controllers of all attempts."""
        try:
            self.give_back(self._new_starter(START_TIMEOUT))
        except OSError:
            self.close()
            raise

    def take_starter(self) -> Starter:
        """Return an idle or a new starter. Raises OSError: none is available: EAGAIN, or there is
        no descriptor for the check.
        """
        while self._idle:
            alone = self._idle[-1].reusable()
            starter = self._idle.pop()
            if alone:  # and wasn't killed by another program
                return starter
            self._discard_starter(starter)
        return self._new_starter(ANSWER_TIMEOUT)

    def take_bound(self, program: Program) -> Starter:
        """Return a new starter with this program's limits. It must not be given back. Raises
        OSError: none is available: EAGAIN.
        """
        starter = self._new_starter(ANSWER_TIMEOUT)
        try:
            starter.bound(self.controllers, program)
        except OSError as error:
            self._discard_starter(starter)
            text = f"limits can't be set: {error.strerror}"
            raise OSError(errno.EAGAIN, text, error.filename) from error
        return starter

    def give_back(self, starter: Starter) -> None:
        starter.over, starter.since = False, boottime()
        self._idle.append(starter)

    def remove_idle_starters(self) -> None:
        """Remove starters that are idle for too long, and retry earlier removals."""
        longest = boottime() - IDLE_FOR
        while self._idle and self._idle[0].since < longest:
            self._discard_starter(self._idle.pop(0))
        self._clear_away()

    def _clear_away(self) -> None:
        for starter in [*self._leaving]:
            if starter.remove():
                self._leaving.remove(starter)
            else:
                starter.kill()

    def close(self) -> None:
        self._give_up()
        cgroups.clear(self.tree, self._mark)
        os.close(self._held)
        self._leaving += self._idle
        self._clear_away()

    def _new_starter(self, timeout: float) -> Starter:
        if self._pending is None:
            self._pending = self._request()
        else:  # a call has waited for it already, which blocked the worker's loop
            timeout = 0.0
        starter = self._pending
        assert self._running is not None, "it has a pending request"
        try:
            starter.own_pid, number = self._running.receive(timeout)
        except (TimeoutError, BlockingIOError) as error:
            if boottime() - starter.since > START_TIMEOUT:
                self._give_up(SLOW)
            raise _refusal(SLOW, starter.group) from error
        except OSError as error:
            self._give_up(GONE)
            raise _refusal(error.strerror or str(error), starter.group) from error
        self._pending = None
        if number:
            self._discard_starter(starter)
            raise _refusal(os.strerror(number), starter.group)
        return starter

    def _request(self) -> Starter:
        """Return a starter that doesn't exist yet."""
        path = self.tree / f"slot-{next(self._numbers)}"
        try:
            if self._running is not None and self._running.has_ended():
                self._give_up(GONE)
            if self._running is None:
                self._running = _Running()
            with contextlib.ExitStack() as undone:
                path.mkdir()
                undone.callback(cgroups.remove_tree, path)
                ours, theirs = socket.socketpair()
                ours.settimeout(ANSWER_TIMEOUT)
                undone.callback(ours.close)
                with theirs:
                    self._running.ask(path, theirs)
                undone.pop_all()
        except OSError as error:  # a resource limit of the host, not a failure of the program
            raise _refusal(error.strerror or str(error), path) from error
        return Starter(path, ours)

    def _give_up(self, why: str = "") -> None:
        if why:
            log.error("%s; starting another", why)
        if self._running is not None:
            self._running.end()
            self._running = None
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._discard_starter(pending)

    def _discard_starter(self, starter: Starter) -> None:
        starter.kill()
        self._leaving.append(starter)
        self._clear_away()


class _Running:
    """A launcher process and its socket."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        safe_path = ["-P"] if sys.flags.safe_path else []
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *safe_path, "-m", "workerd.process.cgroup_launcher"],
                    stdin=theirs.fileno(),
                    start_new_session=True,
                )
            except OSError:
                self._socket.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, group: Path, theirs: socket.socket) -> None:
        """Request a starter in this cgroup, with this end of a socket."""
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.settimeout(ANSWER_TIMEOUT)
            socket.send_fds(self._socket, [b"."], [folder, theirs.fileno()])
        finally:
            os.close(folder)

    def receive(self, timeout: float) -> tuple[int, int]:
        """Return the PID of the new starter, or 0 and the errno. Raises TimeoutError,
        BlockingIOError: no answer within so many seconds; OSError: the process has ended.
        """
        self._socket.settimeout(timeout)
        pid, number, _ = BORN.unpack(_received(self._socket, BORN.size))
        return int(pid), int(number)

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _refusal(why: str, path: Path) -> OSError:
    return OSError(errno.EAGAIN, f"can't start a process in a cgroup: {why}", str(path))
