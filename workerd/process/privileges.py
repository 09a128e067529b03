"""Starts a program, as another user too: it has that user's privileges and can't get more, for
set-user-id, set-group-id and file capabilities do nothing to it (`no_new_privs` of the kernel).

Python's way into a child before its program begins (`preexec_fn`) isn't safe beside threads. The
kernel keeps this mark by thread, and a child has that of the thread which forked it; so a thread of
its own marks itself, starts the program, and is gone: to the kernel, too, which counts it among the
processes that the program may have (`pids.max`).

Standard library alone: the launcher stands on this.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

Text = TypeVar("Text", str, bytes)
Process = subprocess.Popen[bytes]

_SET_NO_NEW_PRIVS = 38  # PR_SET_NO_NEW_PRIVS
_LOOKS = 5_000  # a second at least; one or two will do, unless it has no processor


def started(
    argv: Sequence[Text],
    env: Mapping[Text, Text],
    cwd: Text | os.PathLike[str],
    files: Sequence[BinaryIO | int],
    *,
    umask: int,
    user: tuple[int, int] | None,
) -> Process:
    """Start it in a session of its own, with its three standard `files`.

    `umask`: -1 leaves it as it is. `user`: uid and gid, and it is in no other group then; None: as
    whom this process runs.

    Raises:
        OSError: it can't be started; EAGAIN where there is no thread for it.
    """

    def start() -> Process:
        return subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            start_new_session=True,
            umask=umask,
            user=None if user is None else user[0],
            group=None if user is None else user[1],
            extra_groups=None if user is None else (),
        )

    return start() if user is None else _without_new_ones(start)


def _without_new_ones(start: Callable[[], Process]) -> Process:
    """What `start` gives, or raises, called where children get no new privileges."""
    told: list[Process] = []
    failed: list[Exception] = []

    def marked() -> None:
        try:
            _mark_this_thread()
            told.append(start())
        except Exception as error:  # noqa: BLE001 - raised where it was called
            failed.append(error)

    thread = threading.Thread(target=marked, name="starts a program")
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), "a thread") from error
    thread.join()
    _wait_until_gone(thread)
    if failed:
        raise failed.pop()
    return told.pop()


def _wait_until_gone(thread: threading.Thread) -> None:
    """`join` returns a little before the kernel has let go of it. Gives up in the end."""
    task = Path(f"/proc/self/task/{thread.native_id}")
    for _ in range(_LOOKS):
        if not task.exists():
            return
        time.sleep(0.0002)


def _mark_this_thread() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "no new privileges")
