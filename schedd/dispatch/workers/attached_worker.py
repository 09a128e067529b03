"""A worker's open stream, as the loops see it: what it may be given, and what it said last.

    granted ──choose──→ under way ──its transaction──→ pushed │ let go of ──→ free for us again

Invariants
- What is pushed and under way never goes beyond what was granted when it was chosen.
- A grant that promises less than one before is answered at once: by how far this member goes all
  the same. So far the worker keeps slots free. What is let go of afterwards is told too, if slots
  are kept for that alone.
"""

from collections.abc import Sequence
from dataclasses import field
from datetime import timedelta
from math import inf
from typing import Final, Protocol

from schedd.core.dispatch.placement import Unable
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import JobId, Token
from schedd.core.runs.model import Assigned, Incarnation, RunKey
from schedd.core.runs.records import WorkerView
from schedd.dispatch.workers.remote_workers import LastHeartbeat
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass

MOST_UNABLE: Final = 1_000
"""Jobs of a worker that are remembered so."""


def is_news(
    heads: Sequence[QueueHead], told: Sequence[QueueHead], slots: int, near: timedelta
) -> bool:
    """Whether a worker of so many slots would deal otherwise by these than by what it was told.
    `near`: by so much a head's age may be off.
    """
    return len(heads) != len(told) or any(
        (new.priority, new.least, min(new.slots, slots))
        != (old.priority, old.least, min(old.slots, slots))
        or abs(new.waiting_since - old.waiting_since) > near
        for new, old in zip(heads, told, strict=True)
    )


class AttachedStream(Protocol):
    """One worker's stream, downwards. Nothing here waits; frames are coalesced behind it."""

    def assign(self, assigned: Assigned, known: CachedDefinition) -> None: ...
    def revoke(self, key: RunKey, token: Token) -> None: ...
    def cancel(self, key: RunKey, token: Token, *, kill: bool) -> None: ...
    def demand(self, heads: Sequence[QueueHead]) -> None: ...
    def acknowledge(self, key: RunKey, token: Token, *, stale: bool) -> None: ...
    def reach(self, serial: int, slots: int) -> None: ...
    def drain(self, *, on: bool) -> None: ...
    def follow(self, key: RunKey, token: Token, *, on: bool) -> None: ...


@dataclass(slots=True, eq=False)
class Attached:
    """A worker whose stream is open. All slots but `granted` are counted since it began."""

    incarnation: Incarnation
    line: AttachedStream
    granted: int = 0
    last: float = inf
    """The greatest rank of a run that the granted slots are for."""
    received: int = 0
    pushed: int = 0
    under_way: int = 0
    """Slots of runs that were chosen for it and are neither pushed yet nor let go of."""
    serial: int = 0
    """Of the last grant that was answered; 0: none yet."""
    told: int = 0
    """How it was answered."""
    free: int = 0
    running: int = 0
    unstored: int = 0
    """Results that it has and no member has stored."""
    draining: bool = False
    since_refresh: float = 0.0
    disk: tuple[int, int] = (0, 0)
    """Bytes that its spool takes, and that are free on its disk; 0: it didn't say."""
    drained: bool | None = None
    """Whether somebody has drained it, as it was told on this stream; None: it wasn't told."""
    refuses: str = ""
    """Why it asks for no new work though it isn't draining, in words."""
    last_heartbeat: LastHeartbeat | None = None
    """Its last heartbeat."""
    unable: dict[JobId, Unable] = field(default_factory=dict)
    """Jobs that it has refused for want of something."""
    demanded: tuple[QueueHead, ...] = ()
    lost: bool = False
    """Its incarnation was written off."""
    spoke_at: float = 0.0
    """When its last grant or heartbeat came, in seconds of CLOCK_BOOTTIME."""
    beat_at: float = 0.0
    """When its last heartbeat came; before the first one: when it was attached."""

    def view(self, now: float) -> WorkerView:
        """How people are told of it: its last word, and how old that is."""
        return WorkerView(
            incarnation=self.incarnation,
            attached_here=True,
            draining=self.draining,
            free=self.free,
            running=self.running,
            lease_age=self.since_refresh + max(0.0, now - self.beat_at),
            spool=self.disk[0],
            disk_free=self.disk[1],
            refuses=self.refuses,
            unstored=self.unstored,
            silent=max(0.0, now - self.spoke_at),
        )

    @property
    def stays(self) -> bool:
        """Whether it takes work at all: it isn't drained, about to leave, or written off."""
        return not (self.draining or self.drained or self.lost)

    @property
    def available(self) -> int:
        """Slots that may be used now, if it is there."""
        if not self.stays:
            return 0
        return max(0, self._limit - self._reach)

    def grant(self, slots: int, received: int, last: float, serial: int) -> None:
        """It keeps so many slots free; with a new serial it wants to hear how far it needs to."""
        self.granted, self.received, self.last = slots, received, last
        if serial and serial != self.serial:
            self.serial = serial
            self._tell_reach()

    def cant_do(self, job: JobId, unable: Unable) -> None:
        """It refused a run of it: others are asked first from now on."""
        self.unable[job] = unable
        if len(self.unable) > MOST_UNABLE:
            del self.unable[next(iter(self.unable))]

    def drain(self, on: bool) -> None:
        """Somebody has drained it, or nobody any more. It may have been told otherwise on a stream
        before this one, and does what it hears last.
        """
        if on != self.drained and (on or self.drained or self.draining):
            self.line.drain(on=on)
        self.drained = on

    def tell_demand(self, heads: Sequence[QueueHead], near: timedelta = timedelta()) -> None:
        """What waits here for it, if that is news."""
        if is_news(heads, self.demanded, self.incarnation.slots, near):
            self.demanded = tuple(heads)
            self.line.demand(heads)

    def let_go(self, slots: int) -> None:
        """So much of what was under way isn't any more: it was pushed, or it never will be."""
        self.under_way -= slots
        if self.told > max(self._limit, self._reach):
            self._tell_reach()

    @property
    def _limit(self) -> int:
        return self.received + self.granted

    @property
    def _reach(self) -> int:
        return self.pushed + self.under_way

    def _tell_reach(self) -> None:
        self.told = self._reach
        self.line.reach(self.serial, self.told)
