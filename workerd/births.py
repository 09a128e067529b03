"""Where programs are born in cgroups: the launcher makes cradles there, and has them used again.

    launcher (a process) ──makes──→ cradle (a process in a cgroup) ──starts──→ program, and another

Invariants
- A cradle is used again only when nothing but itself is left in its cgroup; else all of it goes.
- A launcher process that died, or didn't answer in time, is replaced by another; its cradles live
  on.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from workerd import cgroups
from workerd.cradle import PATIENCE, Cradle, received
from workerd.launcher import BORN

log = logging.getLogger(__name__)

PATIENCE_AT_START: Final = 30.0
"""Seconds for the first answer: the process starts meanwhile."""


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
        self._idle: list[Cradle] = []
        self._held = cgroups.make(tree)
        self._start()
        try:
            self._socket.settimeout(PATIENCE_AT_START)
            self.give_back(self.take())
            self._socket.settimeout(PATIENCE)
        except OSError:
            self.close()
            raise

    def take(self) -> Cradle:
        """One that is idle, or a new one.

        Raises:
            OSError: EAGAIN, none can be had now.
        """
        while self._idle:
            cradle = self._idle.pop()
            if cradle.reusable():  # and wasn't killed by a stranger
                return cradle
            cradle.kill()
            cradle.remove()
        path = self.tree / f"slot-{next(self._numbers)}"
        try:
            group = cgroups.Group(path)
        except OSError as error:  # a limit of the host's, no failure of a program's
            raise OSError(errno.EAGAIN, f"no cgroup: {error.strerror}", path) from error
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = self._birth(group, theirs)
            except OSError as error:
                ours.close()
                group.kill()
                group.remove()
                about = f"no birth in a cgroup: {error.strerror or error}"
                raise OSError(errno.EAGAIN, about, path) from error
        ours.settimeout(PATIENCE)
        return Cradle(group, pid, ours)

    def give_back(self, cradle: Cradle) -> None:
        """It is alone, and may be used again."""
        self._idle.append(cradle)

    def close(self) -> None:
        """End it, and whatever is left in the tree."""
        self._end()
        cgroups.clear(self.tree, self._mark)
        os.close(self._held)

    def _birth(self, group: cgroups.Group, theirs: socket.socket) -> int:
        if self._process.poll() is not None:
            log.error("the launcher process is gone; starting another")
            self._end()
            self._start()
        folder = os.open(group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            socket.send_fds(self._socket, [b"."], [folder, theirs.fileno()])
            pid, number, _ = BORN.unpack(received(self._socket, BORN.size))
        except TimeoutError:
            self._end()  # its answer, when it comes, would be taken for that of the next birth
            raise
        finally:
            os.close(folder)
        if number:
            raise OSError(number, os.strerror(number))
        return int(pid)

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE)
        safe_path = ["-P"] if sys.flags.safe_path else []
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *safe_path, "-m", "workerd.launcher"],
                stdin=theirs.fileno(),
                start_new_session=True,
            )

    def _end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
