"""Programs to start, and started programs, with or without a cgroup.

Invariants
- A program leads its own session and process group, and has the worker's mark in its environment
  from its first instruction.
- When an `OSError` is raised, nothing ran, unless it is a `Begun`.
"""

import contextlib
import os
import pwd
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from schedkit.records import dataclass
from workerd.core.resource_limits import WITHIN, ResourceLimits
from workerd.process import proc_files
from workerd.process.privileges import started


@dataclass(frozen=True, slots=True)
class Program:
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdin: BinaryIO | int
    user: pwd.struct_passwd | None = None
    umask: int | None = None
    secrets: Collection[bytes] = ()
    """Secrets to mask in its output."""
    lost_kill_after: float | None = None
    """Seconds from the loss of the worker's lease to SIGKILL; None: it may finish."""
    bounds: ResourceLimits = field(default_factory=ResourceLimits)
    """Resource limits. Enforced only with cgroups."""


class Begun(OSError):
    """The start failed after the program had begun, or may have; it was killed."""


class PlainProgram:
    """A child of this process without its own cgroup."""

    excess = WITHIN
    """The limits that it exceeded, after `wait` has returned."""

    def __init__(self, program: Program, mark: str, out: int, err: int) -> None:
        """Start a program. `out`, `err`: open files.

        Raises:
            OSError: it can't be started; `Begun` if it was started and killed.
            ValueError: an argument or a variable is invalid, such as one with a zero byte.
        """
        assert not program.bounds, "programs with limits need a cgroup"
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
        """Valid until `wait` has returned."""
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:  # its end couldn't be noticed
            self._reap()
            raise Begun(error.errno, error.strerror, program.argv[0]) from error

    def fileno(self) -> int:
        """A descriptor that is readable once the program has ended, until `wait` has returned."""
        return self._pidfd

    def wait(self) -> int:
        """Kill the group and reap the program. Return the exit code, or minus the signal."""
        os.close(self._pidfd)
        return self._reap()

    def _reap(self) -> int:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()
