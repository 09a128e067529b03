"""Find, end and reap the processes that jobs leave behind.

A process whose parent has exited becomes a child of its nearest subreaper, this worker. So a job's
double-forked daemon, in any session, appears in one small file: the list of this process's
children.

Invariants
- A handler's child processes are left alone: they are in the worker's session, or have the variable
  `proc_files.OWN`, which is in the worker's environment and in no job's.
- An orphan of a running attempt is left alone; any other orphan is killed.
- Without cgroups, an orphan without marks is attributed by its start time
  (`core.orphan_attribution`). With cgroups it was killed with its cgroup, and is only reaped here.
- A zombie without a readable environment is reaped only if it was known, or after `UNKNOWN_AFTER`
  seconds: its parent should have reaped it by then.
"""

import ctypes
import os
from collections import deque
from collections.abc import Set as AbstractSet
from pathlib import Path

from schedkit.clock import boottime
from workerd.core.orphan_attribution import OrphanAttribution
from workerd.process import cgroups, proc_files

UNKNOWN_AFTER = 60.0
_REMEMBERED = 256
_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


class Orphans:
    """The orphans of this worker. Belongs to the main thread."""

    def __init__(self, mark: str, tree: Path | None) -> None:
        """Make this process a subreaper. On old kernels orphans go to init. `tree`: the directory
        of the attempts' cgroups; None without cgroups.
        """
        os.environ[proc_files.OWN] = mark
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._mark = mark
        self._tree = tree
        self._attribution = OrphanAttribution()
        self._children = Path(f"/proc/self/task/{os.getpid()}/children")
        self._session = os.getsid(0)
        self._jobs: dict[int, tuple[str, str]] = {}
        """First processes of running attempts → run id and token."""
        self._over: deque[int] = deque(maxlen=_REMEMBERED)
        """Sessions of the attempts that ended last."""
        self._known: set[int] = set()
        self._spared: set[int] = set()
        """Children known to have `proc_files.OWN`; reading environments is expensive."""
        self._dead: dict[int, float] = {}

    def add_attempt(self, process: proc_files.ProcEntry, run: str, token: int) -> None:
        self._jobs[process.pid] = (run, str(token))
        self._attribution.add_attempt(process.pid, process.start)

    def end_attempt(self, pid: int) -> None:
        del self._jobs[pid]
        self._over.append(pid)
        self._attribution.end_attempt(pid)

    def end_orphans(self) -> int:
        """End and reap children of no running attempt. Return how many were killed. Raises OSError:
        there is no descriptor for the check; some may have been killed.
        """
        try:
            children = {int(pid) for pid in self._children.read_text("ascii").split()}
        except FileNotFoundError:  # a kernel without this list
            return 0
        self._known &= children
        self._spared &= children
        self._dead = {pid: since for pid, since in self._dead.items() if pid in children}
        now = int(boottime() * _TICKS)
        killed = sum(self._handle(pid) for pid in children - self._jobs.keys())
        if not killed:
            self._attribution.all_ended(now)
        return killed

    def _handle(self, pid: int) -> bool:
        process = proc_files.read_process(pid)
        if process is None:
            return False
        if process.zombie:
            if pid in self._known or self._of_a_job(process) or self._long_dead(process):
                self._reap(pid)
            return False
        if not self._stray(process, {*self._jobs.values()}):
            return False
        self._known.add(pid)
        return proc_files.kill(pid)

    def _stray(self, process: proc_files.ProcEntry, running: AbstractSet[tuple[str, str]]) -> bool:
        if process.session == self._session or process.session in self._jobs:
            return False
        if process.session in self._over:
            return True
        if process.pid in self._spared:
            return False
        environ = proc_files.environment(process.pid)
        if environ.get(proc_files.OWN) == self._mark:
            self._spared.add(process.pid)
            return False
        if environ.get(proc_files.MARK) == self._mark:
            attempt = (environ.get("SCHEDD_RUN_ID"), environ.get("SCHEDD_FENCING_TOKEN"))
            return attempt not in running
        return self._tree is None and self._attribution.must_end(process.start)

    def _of_a_job(self, process: proc_files.ProcEntry) -> bool:
        if process.session in self._jobs or process.session in self._over:
            return True
        return self._tree is not None and cgroups.holds(self._tree, process.pid)

    def _long_dead(self, process: proc_files.ProcEntry) -> bool:
        if process.session == self._session:
            return False
        now = boottime()
        return now - self._dead.setdefault(process.pid, now) > UNKNOWN_AFTER

    def _reap(self, pid: int) -> None:
        os.waitpid(pid, os.WNOHANG)
        self._known.discard(pid)
        self._dead.pop(pid, None)
