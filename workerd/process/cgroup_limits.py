"""Kernel limits on memory and processes of an attempt, where this worker may set them.

    version 2   in the attempt's own cgroup    <tree>/slot-<n>/memory.max
    version 1   in one beside it               <own one there>/workerd-<mark>-slot-<n>/memory.limit…

Version 2 enables controllers for children only in a cgroup without processes. So a worker in a
delegated cgroup moves itself into a leaf before it starts anything. With a version 1 controller
(hybrid) no process has to move; an attempt's starter is moved before its program starts.

Invariants
- Controllers are enabled only in the worker's tree, and in a cgroup that is marked as delegated.
- A limit is set before the program begins. A program whose limit can't be set isn't run.
- In version 1 only directories with this worker's mark in their names are changed. Cgroups that a
  root job created below its own are removed with it.
- Standard library only: the keeper imports this module.
"""

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from workerd.core.resource_limits import WITHIN, LimitExceeded, ResourceLimits
from workerd.process import cgroups

MEMORY: Final = "memory"
PIDS: Final = "pids"
_WORDS: Final = {MEMORY: "memory", PIDS: "processes"}
_LEAF: Final = "worker"
_STARTER: Final = 1
"""The process that starts the program is in the same cgroup."""
_MOST_PIDS: Final = 4_194_304
"""The kernel's maximum of pids and of this limit."""


class _Files(NamedTuple):
    limit: str
    beside: Mapping[str, str]
    """Written after the limit, if the kernel has these files."""
    counters: Collection[tuple[str, str]]
    """Counters (a file, a key in it) that are all above 0 if an attempt exceeded its limit. At
    least one is specific to this limit: a host without memory kills, too."""


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


class _Limit(NamedTuple):
    folder: Path
    files: _Files
    own: bool
    """Whether the directory exists only for this limit: version 1."""

    def impose(self, value: int, pid: int) -> None:
        """Create the directory, set the limit, and move this process there. Raises OSError."""
        if self.own:
            self.folder.mkdir()
        self.set(value)
        if self.own:
            _write(self.folder / "cgroup.procs", str(pid))

    def set(self, value: int) -> None:
        _write(self.folder / self.files.limit, str(value))
        for name, text in self.files.beside.items():
            with contextlib.suppress(FileNotFoundError):
                _write(self.folder / name, text)

    def exceeded(self) -> bool:
        return all(_count(self.folder / name, word) for name, word in self.files.counters)

    def removed(self) -> bool:
        """Remove the directory. Return False while processes are in it."""
        return not self.own or cgroups.remove_tree(self.folder)


class Hold:
    def __init__(self, bounds: ResourceLimits, limits: Mapping[str, _Limit], helpers: int) -> None:
        self._bounds = bounds
        self._limits = limits
        self._helpers = helpers

    def limit_starter(self, pid: int) -> None:
        """Set the limits on the cgroup of this process, the starter, which is alone in it. Raises
        OSError: a limit can't be set; others may be missing, too.
        """
        for name, value in _values(self._bounds, self._helpers):
            self._limits[name].impose(value, pid)

    def lower_process_limit(self) -> None:
        """Lower the process limit after the start: the helper threads have ended."""
        if self._helpers and PIDS in self._limits:
            with contextlib.suppress(OSError):  # the limit stays one higher
                self._limits[PIDS].set(_pids(self._bounds, 0))

    def excess(self) -> LimitExceeded:
        """Return the limits that the attempt exceeded; none if they can't be read."""
        try:
            exceeded = {name for name, limit in self._limits.items() if limit.exceeded()}
        except OSError:
            return WITHIN
        return LimitExceeded(memory=MEMORY in exceeded, processes=PIDS in exceeded)

    def remove(self) -> bool:
        """Remove the directories. Return False if it must be retried."""
        return all(limit.removed() for limit in self._limits.values())


class Controllers:
    def __init__(self, tree: Path) -> None:
        """Enable the controllers of a new, empty tree."""
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
        """Return why these limits can't be set here; empty if they can."""
        for name, wanted in ((MEMORY, bounds.memory), (PIDS, bounds.processes)):
            if wanted and name not in self._passed and name not in self._beside:
                why = self._whys.get(name, f"cgroup {self._tree.parent} has no {name} controller")
                return f"{_WORDS[name]} can't be limited on this worker: {why}"
        return ""

    def hold(self, slot: str, bounds: ResourceLimits, helpers: int = 0) -> Hold:
        """Return the limits for the attempt in this cgroup; nothing is set yet. `helpers`: threads
        of the starter while it starts the program. Raises OSError: a controller is missing.
        """
        limits = {name: self._limit(name, slot) for name, _ in _values(bounds, helpers)}
        return Hold(bounds, limits, helpers)

    def _limit(self, name: str, slot: str) -> _Limit:
        if name in self._passed:
            return _Limit(self._tree / slot, _VERSION_2[name], own=False)
        if name not in self._beside:
            raise OSError(
                errno.ENOTSUP,
                f"the worker's cgroup has no {name} controller; delegate it to workerd"
                " (systemd: Delegate=memory pids)",
                str(self._tree),
            )
        return _Limit(self._beside[name] / f"{self._tree.name}-{slot}", _VERSION_1[name], own=True)

    def _pass_on(self, folder: Path) -> set[str]:
        """Enable the controllers for a cgroup's children; return the enabled ones."""
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
    """Move this process from its delegated cgroup into a leaf of it. Call it before any process is
    started: children would stay behind. Raises OSError.
    """
    if cgroups.delegated(home) and cgroups.own() == home:
        leaf = home / _LEAF
        leaf.mkdir(exist_ok=True)
        _write(leaf / "cgroup.procs", "0")


def forget(mark: str) -> None:
    """Remove the version 1 cgroups of an ended worker; they have no processes any more."""
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
    return min(bounds.processes + _STARTER + helpers, _MOST_PIDS)


def _place(name: str) -> Path | None:
    """Return this process's version 1 cgroup with this controller, if it is writable."""
    found = cgroups.own(name)
    return found if found is not None and cgroups.writable(found) else None


def _count(path: Path, word: str) -> int:
    """Return the counter of a key in a file; without a key the file holds only the counter."""
    text = path.read_text()
    if not word:
        return int(text)
    lines = (line.split() for line in text.splitlines())
    return next((int(line[1]) for line in lines if line[0] == word), 0)


def _write(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # missing files can't be created
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
