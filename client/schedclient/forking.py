"""Close idle connections before `os.fork`, so that gRPC works in the parent and in the child.

gRPC can't be used in a child that was forked while gRPC's threads ran: calls hang, or the child
crashes. gRPC's threads end with its last channel.

Invariants
- Before a fork, new calls of every `SyncClient` wait, and calls in flight have `ENDS_WITHIN` to
  finish. Idle connections are then closed; the next call opens them again.
- If a call was still in flight at the fork, or another library uses `grpc.aio`, each call in the
  child is rejected with the reason `FORKED`.
- What such a child inherited is never freed there: gRPC crashes when it frees a connection without
  its threads.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol
from weakref import WeakSet

from schedclient.errors import FailedPrecondition

ENDS_WITHIN: Final = 1.0
"""Seconds that a fork waits for the calls in flight."""
FORKED: Final = "FORKED"
_LOOK_EVERY: Final = 0.002


class Open(Enum):
    """Whether connections are open."""

    NO = "no"
    SHORTLY = "shortly"
    FOR_THIS_THREAD = "for this thread"
    """A call in flight can't finish while this thread forks: it runs the call's event loop."""


class Connections(Protocol):
    """Open connections, or calls that use them."""

    def release(self) -> Open:
        """Close what is idle, now or soon; return what is open."""

    def is_open(self) -> bool:
        """Return whether a connection is open or a call is in flight."""


@dataclass(slots=True)
class _State:
    gate: threading.RLock = field(default_factory=threading.RLock)
    connections: WeakSet[Connections] = field(default_factory=WeakSet)
    polled: bool = False
    """Whether `grpc.aio` ran at the last fork."""
    unusable: bool = False
    registered: bool = False


_state = _State()


def register(connections: Connections) -> None:
    """Release these connections before each fork of this process."""
    with _state.gate:
        _state.connections.add(connections)
        if not _state.registered:
            _state.registered = True
            os.register_at_fork(
                before=_before, after_in_parent=_in_parent, after_in_child=_in_child
            )


def gate() -> threading.RLock:
    """Return the lock that a fork holds. Hold it while a call begins."""
    return _state.gate


def check() -> None:
    """Raise FailedPrecondition if gRPC is unusable in this process."""
    if _state.unusable:
        raise FailedPrecondition(
            f"process {os.getpid()} was forked while its parent had a gRPC call in flight, or"
            " used grpc.aio elsewhere; gRPC is unusable in this process",
            reason=FORKED,
            remedy="fork before the first call, or when no call is in flight;"
            " or start the process with multiprocessing's spawn or forkserver",
        )


def _before() -> None:
    _state.gate.acquire()  # held by others only while a call begins
    ends = time.monotonic() + ENDS_WITHIN
    while Open.SHORTLY in {one.release() for one in tuple(_state.connections)}:
        if time.monotonic() > ends:
            break
        time.sleep(_LOOK_EVERY)
    if _polls():
        gc.collect()  # a cycle of garbage may refer to a channel
    _state.polled = _polls()


def _polls() -> bool:
    """Return whether the thread of `grpc.aio` runs. It ends with the last channel of the process,
    and has no name but the one that Python gives it by its function.
    """
    return any("_poll_wrapper" in thread.name for thread in threading.enumerate())


def _in_parent() -> None:
    _state.gate.release()


def _in_child() -> None:
    _state.gate = threading.RLock()  # another thread of the parent may have held the old one
    inherited = tuple(_state.connections)
    if _state.polled or any(one.is_open() for one in inherited):
        _state.unusable = True
        for one in inherited:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
    _state.connections = WeakSet()
