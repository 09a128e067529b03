"""The kernel's limits of an attempt's memory and processes, where this worker may set them.

    version 2   in the attempt's own cgroup    <tree>/slot-<n>/memory.max
    version 1   in one beside it               <own one there>/workerd-<mark>-slot-<n>/memory.limit…

Version 2 passes controllers on only from a cgroup in which no process stands. So a worker whose
cgroup was delegated to it steps aside, into a leaf, before it starts anything. Where version 1 has
a controller (hybrid), no process has to leave; an attempt's cradle is moved before its program.

Invariants
- No cgroup passes anything on by this but the worker's tree, and one that is marked as delegated.
- A limit stands before the program begins. What can't be limited isn't run.
- Of version 1 nothing is written but in folders that have this worker's mark in their names; what
  a job that is root made below its own goes with it.
- Standard library alone: the keeper stands on this.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from schedkit.records import dataclass
from workerd.core.resource_limits import WITHIN, Excess, ResourceLimits
from workerd.process import cgroups

MEMORY: Final = "memory"
PIDS: Final = "pids"
_WORDS: Final = {MEMORY: "memory", PIDS: "processes"}
_LEAF: Final = "worker"
_CRADLE: Final = 1
"""The process that starts the program stands in the same cgroup."""
_MOST_PIDS: Final = 4_194_304
"""The kernel has no more process numbers, and takes no greater limit."""


@dataclass(frozen=True, slots=True)
class _Files:
    """How a controller is spoken to."""

    limit: str
    beside: Mapping[str, str]
    """To be written after it, where the kernel has them."""
    told: Collection[tuple[str, str]]
    """Counts (a file, a word in it) that all are above 0 when an attempt wanted more. Among them
    one that knows of this very limit: a host without memory kills, too."""


_PIDS: Final = _Files("pids.max", {}, [("pids.events", "max")])
_VERSION_2: Final = {
    MEMORY: _Files(
        "memory.max",
        {"memory.swap.max": "0", "memory.oom.group": "1"},
        [("memory.events", "oom_kill"), ("memory.events.local", "oom")],
    ),
    PIDS: _PIDS,
}
_VERSION_1: Final = {
    MEMORY: _Files(
        "memory.limit_in_bytes",
        {"memory.swappiness": "0"},
        [("memory.oom_control", "oom_kill"), ("memory.failcnt", "")],
    ),
    PIDS: _PIDS,
}


@dataclass(frozen=True, slots=True)
class _Limit:
    """One of an attempt's, that stands."""

    folder: Path
    files: _Files
    own: bool
    """Whether the folder was made for it alone: version 1."""

    def make(self) -> None:
        """Have the folder. Raises OSError."""
        if self.own:
            self.folder.mkdir()

    def take(self, pid: int) -> None:
        """Have this process stand there. Raises OSError."""
        if self.own:
            _write(self.folder / "cgroup.procs", str(pid))

    def set(self, value: int) -> None:
        """Raises OSError."""
        _write(self.folder / self.files.limit, str(value))
        for name, text in self.files.beside.items():
            with contextlib.suppress(FileNotFoundError):
                _write(self.folder / name, text)

    def exceeded(self) -> bool:
        """Raises OSError."""
        return all(_count(self.folder / name, word) for name, word in self.files.told)

    def removed(self) -> bool:
        """Away with what was made for it; False while something stands there."""
        if not self.own:
            return True
        return cgroups.remove_tree(self.folder)


class Hold:
    """The limits of one attempt."""

    def __init__(self, bounds: ResourceLimits, limits: Mapping[str, _Limit], helpers: int) -> None:
        self._bounds = bounds
        self._limits = limits
        self._helpers = helpers

    def take(self, pid: int) -> None:
        """Set them on the cgroup in which this process, its cradle, stands alone.

        Raises:
            OSError: that can't be done; none of them is to be relied on.
        """
        for name, value in _values(self._bounds, self._helpers):
            self._limits[name].make()
            self._limits[name].set(value)
            self._limits[name].take(pid)

    def begun(self) -> None:
        """The program has been started: what helped at that has gone."""
        if self._helpers and PIDS in self._limits:
            with contextlib.suppress(OSError):  # it has room for one more then
                self._limits[PIDS].set(_pids(self._bounds, 0))

    def excess(self) -> Excess:
        """What its attempt wanted more of. Nothing, where that can't be told now."""
        try:
            told = {name for name, limit in self._limits.items() if limit.exceeded()}
        except OSError:
            return WITHIN
        return Excess(memory=MEMORY in told, processes=PIDS in told)

    def remove(self) -> bool:
        """Away with what was made for it; False when that has to be tried again."""
        return all(limit.removed() for limit in self._limits.values())


