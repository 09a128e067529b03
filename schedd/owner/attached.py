"""A worker's open stream, as the loops see it: what it may be given, and what it said last."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from schedd.core.ids import Token
from schedd.core.model import Assigned, Incarnation, RunKey
from schedd.core.ready_queue import Head
from schedd.owner.catalogue import Known
from schedd.owner.elsewhere import Heard


class Line(Protocol):
    """One worker's stream, downwards. Nothing here waits; frames are coalesced behind it."""

    def assign(self, assigned: Assigned, known: Known) -> None: ...
    def revoke(self, key: RunKey, token: Token) -> None: ...
    def cancel(self, key: RunKey, token: Token, *, kill: bool) -> None: ...
    def demand(self, heads: Sequence[Head]) -> None: ...
    def acknowledge(self, key: RunKey, token: Token, *, stale: bool) -> None: ...


@dataclass(slots=True)
class Attached:
    """A worker whose stream is open."""

    incarnation: Incarnation
    line: Line
    granted: int = 0
    last: float = inf
    """The greatest rank of a run that the granted slots are for."""
    received: int = 0
    pushed: int = 0
    free: int = 0
    running: int = 0
    draining: bool = False
    since_refresh: float = 0.0
    disk: tuple[int, int] = (0, 0)
    """Bytes that its spool takes, and that are free on its disk; 0: it didn't say."""
    heard: Heard | None = None
    """Its last heartbeat."""
    demanded: tuple[Head, ...] = ()
    lost: bool = False
    """Its incarnation was written off."""
    spoke_at: float = 0.0
    """When its last grant or heartbeat came, in seconds of CLOCK_BOOTTIME."""

    @property
    def available(self) -> int:
        """Slots that may be used now, if it is there."""
        if self.draining or self.lost:
            return 0
        return max(0, self.granted - (self.pushed - self.received))
