"""The life of a daemon under its service manager.

    start ──ready──→ serving ──SIGTERM, SIGINT──→ draining ──main returns──→ exit 0
                      │    ↑                         └──the same signal again──→ exit at once
                      └SIGHUP: reload, then ready┘

docs/operations/signals-and-exit-codes.md has signals and exit codes. A daemon that was ready ends
with 1 instead of 2 or 75, so that its service manager restarts it.

Invariants
- A signal only sets an event. `main` handles it, on the loop.
- The watchdog is fed from the loop that does the work, so a daemon whose loop hangs is replaced.
- Every exception is caught here, where the process ends, and in `reload`, which must not end it.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Final, NoReturn

from schedkit.errors import Misconfigured, NotNow

# Notifications to the service manager: datagrams to NOTIFY_SOCKET, by systemd's protocol.
#
# Invariants
# - A notification never blocks or fails the daemon. If the service manager is slow or
#   unavailable, some are lost.
# - The variables are removed from the environment, so a daemon's children (jobs!) can't send
#   notifications in its name.


class Notifier:
    """The connection to the service manager. Without one, all methods do nothing."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        """Set the socket and the watchdog.

        Args:
            address: the socket, `@name` for an abstract one; empty: none.
            watchdog: seconds within which a beat is expected; None: no watchdog.
        """
        self.watchdog = watchdog
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Return the notifier that the environment names. Remove its variables."""
        address = environ.pop("NOTIFY_SOCKET", "")
        period = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        ours = pid in ("", str(os.getpid()))
        return cls(address, int(period) / 1e6 if ours and period.isdigit() else None)

    def ready(self, status: str) -> None:
        """Report that the start, or a reload, is complete."""
        self._send("READY=1", _status(status))

    def status(self, text: str) -> None:
        """Report the status, one line for people."""
        self._send(_status(text))

    def beat(self) -> None:
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report that a reload has begun; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", _status(status))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.debug("notification to the service manager failed (%s): %s", lines[0], error)


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())


log = logging.getLogger(__name__)

OK: Final = 0
BUG: Final = 1
MISCONFIGURED: Final = 2
WRITE_REJECTED: Final = 74

_DISK_REMEDIES: Final = {
    errno.EROFS: "mount the file system read-write",
    errno.ENOSPC: "free space on the file system",
    errno.EDQUOT: "free space, or raise the disk quota",
    errno.EIO: "check the disk (dmesg)",
}
"""Remedies by the error with which the operating system rejects a write; none is a bug."""

REST_WITHIN: Final = 2.0
"""Seconds for tasks that `main` left behind to end after their cancellation."""


class Daemon:
    """The interface of `main`: events to wait for, and notifications to the service manager."""

    def __init__(self, notifier: Notifier, reload: Callable[[], None] = lambda: None) -> None:
        """`reload`: applies those settings that can change in a running daemon."""
        self.served = False
        """Whether it has ever been ready. After that its exit code always permits a restart."""
        self.take_settings = reload
        self.status = notifier.status
        self.draining = asyncio.Event()
        """Set once by SIGTERM or SIGINT: hand over, finish, return from `main`."""
        self.reload = asyncio.Event()
        """Set by SIGHUP. `main` clears it, reloads the settings, and calls `ready` again."""
        self._notifier = notifier
        self._received: set[signal.Signals] = set()

    def ready(self, status: str) -> None:
        """Report that the daemon serves, also after a reload. `status`: one line for people."""
        self.served = True
        self._notifier.ready(status)

    def drain(self, why: str) -> None:
        """Request the end, as SIGTERM does."""
        if not self.draining.is_set():
            log.info("draining: %s", why)
            self._notifier.stopping(f"draining: {why}")
            self.draining.set()

    def handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle signals on this loop until it closes."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, functools.partial(self._terminated, number))
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _terminated(self, number: signal.Signals) -> None:
        # Only the same signal twice counts: a terminal's Ctrl-C and the parent's SIGTERM may both
        # arrive.
        if number in self._received:
            log.warning("%s received twice: the process ends at once", number.name)
            logging.shutdown()
            os._exit(128 + number)
        self._received.add(number)
        self.drain(number.name)

    def _hung_up(self) -> None:
        log.info("SIGHUP: reloading")
        if not self.draining.is_set():
            self._notifier.reloading()
        self.reload.set()


async def answer_reloads(daemon: Daemon, serving: str) -> NoReturn:
    """Handle SIGHUP: reload the settings, and notify the service manager, which waits for it."""
    while True:
        await daemon.reload.wait()
        daemon.reload.clear()
        daemon.take_settings()
        if not daemon.draining.is_set():
            daemon.ready(serving)


def run_daemon(
    main: Callable[[Daemon], Awaitable[None]], reload: Callable[[], None] = lambda: None
) -> int:
    """Run `main` on a new event loop until it returns. Return the exit code for `sys.exit`.

    `main` calls `daemon.ready` when it serves, and returns soon after `daemon.draining` is set.
    Nothing is logged before `main` is called. It sets up logging, unless its caller has.
    `reload` is `Daemon.take_settings`.
    """
    runner = asyncio.Runner()
    notifier = Notifier.from_environment(os.environ)
    daemon = Daemon(notifier, reload)
    try:
        runner.run(_live(main, daemon, notifier))
        code = OK
    except Exception as error:
        code = _code_of(error)
        if code == BUG:
            log.exception("a bug ends this process")
    if daemon.served and code in {MISCONFIGURED, NotNow.EXIT_CODE}:
        log.error("a setting was rejected while the daemon ran: it ends, to be restarted")
        code = BUG
    if not runner.run(_rest_ended()):
        log.warning("some tasks don't end: the process ends without them")
        sys.stdout.flush()
        logging.shutdown()
        os._exit(code)
    runner.close()
    return code


def _code_of(error: Exception) -> int:
    """Return the exit code for the error that ended `main`. Report it, unless it is a bug."""
    causes = [*_leaves(error)]
    if all(isinstance(cause, Misconfigured) for cause in causes):
        sys.stderr.writelines(f"{cause}\n" for cause in causes)
        later = all(isinstance(cause, NotNow) for cause in causes)
        return NotNow.EXIT_CODE if later else MISCONFIGURED
    rejected = [one for one in causes if isinstance(one, OSError) and one.errno in _DISK_REMEDIES]
    if len(rejected) < len(causes):
        return BUG
    for cause in rejected:
        log.error(
            "the operating system rejected a write: %s: %s; %s, then start this process again",
            cause.filename or "unknown file",
            cause.strerror,
            _DISK_REMEDIES[cause.errno or 0],
        )
        log.debug("traceback of the rejected write", exc_info=cause)
    return WRITE_REJECTED


async def _rest_ended() -> bool:
    """Cancel the remaining tasks. Return whether all have ended: user code may swallow a cancel."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    return not rest or not (await asyncio.wait(rest, timeout=REST_WITHIN))[1]


async def _live(
    main: Callable[[Daemon], Awaitable[None]], daemon: Daemon, notifier: Notifier
) -> None:
    daemon.handle_signals(asyncio.get_running_loop())
    feeder = asyncio.create_task(_feed(notifier), name="watchdog")
    try:
        await main(daemon)
    finally:
        feeder.cancel()
        notifier.stopping("stopped")
        notifier.close()


async def _feed(notifier: Notifier) -> None:
    while notifier.watchdog is not None:
        notifier.beat()
        await asyncio.sleep(notifier.watchdog / 4)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
