"""Fault within a process: its main thread hangs, and all others continue.

By ptrace: the thread is seized and interrupted (state t), then let go. The tracer must be one
and the same thread for all three, so a thread of ours holds it from begin to end.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.nemesis.journal import Fault, Journal, NoEffect
from faults.world.service import Service
from support.wait import wait_until

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17


@contextmanager
def hung_main_thread(journal: Journal, service: Service) -> Iterator[Fault]:
    """The event loop stands still; threads that keep leases alive run on.

    The thread is caught where it waits for events, for there it doesn't hold the interpreter's
    lock; caught anywhere else, everything would stand still, which is another fault.
    """
    with journal.fault("main thread hung", service.name, pid=service.pid) as fault:
        over, held = threading.Event(), threading.Event()
        holder = threading.Thread(
            target=_hold, name="tracer", args=(service.pid, held, over), daemon=True
        )
        holder.start()
        try:
            if not held.wait(10):
                raise NoEffect(f"the main thread of {service.name} was never seen waiting")
            fault.took_effect(what=f"state {_state(service.pid)}")
            yield fault
            if (state := _state(service.pid)) != "t":
                raise NoEffect(f"the main thread of {service.name} went on: state {state}")
        finally:
            fault.end()
            over.set()
            holder.join()
        service.wanted = True
        wait_until(service.ready, 45, f"{service.name} to be ready again")


def _hold(pid: int, held: threading.Event, over: threading.Event) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    waits = Path(f"/proc/{pid}/wchan")
    for _ in range(500):
        if _trace(libc, SEIZE, pid):
            return
        _trace(libc, INTERRUPT, pid)
        wait_until(lambda: _state(pid) == "t", 5, "the thread to stop")
        if "poll" in waits.read_text() or _in_epoll(pid):
            held.set()
            over.wait()
            _trace(libc, DETACH, pid)
            return
        _trace(libc, DETACH, pid)


def _in_epoll(pid: int) -> bool:
    # The number of the call it was interrupted in: 232 is epoll_wait, 281 epoll_pwait, 441 …pwait2.
    words = Path(f"/proc/{pid}/syscall").read_text().split()
    return bool(words) and words[0] in ("232", "281", "441")


def _trace(libc: ctypes.CDLL, request: int, pid: int) -> int:
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return int(libc.ptrace(request, pid, None, None))


def _state(pid: int) -> str:
    """Of the main thread alone."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]
