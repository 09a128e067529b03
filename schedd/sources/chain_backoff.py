"""Joins that the database takes too long for: found by halves, then judged alone, ever less often.

    a transaction took too long ─→ its joins are suspected ─→ half of them, half of those, …
                                ─→ the one: put off, each time for twice as long
    the others ─────────────────→ judged meanwhile, without it

Invariants
- A join that took too long is in no transaction with another, for it would take that one along.
- A step tries one that is suspected, or known, after what is neither: nobody waits for more.
- What is forgotten is found again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from schedd.core.ids import JobId
from schedd.core.jobs.chains import Cycle, Join, Wanted

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[JobId, Cycle]

PAUSE: Final = timedelta(seconds=30)
LONGEST_PAUSE: Final = timedelta(hours=1)
KNOWN: Final = 1_000
"""So many are remembered."""


def key_of(join: Join) -> Key:
    """What is judged once."""
    return join.child, join.cycle


def pause_after(times: int) -> timedelta:
    """How long one waits that took too long so many times in a row."""
    doubled: timedelta = PAUSE * 2 ** min(times - 1, 16)
    return min(LONGEST_PAUSE, doubled)


class SlowJoins:
    """Who may be judged with whom, from how long it took."""

    def __init__(self) -> None:
        self._suspects: set[Key] = set()
        self._times: dict[Key, int] = {}
        """How often, in a row, those that are known took too long alone."""

    def parts(self, wanted: Sequence[Wanted]) -> list[list[Wanted]]:
        """What is judged in this step, each part for itself."""
        plain: list[Wanted] = []
        suspects: list[Wanted] = []
        known: list[Wanted] = []
        for one in wanted:
            key = key_of(one.join)
            kind = known if key in self._times else suspects if key in self._suspects else plain
            kind.append(one)
        tried = suspects[: (len(suspects) + 1) // 2] or known[:1]
        return [part for part in (plain, tried) if part]

    def left(self, wanted: Sequence[Wanted], judged: Collection[Key]) -> list[Join]:
        """Those that are known and have to wait for another step: they keep no others from being
        looked at meanwhile.
        """
        keys = ((one.join, key_of(one.join)) for one in wanted)
        return [join for join, key in keys if key in self._times and key not in judged]

    def done(self, judged: Sequence[Wanted]) -> None:
        """The transaction of these came to its end."""
        for one in judged:
            key = key_of(one.join)
            self._suspects.discard(key)
            if self._times.pop(key, None):
                log.info("job %s: its chain of %s is judged after all", *_told(one.join))

    def failed(self, parts: Sequence[Sequence[Wanted]]) -> list[tuple[Join, timedelta]]:
        """Each of these took too long, as it was; gives who is put off, and for how long."""
        many = [part for part in parts if len(part) > 1]
        if many:
            self._suspects = {key_of(one.join) for part in many for one in part}
        return [self._alone(part[0].join) for part in parts if len(part) == 1]

    def _alone(self, join: Join) -> tuple[Join, timedelta]:
        key = key_of(join)
        times = self._times.pop(key, 0) + 1
        if times == 1:
            log.warning(
                "job %s: its chain of %s isn't judged within the database's statement_timeout; it"
                " is tried again, ever less often. Are the statistics of runs, live and"
                " chain_arrivals up to date (ANALYZE)?",
                *_told(join),
            )
        self._suspects.discard(key)
        self._times[key] = times
        while len(self._times) > KNOWN:
            del self._times[next(iter(self._times))]
        return join, pause_after(times)


def _told(join: Join) -> tuple[JobId, datetime]:
    return join.child, join.cycle.scheduled_at
