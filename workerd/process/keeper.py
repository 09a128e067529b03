"""A worker that dies leaves nothing running, one that stands still nothing that its lease held.

    workerd ──pipe──→ keeper      the pipe closes when workerd dies, however it dies
                        └→ empties the cgroups that the journal names; sweeps the sessions it
                           lists, what carries its mark, and what the last picture shows

    workerd ──memory──→ keeper    the instant told there passes when workerd stands still
                        └→ kills the programs whose jobs say `on_lease_lost: kill` (`core.doom`)

Run as `python -m workerd.process.keeper JOURNAL WORKER LEASE [picture] [lease]`, with the pipe as
standard input and LEASE as the inherited descriptor of that memory. With `picture`, or from a `p`
on that comes through the pipe, it keeps a picture of all that comes from WORKER, a process number:
with no cgroups, or started by a handler, a process that left its session and cleared its
environment can't be told from a stranger once the worker is dead. With `lease`, or from an `l` on,
it looks at the lease.

Invariants
- It outlives its worker: a session of its own, deaf to the signals that end a worker.
- Until the pipe closes it kills nothing but what dies with the lease; it ends when all is swept.
- What is in the picture is known by number and start time together.
- Standard library alone: it must start in milliseconds and never fail for want of anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from workerd.core.lease_kill_list import SLACK, Doom, Mortal
from workerd.process import cgroup_limits, cgroups, proc_files, process_journal
from workerd.process.shared_lease import SharedLease

REFRESH = 0.05
"""Seconds between two pictures. What escapes and loses its worker within, gets away."""
LOOK = 0.25
"""Seconds between two looks at the lease."""
_AT_ONCE = 0.3
"""Seconds that one look may take to kill; what forks faster is met again at the next."""


class Keeper:
    """The worker's hold on its keeper process."""

    def __init__(
        self, path: Path, lease: SharedLease, *, picture: bool = False, leased: bool = False
    ) -> None:
        """`path` is the journal; `picture`: whether cgroups don't hold everything.

        `leased`: whether anything in the journal dies with the lease.

        Raises:
            OSError: no process can be started now.
        """
        safe_path = ["-P"] if sys.flags.safe_path else []
        reading, self._pipe = os.pipe()  # close-on-exec: no job inherits the writing end
        told = [str(path), str(os.getpid()), str(lease.fd)]
        told += ["picture"] * picture + ["lease"] * leased
        try:
            self._process = subprocess.Popen(
                [sys.executable, *safe_path, "-m", "workerd.process.keeper", *told],
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
        """Of the keeper process."""
        return self._process.pid

    def take_pictures(self) -> None:
        """There are no cgroups to rely on after all."""
        self._tell(b"p")

    def watch_lease(self) -> None:
        """Something runs that dies with it."""
        self._tell(b"l")

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone; another will be told at its start
            os.write(self._pipe, word)

    def alive(self) -> bool:
        """Whether it still keeps watch."""
        return self._process.poll() is None

    def release(self, patience: float = 3.0) -> None:
        """Close the pipe in good order, and wait until the keeper has ended."""
        os.close(self._pipe)
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def sweep_leftovers(directory: Path) -> int:
    """Kill what earlier worker processes of this directory left, and forget them.

    Called with the directory's lock held, so none of them lives. Returns how many were killed.
    """
    killed = 0
    for path in sorted(directory.glob(f"*{process_journal.SUFFIX}")):
        killed += _sweep(path, {})
        path.unlink(missing_ok=True)
    return killed


def _sweep(path: Path, picture: Mapping[int, int]) -> int:
    left = process_journal.read(path)
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
    """Ends what dies with the lease, when its worker doesn't."""

    def __init__(self, path: Path, lease: SharedLease) -> None:
        self._path = path
        self._lease = lease
        self._passed: float | None = None
        """The end of trust that was seen last. Past it nothing begins that would die by it."""
        self._doom = Doom()

    def look(self) -> None:
        """Has trust ended, and is anything due?"""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)  # before the lease is read: see there
        until = self._lease.until()
        if until + SLACK <= now and until != self._passed:
            self._passed = until
            left = process_journal.read(self._path)
            self._doom.passed(until, [] if left is None else left.mortals.values())
        if self._doom.due(now):
            self._end_due(now)

    def _end_due(self, now: float) -> None:
        left = process_journal.read(self._path)
        self._doom.keep([] if left is None else left.mortals.values())
        due = self._doom.due(now)
        if left is None or not due:
            return
        grouped = [each for each in due if left.tree is not None and each.slot]
        for each in grouped:
            assert left.tree is not None
            if cgroups.end(left.tree, left.mark, each.slot):
                self._doom.settled(each)
        others = [each for each in due if each not in grouped]
        if others and not _swept(others, left.mark):
            for each in others:
                self._doom.settled(each)


def _swept(mortals: Collection[Mortal], mark: str) -> int:
    """Kill what belongs to these runs and stands in no cgroup; how many that were."""
    sessions = {each.session: each.start for each in mortals}
    told = {(mark, each.run, str(each.token)) for each in mortals}
    names = (proc_files.MARK, "SCHEDD_RUN_ID", "SCHEDD_FENCING_TOKEN")

    def carries(environ: Mapping[str, str]) -> bool:
        return tuple(environ.get(name) for name in names) in told

    return proc_files.sweep(sessions, carries, sessions, _AT_ONCE)


def main(arguments: Iterable[str]) -> int:
    """Wait for the pipe to close, looking at worker and lease meanwhile, then sweep."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    path, worker, lease, *how = arguments
    looking, leased = "picture" in how, "lease" in how
    watch = _Watch(Path(path), SharedLease(int(lease)))
    picture: Mapping[int, int] = {}
    while (heard := _heard(REFRESH if looking else LOOK if leased else None)) != b"":
        looking, leased = looking or heard == b"p", leased or heard == b"l"
        if looking:
            picture = proc_files.descendants(int(worker))
        if leased:
            watch.look()
    _sweep(Path(path), picture)
    return 0


def _heard(within: float | None) -> bytes | None:
    """What came through the pipe; empty: it is closed; None: nothing came in time."""
    readable, _, _ = select.select([0], [], [], within)
    return os.read(0, 1) if readable else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
