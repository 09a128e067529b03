"""What a job leaves behind comes to this worker: it is found, ended and reaped.

A process whose parent died becomes a child of its nearest subreaper. So a job's double-forked
daemon, in whatever session, shows up in one small file: the list of this process's children.

Invariants
- A handler's own child processes are its own: they are in the worker's session, or carry the
  variable `procs.OWN`, which is in the worker's environment and in no job's.
- An orphan of an attempt that still runs is left to it; of any other it is killed.
- Without cgroups one that tells nothing is judged by its birth (`core.kinship`). With them its
  cgroup has ended it, and only the dead are dealt with here.
- A dead child without an environment to look at is reaped only when it was known, or after
  `UNKNOWN_AFTER` seconds: whoever started it should have done so by then.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Set as AbstractSet
from pathlib import Path

from schedkit.clock import boottime
from workerd.core.orphan_attribution import Fate, Kinship
from workerd.process import cgroups, proc_files

UNKNOWN_AFTER = 60.0
_REMEMBERED = 256
_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


class Orphans:
    """Belongs to the main thread, whose children orphans become."""

    def __init__(self, mark: str, tree: Path | None) -> None:
        """From here on orphans come to this process. An old kernel leaves them to init.

        `tree` is where the cgroups of attempts are, None where there are none.
        """
        os.environ[proc_files.OWN] = mark
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._mark = mark
        self._tree = tree
        self._kinship = Kinship()
        self._children = Path(f"/proc/self/task/{os.getpid()}/children")
        self._session = os.getsid(0)
        self._jobs: dict[int, tuple[str, str]] = {}
        """First processes of attempts that run → run id and token."""
        self._over: deque[int] = deque(maxlen=_REMEMBERED)
        """The sessions of the last attempts that ended."""
        self._known: set[int] = set()
        self._spared: set[int] = set()
        """Children that were seen to carry `procs.OWN`; environments are dear to read."""
        self._dead: dict[int, float] = {}

    def began(self, process: proc_files.ProcEntry, run: str, token: int) -> None:
        """An attempt's first process runs; it is reaped by whoever started it."""
        self._jobs[process.pid] = (run, str(token))
        self._kinship.began(process.pid, process.start)

    def ended(self, pid: int) -> None:
        """That attempt is over, and so is whatever it left: a look is to follow."""
        del self._jobs[pid]
        self._over.append(pid)
        self._kinship.ended(pid)

    def look(self) -> int:
        """End and reap what belongs to no running attempt; how many were killed.

        Raises:
            OSError: there is no descriptor to look with; some may have been killed.
        """
        try:
            children = {int(pid) for pid in self._children.read_text("ascii").split()}
        except FileNotFoundError:  # a kernel without this list
            return 0
        self._known &= children
        self._spared &= children
        self._dead = {pid: since for pid, since in self._dead.items() if pid in children}
        now = int(boottime() * _TICKS)
        killed = sum(self._settle(pid) for pid in children - self._jobs.keys())
        if not killed:
            self._kinship.settled(now)
        return killed

    def _settle(self, pid: int) -> bool:
        process = proc_files.look(pid)
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
            told = (environ.get("SCHEDD_RUN_ID"), environ.get("SCHEDD_FENCING_TOKEN"))
            return told not in running
        return self._tree is None and self._kinship.fate(process.start) is Fate.END

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