class Controllers:
    """Which this worker has for its attempts."""

    def __init__(self, tree: Path) -> None:
        """Of a tree that was just made, and in which nothing stands."""
        self._tree = tree
        self._whys: dict[str, str] = {}
        if cgroups.delegated(tree.parent):
            self._pass_on(tree.parent)
        passed = self._pass_on(tree)
        self._beside = {
            name: place
            for name in _VERSION_1
            if name not in passed and (place := _place(name)) is not None
        }
        self._passed = passed

    def __str__(self) -> str:
        had = [*self._passed, *(f"{name} (version 1)" for name in self._beside)]
        lacking = (
            self.lacking(ResourceLimits(memory=1)),
            self.lacking(ResourceLimits(processes=1)),
        )
        return "; ".join((", ".join(sorted(had)) or "none", *filter(None, lacking)))

    def lacking(self, bounds: ResourceLimits) -> str:
        """Why these bounds can't be kept here; empty when they can."""
        for name, wanted in ((MEMORY, bounds.memory), (PIDS, bounds.processes)):
            if wanted and name not in self._passed and name not in self._beside:
                why = self._whys.get(name, f"{self._tree.parent} has no such controller for it")
                return f"no limit of {_WORDS[name]} on this worker: {why}"
        return ""

    def hold(self, slot: str, bounds: ResourceLimits, helpers: int = 0) -> Hold:
        """Of the attempt in this cgroup of the tree; nothing is set yet.

        `helpers`: threads that its cradle has while it starts the program.

        Raises:
            OSError: a controller is lacking.
        """
        limits = {name: self._limit(name, slot) for name, _ in _values(bounds, helpers)}
        return Hold(bounds, limits, helpers)

    def _limit(self, name: str, slot: str) -> _Limit:
        if name in self._passed:
            return _Limit(self._tree / slot, _VERSION_2[name], own=False)
        if name not in self._beside:
            raise OSError(errno.ENOTSUP, f"no {name} controller", str(self._tree))
        return _Limit(self._beside[name] / f"{self._tree.name}-{slot}", _VERSION_1[name], own=True)

    def _pass_on(self, folder: Path) -> set[str]:
        """Have a cgroup's children have what it has; what they have then."""
        for name in _VERSION_2:
            try:
                if name in (folder / "cgroup.controllers").read_text().split():
                    _write(folder / "cgroup.subtree_control", f"+{name}")
            except OSError as error:
                self._whys[name] = f"{error.strerror}: {folder}"
        try:
            passed = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            return set()
        return {name for name in _VERSION_2 if name in passed}


def step_aside(home: Path) -> None:
    """Move this process from the cgroup that was delegated to it into a leaf of that.

    To be called before anything is started, which would stay behind. Raises OSError.
    """
    if cgroups.delegated(home) and cgroups.own() == home:
        leaf = home / _LEAF
        leaf.mkdir(exist_ok=True)
        _write(leaf / "cgroup.procs", "0")


def forget(mark: str) -> None:
    """Remove what a dead worker left of version 1; nothing lives in it any more."""
    for name in _VERSION_1:
        place = _place(name)
        for folder in [] if place is None else place.glob(f"{cgroups.NAME.format(mark)}-*"):
            with contextlib.suppress(OSError):
                cgroups.remove_tree(folder)


def _values(bounds: ResourceLimits, helpers: int) -> Iterator[tuple[str, int]]:
    if bounds.memory:
        yield MEMORY, bounds.memory
    if bounds.processes:
        yield PIDS, _pids(bounds, helpers)


def _pids(bounds: ResourceLimits, helpers: int) -> int:
    return min(bounds.processes + _CRADLE + helpers, _MOST_PIDS)


def _place(name: str) -> Path | None:
    """This process's own cgroup of version 1 with this controller, if it may have others below."""
    found = cgroups.own(name)
    return found if found is not None and cgroups.writable(found) else None


def _count(path: Path, word: str) -> int:
    """What a file of counts says of a word; without one it holds the count alone."""
    text = path.read_text()
    if not word:
        return int(text)
    lines = (line.split() for line in text.splitlines())
    return next((int(line[1]) for line in lines if line[0] == word), 0)


def _write(path: Path, text: str) -> None:
    file = os.open(
        path, os.O_WRONLY | os.O_CLOEXEC
    )  # a file that isn't there can't be made, either
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
