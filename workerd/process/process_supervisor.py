"""The programs that run, each with a session and, where it can be, a cgroup of its own.

    start → written down for the keeper → ended: what it left is killed → empty

Two ways to know what belongs to an attempt, chosen once, at the start of the worker, and told in
its log: its cgroup; or, where none can be made, sessions, marks and the births of orphans.

Invariants
- The keeper is there before anything else is started, the launcher too.
- A session is written down before anything else is done with its first process, and struck out
  when its attempt has ended and its group was killed. As long as there is nothing to write it in,
  `refuses` says so, and no work is asked for.
- An attempt is `empty` when nothing of it lives: in a cgroup that is proven, else it is judged.
- What dies with the lease is known to the keeper, and to it alone when this process stands still;
  so its cgroup is nobody else's, not even later: the keeper may kill it late.
- What is to be ended and can't be now, for want of a descriptor, is tried again every second.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from pathlib import Path
from typing import NoReturn

from workerd.core.ids import AssignmentKey
from workerd.core.lease_kill_list import Mortal
from workerd.core.limit_errors import at_limit
from workerd.core.resource_limits import ResourceLimits
from workerd.process import cgroup_limits, cgroups, proc_files
from workerd.process.cgroup_child import Cradle
from workerd.process.cgroup_spawn import Launcher
from workerd.process.keeper import Keeper
from workerd.process.orphans import Orphans
from workerd.process.process_journal import Journal
from workerd.process.programs import PlainProgram, Program, StartedProgram
from workerd.process.shared_lease import SharedLease

log = logging.getLogger(__name__)

_LOOK = 1.0
_KEEPER_LOOK = 0.5


class Sessions:
    """What executors that start processes report to."""

    def __init__(self, directory: Path, *, wanted: bool, handlers: bool) -> None:
        """Choose the way; `wanted`: whether cgroups are to be used where they can be.

        `handlers`: whether handlers run in this process. What those start is in no attempt's cgroup
        and ends with the worker, by the keeper's pictures. The journal is in `directory`. Blocks
        for a moment.
        """
        self._handlers = handlers
        mark = str(uuid.uuid4())
        tree = cgroups.tree_of(mark) if wanted else None
        if tree is not None:
            _step_aside(tree.parent)
        self.journal = Journal(directory, mark, tree)
        if self.refuses:
            log.warning("%s; no work until it can", self.refuses)
        self.lease = SharedLease()
        """What the keeper knows of it; to be told of each refresh."""
        self._leased = False
        """Whether anything has run that dies with the lease."""
        self._keeper = Keeper(self.journal.path, self.lease, picture=handlers or tree is None)
        self._launcher = _launcher(tree, mark, wanted=wanted)
        if tree is not None and self._pictured and not handlers:
            self._keeper.take_pictures()
        self._orphans = Orphans(mark, None if self._launcher is None else self._launcher.tree)
        self._cradles: dict[AssignmentKey, Cradle] = {}
        """Those in use, or not known to be empty."""
        self._once: set[AssignmentKey] = set()
        """Attempts whose cradles aren't used again."""
        self._over: set[AssignmentKey] = set()
        self._leaders: dict[int, AssignmentKey] = {}
        """First processes that nobody has reaped, each of its attempt."""
        self._unkilled: dict[AssignmentKey, int] = {}
        """Attempts that should have been killed, each with its first process."""

    @property
    def grouped(self) -> bool:
        """Whether each attempt has a cgroup."""
        return self._launcher is not None

    @property
    def refuses(self) -> str:
        """Why no program may be started, in words; empty: they may."""
        problem = self.journal.problem
        return problem and f"its journal of what runs can't be written: {problem}"

    def lacking(self, bounds: ResourceLimits) -> str:
        """Why an attempt can't be held to these bounds here; empty when it can."""
        if not bounds:
            return ""
        if self._launcher is None:
            return "no limits on this worker: its attempts have no cgroups (its log says why)"
        return self._launcher.controllers.lacking(bounds)

    @property
    def _pictured(self) -> bool:
        """Whether the keeper has to look at what comes from the worker while it lives."""
        return self._handlers or not self.grouped

    def start(self, program: Program, key: AssignmentKey, out: int, err: int) -> StartedProgram:
        """Start an attempt's program; `began` is to follow at once.

        Raises:
            OSError: it can't be started, and nothing of it runs or, if a `Begun`, will for long.
            ValueError: an argument or a variable can't be passed on.
        """
        if self._launcher is None:
            return PlainProgram(program, self.journal.mark, out, err)
        if program.bounds:
            cradle = self._launcher.take_bound(program)
            self._once.add(key)
        else:
            cradle = self._launcher.take()
        self._cradles[key] = cradle
        try:
            cradle.start(program, self.journal.mark, out, err)
        except (OSError, ValueError):
            self.over(key)
            raise
        return cradle

    def began(self, pid: int, key: AssignmentKey, lost_kill_after: float | None = None) -> None:
        """The first process of an attempt lives, as leader of its session.

        `lost_kill_after`: seconds from the loss of the lease to its killing, if it is to be killed.

        Raises:
            OSError: it can't be written down; nothing is known of it then.
        """
        process = proc_files.look(pid)
        assert process is not None, "a child that nobody has reaped has an entry"
        mortal = self._mortal_of(process, key, lost_kill_after)
        self.journal.began(pid, process.start, mortal)
        self._orphans.began(process, key.run, key.token)
        self._leaders[pid] = key

    def _mortal_of(
        self, process: proc_files.ProcEntry, key: AssignmentKey, kill_after: float | None
    ) -> Mortal | None:
        if kill_after is None:
            return None
        if not self._leased:
            self._leased = True
            self._keeper.watch_lease()
        slot = ""
        if key in self._cradles:
            self._once.add(key)
            slot = self._cradles[key].slot
        return Mortal(process.pid, process.start, kill_after, key.run, key.token, slot)

    def kill(self, pid: int, key: AssignmentKey) -> None:
        """Everything that is known to belong to it; what can't be killed now will be."""
        self._unkilled.pop(key, None)
        if not self._killed(pid, key):
            log.warning("run %s can't be killed whole now; trying again", key.run, extra=key.said)
            self._unkilled[key] = pid

    def _killed(self, pid: int, key: AssignmentKey) -> bool:
        if self.grouped:
            return key not in self._cradles or self._cradles[key].kill()
        try:
            if self._leaders.get(pid) == key or proc_files.look(pid) is None:
                proc_files.kill_session(pid)  # else it was reaped, and its number is another's
        except OSError as error:
            if not at_limit(error):
                raise
            return False
        return True

    def ended(self, pid: int, key: AssignmentKey) -> None:
        """Its first process was reaped, and its process group killed."""
        del self._leaders[pid]
        self._orphans.ended(pid)
        self.over(key)
        try:
            self.journal.ended(pid)
        except OSError as error:  # a full disk: the entry stays, and names a process that is gone
            log.warning("the end of session %d can't be written down: %s", pid, error)

    def over(self, key: AssignmentKey) -> None:
        """Nothing of it is to live any more."""
        if key in self._cradles:
            self._over.add(key)
        self.empty(key)

    def empty(self, key: AssignmentKey) -> bool:
        """Whether nothing of an attempt that is over lives; what does is killed.

        False when that can't be told now.
        """
        try:
            return self._emptied(key)
        except OSError as error:
            if not at_limit(error):
                raise
            return False

    def _emptied(self, key: AssignmentKey) -> bool:
        if self._launcher is None:
            return self._orphans.look() == 0
        cradle = self._cradles.get(key)
        if cradle is None:
            return True
        if key not in self._once and cradle.reusable():
            self._launcher.give_back(cradle)
        elif not cradle.remove():
            cradle.kill()
            return False
        del self._cradles[key]
        self._once.discard(key)
        self._over.discard(key)
        return True

    async def watch(self) -> NoReturn:
        """Look again and again: the killed leave children, which come here in turn."""
        while True:
            await asyncio.sleep(_LOOK)
            self._look_again()

    def _look_again(self) -> None:
        hindered = self.refuses
        self.journal.make()
        if hindered and not self.refuses:
            log.info("its journal of what runs is written: programs may be started")
        try:
            self._orphans.look()
        except OSError as error:
            if not at_limit(error):
                raise
            log.warning("can't look for what attempts left: %s; trying again", error.strerror)
        for key, pid in [*self._unkilled.items()]:
            self.kill(pid, key)
        for key, cradle in [*self._cradles.items()]:
            if key not in self._over and cradle.overran():  # version 1 kills one process alone
                cradle.kill()
        for key in [*self._over]:
            self.empty(key)
        if self._launcher is not None:
            self._launcher.look()

    async def keep_keeper(self) -> NoReturn:
        """Have a keeper, whatever becomes of one."""
        while True:
            await asyncio.sleep(_KEEPER_LOOK)
            if self._keeper.alive():
                continue
            log.error("the keeper process is gone; starting another")
            try:
                fresh = Keeper(
                    self.journal.path, self.lease, picture=self._pictured, leased=self._leased
                )
            except OSError as error:  # no room for one more process: no reason to end all others
                log.warning("no keeper can be started: %s; trying again", error)
                continue
            self._keeper.release()
            self._keeper = fresh

    def close(self) -> None:
        """The worker ends, and has nothing running."""
        self._keeper.release()
        self.lease.close()
        if self._launcher is not None:
            self._launcher.close()
            for cradle in self._cradles.values():  # what it held has ended with the tree
                cradle.remove()
        self.journal.close()


def _step_aside(home: Path) -> None:
    try:
        cgroup_limits.step_aside(home)
    except OSError as error:
        log.warning("the cgroup %s can't be divided: %s", home, error.strerror)


def _launcher(tree: Path | None, mark: str, *, wanted: bool) -> Launcher | None:
    why = "no version 2 hierarchy is mounted" if wanted else "cgroups = false"
    if tree is not None:
        try:
            launcher = Launcher(tree, mark)
        except OSError as error:
            why = f"{error.strerror}: {error.filename}"
        else:
            log.info("each attempt of a program has a cgroup of its own, under %s", tree)
            log.info("controllers for limits of attempts: %s", launcher.controllers)
            if forgotten := cgroups.remove_forgotten(tree.parent):
                log.info("removed %d empty trees of workers whose spools are gone", forgotten)
            return launcher
    log.warning(
        "attempts have no cgroups (%s): what leaves its session and clears its environment"
        " is told by its birth, and ended when no attempt that lived then is left",
        why,
    )
    return None
