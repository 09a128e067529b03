"""Supervise running programs, each in its own session and, if possible, its own cgroup.

    start → journal → ended: leftovers are killed → empty

There are two ways to find the processes of an attempt. The worker chooses one at its start and logs
it: the attempt's cgroup; or, without cgroups, sessions, marks and the start times of orphans.

Invariants
- The keeper is started before all other processes, the launcher included.
- A session is written to the journal directly after its first process starts. It is removed when
  its attempt has ended and its group was killed. Without a journal `refusal_reason` returns the
  cause, and the worker requests no work.
- An attempt is `empty` when no process of it is running. Its cgroup proves that; without cgroups it
  is inferred.
- The keeper knows the programs that end with the lease, and kills them if this process hangs. Their
  cgroups are never reused, because the keeper may kill them late.
- A process that can't be ended now, for lack of a descriptor, is retried every second.
"""

import asyncio
import logging
import uuid
from pathlib import Path
from typing import NoReturn

from workerd.core.ids import AssignmentKey
from workerd.core.lease_trust import KillEntry
from workerd.core.resource_limits import ResourceLimits, at_limit
from workerd.process import cgroup_limits, cgroups, proc_files
from workerd.process.cgroup_spawn import Launcher, Starter
from workerd.process.keeper import Keeper, SharedLease
from workerd.process.orphans import Orphans
from workerd.process.process_journal import Journal
from workerd.process.programs import PlainProgram, Program

log = logging.getLogger(__name__)

_LOOK = 1.0
_KEEPER_LOOK = 0.5


