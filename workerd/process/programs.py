"""A program to start, and one that was: what an executor holds of it, however it was born.

Invariants
- It leads a session and a process group of its own, and carries the worker's mark in its
  environment from its first instruction.
- Nothing ran when an `OSError` is raised, unless it is a `Begun`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import BinaryIO, Protocol

from schedkit.records import dataclass
from workerd.core.resource_limits import WITHIN, Excess, ResourceLimits
from workerd.process import proc_files
from workerd.process.privileges import started


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and in which surroundings."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdin: BinaryIO | int
    user: pwd.struct_passwd | None = None
    umask: int | None = None
    secrets: Collection[bytes] = ()
    """That are masked in its output."""
    lost_kill_after: float | None = None
    """Seconds from the loss of the worker's lease to its killing; None: it may finish."""
    bounds: ResourceLimits = field(default_factory=ResourceLimits)
    """What it may have at most. Kept in a cgroup alone."""


class Begun(OSError):
    """What failed after the program had begun, or may have; it was killed."""


class StartedProgram(Protocol):
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

    @property
    def excess(self) -> Excess:
        """What it had wanted more of than it might have, when `wait` has returned."""
        ...


class PlainProgram:
    """A child of this process, in no cgroup of its own."""

    excess = WITHIN

    def __init__(self, program: Program, mark: str, out: int, err: int) -> None:
        """Start it; `out` and `err` are open files.

        Raises:
            OSError: it can't be started; a `Begun`, when it was and is no more.
            ValueError: an argument or a variable can't be passed on, such as one with a zero byte.
        """
        assert not program.bounds, "without a cgroup none is kept, and none is taken"
        user = program.user
        self._process = started(
            program.argv,
            {**program.env, proc_files.MARK: mark},
            program.cwd,
            (program.stdin, out, err),
            umask=-1 if program.umask is None else program.umask,
            user=None if user is None else (user.pw_uid, user.pw_gid),
        )
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:  # nobody would hear of its end
            self._reap()
            raise Begun(error.errno, error.strerror, program.argv[0]) from error

    def fileno(self) -> int:
        """Of its pidfd."""
        return self._pidfd

    def wait(self) -> int:
        """Reap it, its group first."""
        os.close(self._pidfd)
        return self._reap()

    def _reap(self) -> int:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()
