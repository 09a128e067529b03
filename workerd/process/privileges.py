"""Start a program, optionally as another user: it has that user's privileges and can't get more.
Set-user-id, set-group-id and file capabilities have no effect on it (`no_new_privs`).

Python's `preexec_fn` isn't safe with threads. The kernel keeps `no_new_privs` per thread, and a
child inherits it from the thread that forked it. So a separate thread sets it, starts the program,
and ends. Its end is awaited because the kernel counts it against `pids.max`.

Standard library only: the launcher imports this module.
"""

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
_LOOKS = 5_000  # a second at least; one or two suffice, unless the host is overloaded


def started(
    argv: Sequence[Text],
    env: Mapping[Text, Text],
    cwd: Text | os.PathLike[str],
    files: Sequence[BinaryIO | int],
    *,
    umask: int,
    user: tuple[int, int] | None,
) -> Process:
    """Start a program in its own session, with its three standard `files`. `umask`: -1 leaves it
    unchanged. `user`: uid and gid, without supplementary groups; None: the user of this process.
    Raises OSError: it can't be started; EAGAIN if no thread can be started.
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
    """Call `start` in a thread whose children get no new privileges. Raises its exceptions."""
    processes: list[Process] = []
    failed: list[Exception] = []

    def marked() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), "setting no_new_privs")
            processes.append(start())
        except Exception as error:  # noqa: BLE001 - raised in the calling thread
            failed.append(error)

    thread = threading.Thread(target=marked, name="starts a program")
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), "starting a thread") from error
    thread.join()
    _wait_until_gone(thread)
    if failed:
        raise failed.pop()
    return processes.pop()


def _wait_until_gone(thread: threading.Thread) -> None:
    """Wait until the kernel has removed the thread, shortly after `join`; with a limit."""
    task = Path(f"/proc/self/task/{thread.native_id}")
    for _ in range(_LOOKS):
        if not task.exists():
            return
        time.sleep(0.0002)
