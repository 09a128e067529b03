"""What a daemon tells its service manager: datagrams to NOTIFY_SOCKET, by systemd's protocol.

Invariants
- Telling never blocks nor fails the daemon: a service manager that is away or slow hears less.
- The variables are taken out of the environment, so that a daemon's children (jobs!) can't speak
  in its name.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)


class Notifier:
    """The line to the service manager; silent where there is none."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        """Args: address: of the socket, `@name` for an abstract one, empty for none.

        watchdog: seconds within which a beat must come, None when nobody waits for one.
        """
        self.watchdog = watchdog
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Notifier:
        """The notifier that the environment names. Takes the variables away."""
        address = environ.pop("NOTIFY_SOCKET", "")
        period = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        ours = pid in ("", str(os.getpid()))
        return cls(address, int(period) / 1e6 if ours and period.isdigit() else None)

    def ready(self, status: str) -> None:
        """Started up, or done with a reload."""
        self._send("READY=1", _status(status))

    def status(self, text: str) -> None:
        """One line for people."""
        self._send(_status(text))

    def beat(self) -> None:
        """Still alive."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """A reload has begun; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._send("STOPPING=1", _status(status))

    def close(self) -> None:
        """Nothing is told any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.debug("the service manager did not hear %s: %s", lines[0], error)


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())
