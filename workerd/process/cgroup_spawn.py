"""Where programs are born in cgroups: the launcher makes cradles there, and has them used again.

    launcher (a process) ──makes──→ cradle (a process in a cgroup) ──starts──→ program, and another

Invariants
- A cradle is used again only when nothing but itself is left in its cgroup; else all of it goes.
- One birth is asked for at a time. One that isn't told within `PATIENCE` stays asked for: nobody
  waits for it again, until it is told nothing else is born, and who asks then gets it.
- A launcher process that died, or has told nothing for `PATIENCE_AT_START`, is replaced by another;
  its cradles live on.
- One that nobody has needed for `IDLE_FOR` goes: what a burst had born isn't kept for ever.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from schedkit.clock import boottime
from schedkit.records import dataclass
from workerd.process import cgroups
from workerd.process.cgroup_child import PATIENCE, Cradle, received
from workerd.process.cgroup_launcher import BORN
from workerd.process.cgroup_limits import Controllers
from workerd.process.programs import Program

log = logging.getLogger(__name__)

PATIENCE_AT_START: Final = 30.0
"""Seconds within which a launcher starts and answers, however slow the host is."""
IDLE_FOR: Final = 30.0
"""Seconds for which an idle cradle is kept; its process has some descriptors here, and memory."""
GONE: Final = "the launcher process is gone"


@dataclass(frozen=True, slots=True)
class _Birth:
    """One that was asked for."""

    group: cgroups.Cgroup
    ours: socket.socket
    """To the cradle that will be."""
    asked: float


@dataclass(frozen=True, slots=True)
class _Idle:
    """One that may be used again."""

    cradle: Cradle
    since: float


class Launcher:
    """The worker's hold on its launcher process, and on the tree in which it gives birth."""

    def __init__(self, tree: Path, mark: str) -> None:
        """Make the tree, start the process, and try it; blocks for a moment.

        Raises:
            OSError: no process can be born in a cgroup here; nothing is left of the attempt.
        """
        self.tree = tree
        self._mark = mark
        self._numbers = itertools.count(1)
        self._idle: list[_Idle] = []
        """The one given back last is taken first, so those at the front are the longest idle."""
        self._leaving: list[Cradle] = []
        """Those that are to be gone, but may hold something that lives."""
        self._unborn: _Birth | None = None
        self._running: _Running | None = None
        self._held = cgroups.make(tree)
        self.controllers = Controllers(tree)
        """Of all that will be born."""
        try:
            self.give_back(self._newborn(PATIENCE_AT_START))
        except OSError:
            self.close()
            raise

    def take(self) -> Cradle:
        """One that is idle, or a new one.

        Raises:
            OSError: none can be had now: EAGAIN, or there is no descriptor to look with.
        """
        while self._idle:
            alone = self._idle[-1].cradle.reusable()
            cradle = self._idle.pop().cradle
            if alone:  # and wasn't killed by a stranger
                return cradle
            self._leave(cradle)
        return self._newborn(PATIENCE)

    def take_bound(self, program: Program) -> Cradle:
        """A new one, whose cgroup has this program's limits, and which isn't to be given back.

        Raises:
            OSError: none can be had now: EAGAIN.
        """
        cradle = self._newborn(PATIENCE)
        try:
            cradle.bound(self.controllers, program)
        except OSError as error:
            self._leave(cradle)
            told = f"no limits for it: {error.strerror}"
            raise OSError(errno.EAGAIN, told, error.filename) from error
        return cradle

    def give_back(self, cradle: Cradle) -> None:
        """It is alone, and may be used again."""
        self._idle.append(_Idle(cradle, boottime()))

    def look(self) -> None:
        """Time goes on: away with what nobody needed, and with what had to be left until now."""
        longest = boottime() - IDLE_FOR
        while self._idle and self._idle[0].since < longest:
            self._leave(self._idle.pop(0).cradle)
        self._clear_away()

    def _clear_away(self) -> None:
        for cradle in [*self._leaving]:
            if cradle.remove():
                self._leaving.remove(cradle)
            else:
                cradle.kill()

    def close(self) -> None:
        """End it, and whatever is left in the tree."""
        self._give_up()
        cgroups.clear(self.tree, self._mark)
        os.close(self._held)
        self._leaving += [idle.cradle for idle in self._idle]
        self._clear_away()

    def _newborn(self, patience: float) -> Cradle:
        if self._unborn is None:
            self._unborn = self._asked()
        else:  # it was waited for: the worker's loop stands still meanwhile
            patience = 0.0
        birth = self._unborn
        assert self._running is not None, "it was asked"
        try:
            pid, number = self._running.told(patience)
        except (TimeoutError, BlockingIOError) as error:
            if boottime() - birth.asked > PATIENCE_AT_START:
                self._give_up("the launcher process tells nothing")
            raise _refusal("it takes long", birth.group.path) from error
        except OSError as error:
            self._give_up(GONE)
            raise _refusal(error.strerror or str(error), birth.group.path) from error
        self._unborn = None
        cradle = Cradle(birth.group, pid, birth.ours)
        if number:
            self._leave(cradle)
            raise _refusal(os.strerror(number), birth.group.path)
        return cradle

    def _asked(self) -> _Birth:
        path = self.tree / f"slot-{next(self._numbers)}"
        try:
            if self._running is not None and self._running.ended():
                self._give_up(GONE)
            if self._running is None:
                self._running = _Running()
            with contextlib.ExitStack() as undone:
                group = cgroups.Cgroup(path)
                undone.callback(group.remove)
                ours, theirs = socket.socketpair()
                ours.settimeout(PATIENCE)
                undone.callback(ours.close)
                with theirs:
                    self._running.ask(group, theirs)
                undone.pop_all()
        except OSError as error:  # a limit of the host's, no failure of a program's
            raise _refusal(error.strerror or str(error), path) from error
        return _Birth(group, ours, boottime())

    def _give_up(self, why: str = "") -> None:
        """No launcher process any more, nor what it was asked for."""
        if why:
            log.error("%s; another will be started", why)
        if self._running is not None:
            self._running.end()
            self._running = None
        if self._unborn is not None:
            self._leave(Cradle(self._unborn.group, 0, self._unborn.ours))
            self._unborn = None

    def _leave(self, cradle: Cradle) -> None:
        cradle.kill()
        self._leaving.append(cradle)
        self._clear_away()


class _Running:
    """A launcher process, and our end of its socket."""

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
        """Its number."""
        return self._process.pid

    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def ask(self, group: cgroups.Cgroup, theirs: socket.socket) -> None:
        """For a birth in this cgroup; what is born gets this end of a socket."""
        folder = os.open(group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.settimeout(PATIENCE)
            socket.send_fds(self._socket, [b"."], [folder, theirs.fileno()])
        finally:
            os.close(folder)

    def told(self, patience: float) -> tuple[int, int]:
        """The number of what was born, or 0 and the errno that hindered it.

        Raises:
            TimeoutError, BlockingIOError: it wasn't told within so many seconds.
            OSError: the process has ended.
        """
        self._socket.settimeout(patience)
        pid, number, _ = BORN.unpack(received(self._socket, BORN.size))
        return int(pid), int(number)

    def end(self) -> None:
        """Kill it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _refusal(why: str, path: Path) -> OSError:
    return OSError(errno.EAGAIN, f"no birth in a cgroup: {why}", str(path))
