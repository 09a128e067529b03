"""The keeper: a process that ends the jobs of a worker that ended, or that lost its lease.

    workerd ──pipe──→ keeper      the pipe closes when workerd ends, for any cause
                        └→ empties the cgroups that the journal names; kills the sessions it
                           lists, processes with its mark, and those of the last snapshot

    workerd ──memory──→ keeper    the end of trust written there passes when workerd hangs
                        └→ kills programs with `on_lease_lost: kill` (`core.lease_trust`)

Run as `python -m workerd.process.keeper JOURNAL WORKER LEASE [picture] [lease]`. The pipe is
standard input, and LEASE the inherited descriptor of that memory. With `picture`, or after a `p`
from the pipe, the keeper takes snapshots of all descendants of WORKER, a PID. They are needed
without cgroups, and for processes of handlers: a process may leave its session and clear its
environment. After the worker's end it can't be attributed otherwise. With `lease`, or after an `l`,
the keeper checks the lease.

Invariants
- The keeper outlives its worker: it has its own session, and ignores the signals that end a worker.
- Until the pipe closes it kills only programs that end with the lease. It exits after the sweep.
- Processes in the snapshot are identified by PID and start time together.
- Standard library only: it must start in milliseconds and have no dependency that can fail.
"""

import contextlib
import math
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from workerd.core.lease_trust import SLACK, KillEntry, LeaseKillList
from workerd.process import cgroup_limits, cgroups, proc_files, process_journal

# Share the end of a worker's trust in its lease with its keeper: a number in shared memory.
#
#     worker ──write──→ [ time ] ←──until── keeper
#
# The time is a value, not a message: a keeper that was suspended reads the current value, and a
# worker never waits for its keeper.
#
# Invariants
# - Times are seconds of the boot clock, which continues during a suspend.
# - The keeper reads the clock first and then the value: a value that had passed by then wasn't
#   renewed.
# - Standard library only: the keeper imports this module.

_INSTANT = struct.Struct("=d")


class SharedLease:
    def __init__(self, fd: int | None = None) -> None:
        """Create a value without end; or open the inherited one of `fd`. Raises OSError: it can't
        be created.
        """
        self.fd = os.memfd_create("lease") if fd is None else fd
        if fd is None:
            self.write(math.inf)

    def write(self, until: float) -> None:
        os.pwrite(self.fd, _INSTANT.pack(until), 0)

    def until(self) -> float:
        while (first := self._read()) != self._read():  # a read may overlap a write
            pass
        return float(_INSTANT.unpack(first)[0])

    def _read(self) -> bytes:
        return os.pread(self.fd, _INSTANT.size, 0)

    def close(self) -> None:
        os.close(self.fd)


REFRESH = 0.05
"""Seconds between two snapshots. A process that escapes within this time isn't found."""
LOOK = 0.25
"""Seconds between two checks of the lease."""
_AT_ONCE = 0.3
"""Seconds that one check may spend on killing; the next check continues."""


class Keeper:
    def __init__(
        self, path: Path, lease: SharedLease, *, picture: bool = False, leased: bool = False
    ) -> None:
        """Start the process. `path`: the journal. `picture`: whether snapshots are needed.
        `leased`: whether a program in the journal ends with the lease. Raises OSError: no process
        can be started.
        """
        safe_path = ["-P"] if sys.flags.safe_path else []
        reading, self._pipe = os.pipe()  # close-on-exec: no job inherits the writing end
        arguments = [str(path), str(os.getpid()), str(lease.fd)]
        arguments += ["picture"] * picture + ["lease"] * leased
        import subprocess  # the keeper itself doesn't need it

        try:
            self._process = subprocess.Popen(
                [sys.executable, *safe_path, "-m", "workerd.process.keeper", *arguments],
                stdin=reading,
                pass_fds=[lease.fd],
                start_new_session=True,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, word: bytes) -> None:
        """Request snapshots (`p`: cgroups aren't available), or checks of the lease (`l`: a running
        program ends with it).
        """
        # A keeper that has ended can't receive it: the next one gets it as an argument.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, word)

    def alive(self) -> bool:
        return self._process.poll() is None

    def release(self, timeout: float = 3.0) -> None:
        import subprocess

        os.close(self._pipe)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def sweep_leftovers(directory: Path) -> int:
    """Kill leftover processes of earlier workers of this directory; remove their journals. Call it
    with the directory's lock held: no earlier worker is running then. Return how many processes
    were killed.
    """
    killed = 0
    for path in sorted(directory.glob(f"*{process_journal.SUFFIX}")):
        killed += _sweep(path, {})
        path.unlink(missing_ok=True)
    return killed


