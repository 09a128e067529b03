"""Reload the settings of a running daemon (SIGHUP).

file, environment, flags ──read, checked──▶ log settings, and the keys of `take`: at once
│       └──▶ any other changed key: logged, it needs a restart
└─ invalid, or a bug in reading: logged, and nothing changes

A reload never ends the daemon: it continues with the settings in force.
"""

import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from schedkit.config import loader
from schedkit.daemon import logs
from schedkit.errors import Misconfigured

log = logging.getLogger(__name__)

TAKEN: Final = frozenset({"log_level", "log_format"})
"""Keys that every running daemon can reload."""

_REFUSED: Final = "reload rejected, the settings in force are kept"


class ReloadableSettings(Protocol):
    @property
    def log_level(self) -> str: ...

    @property
    def log_format(self) -> logs.Format: ...


C = TypeVar("C", bound=ReloadableSettings)


class Reload(Generic[C]):
    """Reloads one daemon, which was started with `running`. `read` reads and checks the settings.
    `take` applies further settings, and returns the keys of all settings applied so far.
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
        """Reload once. Keys that need a restart are logged each time, until the restart."""
        try:
            found = self._read()
        except Misconfigured as wrong:
            problems = "; ".join(str(wrong).splitlines())
            log.error("%s: %s", _REFUSED, problems)  # noqa: TRY400 - the operator's, not a bug
        except Exception:
            log.exception("%s: a bug prevents reading them", _REFUSED)
        else:
            self._apply_config(found)

    def _apply_config(self, found: C) -> None:
        known = TAKEN | self._take_more(found)
        taken = known.intersection(loader.changed(self._now, found))
        waiting = [key for key in loader.changed(self._started, found) if key not in known]
        self._now = found
        if taken:  # log the change at info before the new level applies: both may hide the line
            logs.configure("info", found.log_format, self._service)
            log.info("reloaded: %s", ", ".join(sorted(taken)))
            logs.configure(found.log_level, found.log_format, self._service)
        if waiting:
            log.warning("settings apply after a restart only: %s", ", ".join(waiting))
        if not taken and not waiting:
            log.info("reloaded: no setting has changed")
