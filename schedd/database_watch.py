"""Whether this member should give up because PostgreSQL is away for it, but not for others.

    answered ──silent for 2.5 s──→ away: says so in its key
                                     ├─ away for the others too ──→ stays: nothing would be better
                                     └─ for us alone, 3 s on end, and 5 s by now ─→ the tenure ends

A member that can't reach the database can't release its shards; what it can do is to let its key
go, so that the leader fences it and others take them. When the database is away for everyone that
would only make the leader and all shards move about: then everyone waits.

Invariants
- Others count as better off only if one of them has said for three seconds on end that it reaches
  the database, while we haven't: at the end of an outage members find out one after another, and
  amid one somebody may get a single answer, which is told of for 2.5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from schedd.core.ids import TenureId
from schedd.core.membership import ClusterView
from schedd.tenure import TenureOver

AWAY_AFTER: Final = 2.5
"""Seconds of silence after which a member says that its database is away."""

GIVE_UP_AFTER: Final = 5.0
"""Seconds of silence after which it leaves, if others are better off."""

BETTER_OFF_FOR: Final = 3.0
"""Seconds for which they must have been: longer than one answer is told of (AWAY_AFTER)."""


@dataclass(slots=True)
class DatabaseWatch:
    """Looks at the silence of the database, in seconds, each second; `clock`: CLOCK_BOOTTIME."""

    tenure: TenureId
    view: Callable[[], ClusterView]
    silence: Callable[[], float]
    clock: Callable[[], float]
    _better_off_since: float | None = field(default=None, init=False)

    @property
    def answers(self) -> bool:
        """Whether the database is there, as far as one can tell."""
        return self.silence() < AWAY_AFTER

    def check(self) -> None:
        """Decide.

        Raises:
            TenureOver: leave, so that others may take over.
        """
        now = self.clock()
        if self.answers or not self._others_answer():
            self._better_off_since = None
            return
        if self._better_off_since is None:
            self._better_off_since = now
        if self.silence() >= GIVE_UP_AFTER and now - self._better_off_since >= BETTER_OFF_FOR:
            raise TenureOver(
                f"PostgreSQL has been silent for {self.silence():.1f} s, and others reach it"
            )

    def _others_answer(self) -> bool:
        members = self.view().members
        return any(member.database for member in members if member.tenure != self.tenure)
