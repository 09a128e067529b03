"""Whether this member should give up because PostgreSQL is away for it, but not for others.

    answered ──silent for 2.5 s──→ away: says so in its key
                                     ├─ away for the others too ──→ stays: nothing would be better
                                     └─ for us alone, 3.5 s on end ─→ the tenure ends

A member that can't reach the database can't release its shards; what it can do is to let its key
go, so that the leader fences it and others take them. When the database is away for everyone that
would only make the leader and all shards move about: then everyone waits.

Invariants
- Others count as better off only if one and the same of them has said for 3.5 s on end that it
  reaches the database, while we haven't: at the end of an outage they find out one after another,
  and amid one each may get a single answer, which is told of for 2.5 s and until its next look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from schedd.cluster.tenure import TenureOver
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import TenureId

AWAY_AFTER: Final = 2.5
"""Seconds of silence after which a member says that its database is away."""

BETTER_OFF_FOR: Final = 3.5
"""Seconds for which another must have been better off: longer than one answer is told of."""


@dataclass(slots=True)
class DatabaseWatch:
    """Looks at the silence of the database, in seconds, each second; `clock`: CLOCK_BOOTTIME."""

    tenure: TenureId
    view: Callable[[], ClusterView]
    silence: Callable[[], float]
    clock: Callable[[], float]
    _better_off: dict[TenureId, float] = field(default_factory=dict, init=False)
    """Since when each of the others that are has been."""

    @property
    def answers(self) -> bool:
        """Whether the database is there, as far as one can tell."""
        return self.silence() < AWAY_AFTER

    def check(self) -> None:
        """Decide.

        Raises:
            TenureOver: leave, so that others may take over.
        """
        now, known = self.clock(), self._better_off
        others = [] if self.answers else [one for one in self.view().members if one.database]
        self._better_off = {
            one.tenure: known.get(one.tenure, now) for one in others if one.tenure != self.tenure
        }
        if any(now - since >= BETTER_OFF_FOR for since in self._better_off.values()):
            raise TenureOver(
                f"PostgreSQL has been silent for {self.silence():.1f} s, and others reach it"
            )
