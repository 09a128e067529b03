"""A worker's open stream, as the loops see it: its free slots, and its last heartbeat.

    granted ──choose──→ under way ──its transaction──→ pushed │ released ──→ free for this member

Invariants
- Slots pushed and under way never exceed the slots granted at the time of the choice.
- A grant lower than the one before is answered at once with the number of slots still in use. The
  worker keeps those free. When slots under way are released afterwards, that is sent too.
"""

from collections.abc import Sequence
from dataclasses import field
from datetime import timedelta
from math import inf
from typing import Final, Protocol

from schedd.core.dispatch.placement import Unable
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import JobId, RunId, Token
from schedd.core.runs.model import DispatchedBatch, Incarnation, RunKey
from schedd.core.runs.records import SILENT_AFTER, WorkerView
from schedd.dispatch.workers.remote_workers import LastHeartbeat
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass

MOST_UNABLE: Final = 1_000
"""Jobs whose refusals are remembered for each worker."""


def is_news(
    heads: Sequence[QueueHead], sent: Sequence[QueueHead], slots: int, near: timedelta
) -> bool:
    """Return whether a worker with `slots` would divide them differently by `heads` than by those
    `sent` before. `near`: tolerance for a head's age.
    """
    return len(heads) != len(sent) or any(
        (new.priority, new.least, min(new.slots, slots))
        != (old.priority, old.least, min(old.slots, slots))
        or abs(new.waiting_since - old.waiting_since) > near
        for new, old in zip(heads, sent, strict=True)
    )


class AttachedStream(Protocol):
    """Sending side of one worker's stream. No method waits; frames are coalesced behind it."""

    def assign(self, batch: DispatchedBatch, known: Sequence[CachedDefinition]) -> None: ...
    def revoke(self, key: RunKey, token: Token) -> None: ...
    def cancel(self, key: RunKey, token: Token, *, kill: bool) -> None: ...
    def demand(self, heads: Sequence[QueueHead]) -> None: ...
    def acknowledge(self, key: RunKey, token: Token, *, stale: bool) -> None: ...
    def acknowledge_all(self, run_ids: Sequence[RunId], tokens: Sequence[Token]) -> None: ...
    def reach(self, serial: int, slots: int) -> None: ...
    def drain(self, *, on: bool) -> None: ...
    def follow(self, key: RunKey, token: Token, *, on: bool) -> None: ...


@dataclass(slots=True, eq=False)
class Attached:
    """A worker with an open stream. Counts of slots, except `granted`, start with the stream."""

    incarnation: Incarnation
    line: AttachedStream
    granted: int = 0
    last: float = inf
    """Greatest rank of a run that may use the granted slots."""
    received: int = 0
    pushed: int = 0
    under_way: int = 0
    """Slots of chosen runs that are neither pushed nor released yet."""
    serial: int = 0
    """Serial of the last grant that was answered; 0: none yet."""
    answered_reach: int = 0
    """Slots in use, as in the last answer."""
    free: int = 0
    running: int = 0
    unstored_results: int = 0
    """Results in its spool that no member has stored."""
    draining: bool = False
    since_refresh: float = 0.0
    disk: tuple[int, int] = (0, 0)
    """Bytes that its spool takes, and bytes free on its disk; 0: not reported."""
    drained: bool | None = None
    """Whether it is drained, as last sent on this stream; None: not sent."""
    refusal_reason: str = ""
    """Why it accepts no new work although it isn't draining, in words; empty if it does."""
    last_heartbeat: LastHeartbeat | None = None
    """Last heartbeat on this stream; None before the first."""
    unable: dict[JobId, Unable] = field(default_factory=dict)
    """Jobs that the worker refused because it lacks something."""
    demanded: tuple[QueueHead, ...] = ()
    lost: bool = False
    """Whether its incarnation was recorded as lost."""
    spoke_at: float = 0.0
    """Time of its last grant or heartbeat, in seconds of CLOCK_BOOTTIME."""
    beat_at: float = 0.0
    """Time of its last heartbeat, or of its attachment before the first one."""

    def view(self, now: float) -> WorkerView:
        """Return its state for display: its last heartbeat, and the age of that. A refusal of work
        expires: after silence, its cause may have ended.
        """
        quiet = max(0.0, now - self.beat_at)
        return WorkerView(
            incarnation=self.incarnation,
            draining=self.draining,
            free=self.free,
            running=self.running,
            lease_age=self.since_refresh + quiet,
            spool=self.disk[0],
            disk_free=self.disk[1],
            refusal_reason=self.refusal_reason if quiet <= SILENT_AFTER else "",
            unstored_results=self.unstored_results,
            silent=max(0.0, now - self.spoke_at),
        )

    @property
    def stays(self) -> bool:
        """Whether it takes new work: it isn't drained, draining or lost."""
        return not (self.draining or self.drained or self.lost)

    @property
    def available(self) -> int:
        """Slots that may be used now, unless the worker is silent."""
        if not self.stays:
            return 0
        return max(0, self._limit - self._reach)

    def grant(self, slots: int, received: int, last: float, serial: int) -> None:
        """Note a grant of slots; a new serial requests the number of slots in use."""
        self.granted, self.received, self.last = slots, received, last
        if serial and serial != self.serial:
            self.serial = serial
            self._tell_reach()

    def cant_do(self, job: JobId, unable: Unable) -> None:
        """Note that it refused a run of this job: other workers are preferred from now on."""
        self.unable[job] = unable
        if len(self.unable) > MOST_UNABLE:
            del self.unable[next(iter(self.unable))]

    def drain(self, on: bool) -> None:
        """Send the drain state if it changed. An earlier stream may have sent the opposite; the
        worker applies the last one.
        """
        if on != self.drained and (on or self.drained or self.draining):
            self.line.drain(on=on)
        self.drained = on

    def tell_demand(self, heads: Sequence[QueueHead], near: timedelta = timedelta()) -> None:
        """Send the queue heads for this worker, if they matter to it."""
        if is_news(heads, self.demanded, self.incarnation.slots, near):
            self.demanded = tuple(heads)
            self.line.demand(heads)

    def let_go(self, slots: int) -> None:
        """Release slots under way: their runs were pushed, or never will be."""
        self.under_way -= slots
        if self.answered_reach > max(self._limit, self._reach):
            self._tell_reach()

    @property
    def _limit(self) -> int:
        return self.received + self.granted

    @property
    def _reach(self) -> int:
        return self.pushed + self.under_way

    def _tell_reach(self) -> None:
        self.answered_reach = self._reach
        self.line.reach(self.serial, self.answered_reach)
