"""Settings read anew while a daemon runs (SIGHUP): what can be is taken, what can't be is told.

file, environment, flags ──read, checked──▶ how it logs, and what `take` takes: at once
│       └──▶ all else that differs: told, it takes a restart
└─ wrong, or a bug in reading: told, and nothing is taken

A reload ends no daemon: what runs goes on with what was in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from schedkit import config
from schedkit.daemon import logs
from schedkit.errors import Misconfigured

log = logging.getLogger(__name__)

TAKEN: Final = frozenset({"log_level", "log_format"})
"""What a daemon that runs can take."""

_REFUSED: Final = "nothing is reloaded, and what was in force stays"


class ReloadableSettings(Protocol):
    """Those of a daemon."""

    @property
    def log_level(self) -> str: ...

    @property
    def log_format(self) -> logs.Format: ...


C = TypeVar("C", bound=ReloadableSettings)


class Reload(Generic[C]):
    """Of one daemon, which was started with `running`; `read` reads and checks again. `take` puts
    further settings into force, and returns the keys of all that it put there, now or before.
    """

    def __init__(
        self,
        running: C,
        read: Callable[[], C],
        service: str,
        take: Callable[[C], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self._started = self._now = running
        self._read, self._service = read, service
        self._take_more = take

    def __call__(self) -> None:
        """Once. What waits for a restart is told each time, until there was one."""
        try:
            found = self._read()
        except Misconfigured as wrong:
            told = "; ".join(str(wrong).splitlines())
            log.error("%s: %s", _REFUSED, told)  # noqa: TRY400 - the operator's, not a bug
        except Exception:
            log.exception("%s: a bug in reading the settings", _REFUSED)
        else:
            self._take(found)

    def _take(self, found: C) -> None:
        known = TAKEN | self._take_more(found)
        taken = known.intersection(config.changed(self._now, found))
        waiting = [key for key in config.changed(self._started, found) if key not in known]
        self._now = found
        if taken:
            self._say_and_configure(found, ", ".join(sorted(taken)))
        if waiting:
            log.warning("not reloaded, it takes a restart: %s", ", ".join(waiting))
        if not taken and not waiting:
            log.info("reloaded: no setting has changed")

    def _say_and_configure(self, found: C, taken: str) -> None:
        """Said at info between the two levels, for it may be seen under neither."""
        logs.configure("info", found.log_format, self._service)
        log.info("reloaded: %s", taken)
        logs.configure(found.log_level, found.log_format, self._service)