class ProcessSupervisor:
    def __init__(self, directory: Path, *, wanted: bool, handlers: bool) -> None:
        """Start the helper processes. `wanted`: whether to use cgroups if possible.

        `handlers`: whether handlers run in this process. Processes that they start are in no
        attempt's cgroup, and end with the worker by the keeper's snapshots. `directory`: of the
        journal. Blocks briefly.
        """
        self._handlers = handlers
        mark = str(uuid.uuid4())
        tree = cgroups.tree_of(mark) if wanted else None
        if tree is not None:
            try:
                cgroup_limits.step_aside(tree.parent)
            except OSError as error:
                log.warning("cgroup %s can't get child cgroups: %s", tree.parent, error.strerror)
        self.journal = Journal(directory, mark, tree)
        if self.refusal_reason:
            log.warning(
                "%s; the worker requests no new work until the journal can be written",
                self.refusal_reason,
            )
        self.lease = SharedLease()
        """The end of trust for the keeper; update it at each refresh."""
        self._leased = False
        """Whether a program that ends with the lease has run."""
        self._keeper = Keeper(self.journal.path, self.lease, picture=handlers or tree is None)
        self._launcher = _launcher(tree, mark, wanted=wanted)
        if tree is not None and not self.grouped and not handlers:
            self._keeper.send(b"p")
        self._orphans = Orphans(mark, None if self._launcher is None else self._launcher.tree)
        self._starters: dict[AssignmentKey, Starter] = {}
        """Starters in use, or not known to be empty."""
        self._leaders: dict[int, AssignmentKey] = {}
        """First processes that aren't reaped yet, with their attempts."""
        self._unkilled: dict[AssignmentKey, int] = {}
        """Attempts whose kill must be retried, with their first processes."""

    @property
    def grouped(self) -> bool:
        """Whether each attempt has a cgroup."""
        return self._launcher is not None

    @property
    def refusal_reason(self) -> str:
        """Why no program may be started; empty if they may."""
        problem = self.journal.problem
        return problem and f"process journal can't be written: {problem}"

    def lacking(self, bounds: ResourceLimits) -> str:
        """Return why these limits can't be enforced here; empty if they can."""
        if not bounds:
            return ""
        if self._launcher is None:
            return (
                "limits can't be enforced on this worker: it can't create cgroups; its log has the"
                " reason"
            )
        return self._launcher.controllers.lacking(bounds)

    def start(
        self, program: Program, key: AssignmentKey, out: int, err: int
    ) -> PlainProgram | Starter:
        """Start an attempt's program. Call `add_attempt` directly after it.

        Raises:
            OSError: it can't be started. Nothing is running, or, if a `Begun`, it is being killed.
            ValueError: an argument or a variable is invalid.
        """
        if self._launcher is None:
            return PlainProgram(program, self.journal.mark, out, err)
        if program.bounds:
            starter = self._launcher.take_bound(program)
        else:
            starter = self._launcher.take_starter()
        self._starters[key] = starter
        try:
            starter.start(program, self.journal.mark, out, err)
        except (OSError, ValueError):
            self.end_all_processes(key)
            raise
        return starter

    def add_attempt(
        self, pid: int, key: AssignmentKey, lost_kill_after: float | None = None
    ) -> None:
        """Record the first process of an attempt, the leader of its session. `lost_kill_after`:
        seconds from the loss of the lease to SIGKILL; None: no kill. Raises OSError: the journal
        can't be written; nothing is recorded.
        """
        process = proc_files.read_process(pid)
        assert process is not None, "a child that isn't reaped has an entry"
        mortal = self._mortal_of(process, key, lost_kill_after)
        self.journal.add_session(pid, process.start, mortal)
        self._orphans.add_attempt(process, key.run, key.token)
        self._leaders[pid] = key

    def _mortal_of(
        self, process: proc_files.ProcEntry, key: AssignmentKey, kill_after: float | None
    ) -> KillEntry | None:
        if kill_after is None:
            return None
        if not self._leased:
            self._leased = True
            self._keeper.send(b"l")
        slot = ""
        if (starter := self._starters.get(key)) is not None:
            starter.once = True
            slot = starter.slot
        return KillEntry(process.pid, process.start, kill_after, key.run, key.token, slot)

    def kill(self, pid: int, key: AssignmentKey) -> None:
        """Kill all known processes of the attempt; retry later if that fails."""
        self._unkilled.pop(key, None)
        if not self._killed(pid, key):
            log.warning(
                "some processes of run %s can't be killed; retrying", key.run, extra=key.log_fields
            )
            self._unkilled[key] = pid

    def _killed(self, pid: int, key: AssignmentKey) -> bool:
        if self.grouped:
            return key not in self._starters or self._starters[key].kill()
        try:
            if self._leaders.get(pid) == key or proc_files.read_process(pid) is None:
                proc_files.kill_session(pid)  # otherwise it was reaped, and its PID may be reused
        except OSError as error:
            if not at_limit(error):
                raise
            return False
        return True

    def end_attempt(self, pid: int, key: AssignmentKey) -> None:
        """Record that the first process was reaped and its process group killed."""
        del self._leaders[pid]
        self._orphans.end_attempt(pid)
        self.end_all_processes(key)
        try:
            self.journal.end_session(pid)
        except OSError as error:  # a full disk: the entry of an ended process stays
            log.warning("end of session %d can't be written to the journal: %s", pid, error)

    def end_all_processes(self, key: AssignmentKey) -> None:
        if (starter := self._starters.get(key)) is not None:
            starter.over = True
        self.empty(key)

    def empty(self, key: AssignmentKey) -> bool:
        """Return whether an ended attempt has no running processes; kill those it has. False if
        that can't be checked now.
        """
        try:
            return self._emptied(key)
        except OSError as error:
            if not at_limit(error):
                raise
            return False

    def _emptied(self, key: AssignmentKey) -> bool:
        if self._launcher is None:
            return self._orphans.end_orphans() == 0
        starter = self._starters.get(key)
        if starter is None:
            return True
        if not starter.once and starter.reusable():
            self._launcher.give_back(starter)
        elif not starter.remove():
            starter.kill()
            return False
        del self._starters[key]
        return True

    async def watch(self) -> NoReturn:
        """Check periodically: killed processes leave children, which become orphans here."""
        while True:
            await asyncio.sleep(_LOOK)
            self._look_again()

    def _look_again(self) -> None:
        hindered = self.refusal_reason
        self.journal.make()
        if hindered and not self.refusal_reason:
            log.info("process journal written again: the worker requests new work")
        try:
            self._orphans.end_orphans()
        except OSError as error:
            if not at_limit(error):
                raise
            log.warning(
                "leftover processes of attempts can't be searched for: %s; retrying", error.strerror
            )
        for key, pid in [*self._unkilled.items()]:
            self.kill(pid, key)
        for key, starter in [*self._starters.items()]:
            if starter.over:
                self.empty(key)
            elif starter.overran():  # version 1 kills only one process
                starter.kill()
        if self._launcher is not None:
            self._launcher.remove_idle_starters()

    async def keep_keeper(self) -> NoReturn:
        while True:
            await asyncio.sleep(_KEEPER_LOOK)
            if self._keeper.alive():
                continue
            log.error("keeper process has ended; starting another")
            try:
                fresh = Keeper(
                    self.journal.path,
                    self.lease,
                    picture=self._handlers or not self.grouped,
                    leased=self._leased,
                )
            except OSError as error:  # the host is out of processes: the worker continues
                log.warning("keeper can't be started: %s; retrying", error)
                continue
            self._keeper.release()
            self._keeper = fresh

    def close(self) -> None:
        self._keeper.release()
        self.lease.close()
        if self._launcher is not None:
            self._launcher.close()
            for starter in self._starters.values():  # its processes have ended with the tree
                starter.remove()
        self.journal.close()


def _launcher(tree: Path | None, mark: str, *, wanted: bool) -> Launcher | None:
    why = "no cgroup version 2 hierarchy is mounted" if wanted else "cgroups = false"
    if tree is not None:
        try:
            launcher = Launcher(tree, mark)
        except OSError as error:
            why = f"{error.strerror}: {error.filename}"
        else:
            log.info("each attempt of a program gets a cgroup below %s", tree)
            log.info("cgroup controllers for the limits of attempts: %s", launcher.controllers)
            if forgotten := cgroups.remove_forgotten(tree.parent):
                log.info("removed %d empty cgroup trees of workers without spools", forgotten)
            return launcher
    log.warning(
        "attempts have no cgroups (%s): limits can't be enforced, and a process that leaves its"
        " session is ended late (docs/semantics/process-cleanup.md)",
        why,
    )
    return None