def _sweep(path: Path, picture: Mapping[int, int]) -> int:
    left = process_journal.read_journal(path)
    if left is None:
        return 0
    killed = 0
    if left.tree is not None:
        killed = cgroups.clear(left.tree, left.mark)
        cgroup_limits.forget(left.mark)
    return killed + proc_files.sweep(
        left.sessions, lambda environ: environ.get(proc_files.MARK) == left.mark, picture
    )


class _Watch:
    """Kills programs that end with the lease, if the worker doesn't."""

    def __init__(self, path: Path, lease: SharedLease) -> None:
        self._path = path
        self._lease = lease
        self._passed: float | None = None
        """The end of trust that was processed last. After it no such program starts."""
        self._kill_list = LeaseKillList()

    def kill_due_programs(self) -> None:
        """Check whether trust has ended, and kill due programs."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)  # before the lease is read: see there
        until = self._lease.until()
        if until + SLACK <= now and until != self._passed:
            self._passed = until
            left = process_journal.read_journal(self._path)
            self._kill_list.passed(until, [] if left is None else left.mortals.values())
        if self._kill_list.due(now):
            self._end_due(now)

    def _end_due(self, now: float) -> None:
        left = process_journal.read_journal(self._path)
        self._kill_list.retain_only([] if left is None else left.mortals.values())
        due = self._kill_list.due(now)
        if left is None or not due:
            return
        grouped = [each for each in due if left.tree is not None and each.slot]
        for each in grouped:
            assert left.tree is not None
            if cgroups.end(left.tree, left.mark, each.slot):
                self._kill_list.killed(each)
        others = [each for each in due if each not in grouped]
        if others and not _swept(others, left.mark):
            for each in others:
                self._kill_list.killed(each)


def _swept(mortals: Collection[KillEntry], mark: str) -> int:
    """Kill processes of these runs that are in no cgroup. Return how many were killed."""
    sessions = {each.session: each.start for each in mortals}
    wanted = {(mark, each.run, str(each.token)) for each in mortals}
    names = (proc_files.MARK, "SCHEDD_RUN_ID", "SCHEDD_FENCING_TOKEN")

    def carries(environ: Mapping[str, str]) -> bool:
        return tuple(environ.get(name) for name in names) in wanted

    return proc_files.sweep(sessions, carries, sessions, _AT_ONCE)


def main(arguments: Iterable[str]) -> int:
    """Watch worker and lease until the pipe closes, then sweep."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    path, worker, lease, *how = arguments
    looking, leased = "picture" in how, "lease" in how
    watch = _Watch(Path(path), SharedLease(int(lease)))
    picture: Mapping[int, int] = {}
    while (received := _received(REFRESH if looking else LOOK if leased else None)) != b"":
        looking, leased = looking or received == b"p", leased or received == b"l"
        if looking:
            picture = proc_files.descendants(int(worker))
        if leased:
            watch.kill_due_programs()
    _sweep(Path(path), picture)
    return 0


def _received(within: float | None) -> bytes | None:
    """Return a byte from the pipe; empty if it is closed; None after the timeout."""
    readable, _, _ = select.select([0], [], [], within)
    return os.read(0, 1) if readable else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
