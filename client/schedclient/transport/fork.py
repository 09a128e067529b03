"""Close all connections before `os.fork`, so that gRPC works in the parent and in the child.

    a fork begins ─→ new calls wait ─→ calls end, streams break off ─→ connections close
        ─→ gRPC's threads end ─→ fork ─→ calls and streams continue in the parent

gRPC can't be used in a child that was forked while gRPC's threads ran: calls hang, or the child
crashes. These threads end a few milliseconds after the last channel was closed.

Invariants
- Before a fork, new calls of every client wait, and calls in flight have `ENDS_WITHIN` to finish.
  Streams that their caller resumes are broken off. Connections are then closed; the next call opens
  them again.
- The fork waits until gRPC's threads have ended. `/proc` lists them; on other systems than Linux
  only the thread of `grpc.aio` is visible.
- If a call was in flight at the fork, or another library uses `grpc.aio`, calls in the child are
  rejected with reason `FORKED`. Other channels of `grpc` are left to gRPC's own handlers.
- Such a child never frees inherited connections: gRPC crashes when it frees a connection without
  its threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from schedclient.errors import FailedPrecondition

if TYPE_CHECKING:
    from schedclient.transport.transport import Channels

ENDS_WITHIN: Final = 1.0
"""Seconds that a fork waits for the calls in flight, and for gRPC's threads."""
FORKED: Final = "FORKED"
LOOK_EVERY: Final = 0.002
"""Seconds between two checks of open calls, or of the end of a fork."""
_THREADS: Final = ("event_engine", "grpc_", "lifeguard")
"""Prefixes of the names of gRPC's own threads."""
_TASKS: Final = Path("/proc/self/task")


class Open(Enum):
    NO = "no"
    SHORTLY = "shortly"
    FOR_THIS_THREAD = "for this thread"
    """A call in flight can't finish while this thread forks: it runs the call's event loop."""


@dataclass(slots=True)
class ForkState:
    lock: threading.RLock = field(default_factory=threading.RLock)
    """A call begins under it: no fork begins meanwhile."""
    connections: WeakSet[Channels] = field(default_factory=WeakSet)
    forks: int = 0
    """Threads that are forking now. Calls must not begin."""
    foreign: bool = False
    """Whether gRPC's threads ran at the last fork although we had no open connection."""
    polled: bool = False
    """Whether `grpc.aio` ran at the last fork."""
    unusable: bool = False
    registered: bool = False


state = ForkState()


def register(connections: Channels) -> None:
    """Release these connections before each fork of this process."""
    with state.lock:
        state.connections.add(connections)
        if not state.registered:
            state.registered = True
            os.register_at_fork(
                before=_before, after_in_parent=_in_parent, after_in_child=_in_child
            )


def check() -> None:
    """Raise FailedPrecondition if gRPC is unusable in this process."""
    if state.unusable:
        raise FailedPrecondition(
            f"process {os.getpid()} was forked while its parent process had a gRPC call in"
            " progress, or while other code of the parent used grpc.aio; gRPC can't be used in"
            " this process",
            reason=FORKED,
            remedy="fork before the first call, or when no call is in flight;"
            " or start the process with multiprocessing's spawn or forkserver",
        )


def _before() -> None:
    with state.lock:
        state.forks += 1
        connections = tuple(state.connections)
    ends = time.monotonic() + ENDS_WITHIN
    ours = any(one.is_open() for one in connections)
    collected = False
    while time.monotonic() < ends:
        found = {one.release() for one in connections}
        if Open.SHORTLY not in found:
            if Open.FOR_THIS_THREAD in found or not _grpc_runs():
                break
            if state.foreign and not ours:
                break  # they belong to another library
            if not collected:
                gc.collect()  # a cycle of garbage may refer to a channel
                collected = True
        time.sleep(LOOK_EVERY)
    for one in connections:  # its thread may still hold a lock of gRPC
        one.pass_through(max(0.0, ends - time.monotonic()))
    state.polled = _aio_runs()
    state.foreign = _grpc_runs() and not any(one.is_open() for one in connections)


def _aio_runs() -> bool:
    """Return whether the thread of `grpc.aio` runs. Python names it by its function."""
    return any("_poll_wrapper" in thread.name for thread in threading.enumerate())


def _grpc_runs() -> bool:
    """Return whether a thread of gRPC runs. They end shortly after the process's last channel. The
    threads of gRPC's core can only be recognized by their names.
    """
    if _aio_runs():
        return True
    python = {thread.native_id for thread in threading.enumerate()}
    with contextlib.suppress(OSError):  # no /proc
        return any(
            _name_of(task).startswith(_THREADS)
            for task in _TASKS.iterdir()
            if int(task.name) not in python
        )
    return False


def _name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # it has ended
        return ""


def _in_parent() -> None:
    with state.lock:
        state.forks -= 1


def _in_child() -> None:
    state.lock = threading.RLock()  # another thread of the parent may have held the old one
    state.forks = 0
    inherited = tuple(state.connections)
    if state.polled or any(one.is_open() for one in inherited):
        state.unusable = True
        for one in inherited:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
    state.connections = WeakSet()
