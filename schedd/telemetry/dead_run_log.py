"""A line of log for each run that failed for good; of a flood, so many a second and a count.

tell ──▶ fewer than A_SECOND in this second? ──yes──▶ its line
└─no─▶ counted ──go_on, when the second is over──▶ one line with the count
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from schedd.core.events import DeadRun
from schedkit.clock import boottime

log = logging.getLogger(__name__)

A_SECOND: Final = 20
"""Lines."""


class DeadRunLines:
    """What was told in this second, and what wasn't. `clock`: seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._since = clock()
        self._told = 0
        self._untold = 0

    def tell(self, runs: Iterable[DeadRun]) -> None:
        """A line for each, while there is room."""
        self._turn()
        for run in runs:
            if self._told == A_SECOND:
                self._untold += 1
                continue
            self._told += 1
            log.info(
                "a run failed for good",
                extra={
                    "run_id": run.run,
                    "job": run.job,
                    "reason": run.reason,
                    "attempt": run.attempt,
                },
            )

    def go_on(self) -> None:
        """Say how many had no line, once their second is over."""
        if self._untold:
            self._turn()

    def _turn(self) -> None:
        now = self._clock()
        if now - self._since < 1:
            return
        if self._untold:
            log.info("%d more runs failed for good; see `schedctl dlq groups`", self._untold)
        self._since, self._told, self._untold = now, 0, 0
