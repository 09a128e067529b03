"""Process on one host: started, killed, stopped, asked to end, started again.

A service is wanted or not: what is wanted and has ended is started again by the `supervisor`, as a
service manager would, and each such start is counted. The process is known by pid and birth.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.world.network import Host
from schedctl.dev.servers.etcd import HttpAnswer, fetch
from schedctl.dev.servers.processes import DevProcess, end, spawn, tail
from support.wait import wait_until

RESTART_AFTER = 1.0
"""Seconds between an unrequested end and the next start: systemd's RestartSec of the units."""


@dataclass(slots=True)
class Service:
    """`argv` and `environ` are read again at each start, after `before` has done what must precede.

    `http`: host:port of health and metrics.
    """

    name: str
    host: Host
    argv: Sequence[str]
    log: Path
    cwd: Path
    environ: dict[str, str] = field(default_factory=dict)
    base: Callable[[], Mapping[str, str]] = lambda: os.environ
    before: Callable[[], object] = lambda: None
    http: str = ""
    health: str = "/readyz"
    wanted: bool = False
    starts: int = 0
    _process: DevProcess | None = None
    _starting: threading.RLock = field(default_factory=threading.RLock)
    """Held while it is started or taken down: two starts at once would make a duplicate."""

    @property
    def process(self) -> DevProcess:
        """The one that runs, or ran last."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process

    @property
    def pid(self) -> int:
        """Its pid, or the last it had."""
        return self.process.pid

    def alive(self) -> bool:
        """Whether it runs, stopped ones too."""
        return self._process is not None and self._process.alive()

    def start(self) -> None:
        """Start it; returns before it is ready."""
        with self._starting:
            self.wanted = True
            self.starts += 1
            self.before()
            self._process = spawn(
                [*self.host.enter(), *self.argv],
                log=self.log,
                cwd=self.cwd,
                env={**self.base(), **self.environ},
            )

    def revive(self, *, if_wanted: bool = False) -> bool:
        """Start it if it is dead, and wanted if that is asked; whether it was."""
        with self._starting:
            if self.alive() or (if_wanted and not self.wanted):
                return False
            self.start()
            return True

    def kill(self) -> None:
        """SIGKILL; it isn't started again until `start`. Returns when it is dead."""
        with self._starting:
            self.wanted = False
        end([self.process])

    def terminate(self, timeout: float) -> bool:
        """SIGTERM; return whether it ended within `timeout` seconds."""
        with self._starting:
            self.wanted = False
        self.process.send(signal.SIGTERM)
        return self.gone_within(timeout)

    def gone_within(self, timeout: float) -> bool:
        """Wait for its end; answers whether it came."""
        deadline = time.monotonic() + timeout
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.alive()

    def stop(self) -> None:
        """SIGSTOP; returns when it stands."""
        self.process.send(signal.SIGSTOP)
        wait_until(self.process.paused, 5.0, f"{self.name} to stand still")

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send(signal.SIGCONT)

    def get(self, path: str, timeout: float = 2.0) -> HttpAnswer | None:
        """GET from its HTTP port; None when it doesn't answer."""
        return fetch(f"http://{self.http}{path}", timeout)

    def ready(self) -> bool:
        """Whether it says so itself."""
        answer = self.get(self.health)
        return answer is not None and answer.status == 200

    def said(self, lines: int = 15) -> str:
        """The end of its log."""
        return tail(self.log, lines)

    def mark(self) -> int:
        """Bytes in its log now: from where `said_since` reads."""
        return self.log.stat().st_size if self.log.exists() else 0

    def said_since(self, mark: int) -> str:
        """Return what it has logged since that mark."""
        with self.log.open("rb") as log:
            log.seek(mark)
            return log.read().decode(errors="replace")


class Supervisor:
    """Starts again what is wanted and has ended, one second later; records each in `restarted`."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self.restarted: list[tuple[float, str]] = []

    def begin(self) -> None:
        """Watch from now on."""
        self._thread.start()

    def end(self) -> None:
        """Watch no longer; nothing is started after this."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        dead_since: dict[str, float] = {}
        while not self._ended.wait(0.1):
            for service in self._services:
                if service.wanted and not service.alive():
                    since = dead_since.setdefault(service.name, time.monotonic())
                    if time.monotonic() - since >= RESTART_AFTER:
                        del dead_since[service.name]
                        if service.revive(if_wanted=True):
                            self.restarted.append((time.time(), service.name))
                else:
                    dead_since.pop(service.name, None)
