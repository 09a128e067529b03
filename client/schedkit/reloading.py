"""Settings read anew while a daemon runs (SIGHUP): what can be is taken, what can't be is told.

file, environment, flags ──read, checked──▶ how it logs: taken at once
│       └──▶ all else that differs: told, it takes a restart
└─ wrong: told, and nothing is taken
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from schedkit import config, logs
from schedkit.errors import Misconfigured

log = logging.getLogger(__name__)

TAKEN: Final = frozenset({"log_level", "log_format"})
"""What a daemon that runs can take."""


class Settings(Protocol):
    """Those of a daemon."""

    @property
    def log_level(self) -> str: ...

    @property
    def log_format(self) -> logs.Format: ...


C = TypeVar("C", bound=Settings)


class Reload(Generic[C]):
    """Of one daemon, which was started with `running`; `read` reads and checks anew."""

    def __init__(self, running: C, read: Callable[[], C], service: str) -> None:
        self._started = self._now = running
        self._read, self._service = read, service

    def __call__(self) -> None:
        """Once. What waits for a restart is told each time, until there was one."""
        try:
            self._take(self._read())
        except Misconfigured as wrong:
            self._refuse(wrong)

    def _take(self, found: C) -> None:
        taken = TAKEN.intersection(config.changed(self._now, found))
        waiting = [key for key in config.changed(self._started, found) if key not in TAKEN]
        self._now = found
        if taken:
            logs.configure(found.log_level, found.log_format, self._service)
            log.info("reloaded: %s", ", ".join(sorted(taken)))
        if waiting:
            log.warning("not reloaded, it takes a restart: %s", ", ".join(waiting))
        if not taken and not waiting:
            log.info("reloaded: no setting has changed")

    def _refuse(self, wrong: Misconfigured) -> None:
        log.error("nothing is reloaded, and what was in force stays: %s", wrong)
