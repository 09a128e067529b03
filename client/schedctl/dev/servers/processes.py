"""Processes that outlive their parent, identified by pid and start time.

A pid alone doesn't identify a process: the system reuses it. So a process is identified by its pid
and its start time (with the boot id, from `/proc`). It is signaled only while both match. A zombie
has ended: without an init that reaps, it remains.
"""

import errno
import fcntl
import itertools
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from schedkit.records import dataclass

POLL = 0.02
"""Seconds between two polls."""


@dataclass(frozen=True, slots=True)
class DevProcess:
    """A process: `pid`, and `born`, its start time (opaque)."""

    pid: int
    born: str

    def alive(self) -> bool:
        """Return whether this process still runs; paused ones do, zombies don't."""
        state, born = _stat(self.pid)
        return state not in ("", "Z", "X") and born == self.born

    def paused(self) -> bool:
        """Return whether it is stopped by SIGSTOP."""
        state, born = _stat(self.pid)
        return state == "T" and born == self.born

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process has ended."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def end(processes: Collection[DevProcess], *steps: tuple[signal.Signals, float]) -> None:
    """End processes: each step is a signal and its timeout in seconds; SIGKILL comes last. A paused
    process is continued, since it wouldn't receive any other signal.
    """
    for number, timeout in steps:
        for process in processes:
            process.send(number)
            process.send(signal.SIGCONT)
        if _wait_all_ended(processes, timeout):
            return
    for process in processes:
        process.send(signal.SIGKILL)
    # After this the kernel itself blocks them (a broken disk), and no signal helps.
    _wait_all_ended(processes, 10.0)


def spawn(
    argv: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> DevProcess:
    """Start `argv` in a new session, with its output appended to `log`; return at once."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    process = DevProcess(child.pid, _stat(child.pid)[1])
    # This process is its parent: without a reaper it would end as a zombie.
    threading.Thread(target=child.wait, name=f"reap {child.pid}", daemon=True).start()
    return process


def find(pid: int) -> DevProcess | None:
    """Return the process that has this pid now, or None."""
    state, born = _stat(pid)
    return None if state in ("", "Z", "X") else DevProcess(pid, born)


def living_in(folder: Path) -> Iterator[DevProcess]:
    """Yield every process whose working directory is exactly `folder`, if it is readable."""
    wanted = os.path.realpath(folder)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            inside = os.fspath((entry / "cwd").readlink()) == wanted
        except OSError:  # it has ended, or belongs to another user
            continue
        if inside and (process := find(int(entry.name))) is not None:
            yield process


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll until `condition` holds; return False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL)
    return True


def _wait_all_ended(processes: Collection[DevProcess], timeout: float) -> bool:
    return wait_for(lambda: not any(process.alive() for process in processes), timeout)


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, indented; empty if there is none."""
    try:
        with log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - 16384))
            text = source.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def _stat(pid: int) -> tuple[str, str]:
    """Return state letter and start time of a pid; two empty strings if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "", ""
    # The second field is the program's name in parentheses, which may have spaces.
    fields = text.rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return fields[0], f"{boot}:{fields[19]}"


# Free loopback ports that stay free while their server is stopped.
#
# They are below the kernel's ephemeral range. Inside the range, a client that keeps connecting to a
# stopped server may get that port as its source port. It then connects to itself and blocks the
# server's restart. Tests that kill and restart would fail occasionally.

HOST = "127.0.0.1"
_LOWEST = 10240


def reserve(count: int, *, but: Collection[int] = ()) -> list[int]:
    """Return `count` different ports without a listener, none of them in `but`.

    All processes of a user draw from one sequence: no port is drawn again before all others were.
    So a port stays free for a server that hasn't started yet, or that is restarted. Raises OSError:
    too few ports are free, or the file with the sequence's place can't be written.
    """
    ports = range(_LOWEST, _ceiling())
    path = Path(tempfile.gettempdir()) / f"schedctl-ports-{os.getuid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        last = file.read()
        place = int(last) + 1 - ports.start if last else random.randrange(len(ports))
        free = (
            port for port in (*ports[place:], *ports[:place]) if port not in but and is_free(port)
        )
        found = list(itertools.islice(free, count))
        if len(found) < count:
            raise OSError(
                errno.EADDRINUSE,
                f"fewer than {count} ports of this host are free: end programs that use ports,"
                " then try again",
            )
        if found:
            file.seek(0)
            file.write(f"{found[-1]:05}")
    return found


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            holder.bind((HOST, port))
        except OSError:
            return False
    return True


def address(port: int) -> str:
    """Return `host:port` on loopback."""
    return f"{HOST}:{port}"


def _ceiling() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        lowest_ephemeral = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        lowest_ephemeral = 32768
    return lowest_ephemeral if lowest_ephemeral > _LOWEST + 1000 else 32768
