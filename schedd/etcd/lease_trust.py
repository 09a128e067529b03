"""How long a lease is trusted, and when its next keepalive is due. Pure: time is an argument.

    sent ├────────────── granted TTL ──────────────┤ etcd may expire the lease
         ├── interval ──┼─ try ─┼─ try ─┤
         ├──────────── trust ───────────┤ safety ─┤
                        ↑ only while the last beat of the main loop is younger than TTL/3

Invariants
- Trust runs from the moment the last successful keepalive was *sent*. etcd counts from a later
  moment, so it can't expire the lease while it is trusted.
- Trust that has ended never returns, not even by a keepalive answered a moment later.
- Two tries in a row may stay unanswered before trust ends:
  `interval + 2 × deadline + safety margin ≤ TTL` is checked.
- Without a beat there is no keepalive: a hung process loses its lease.
- All times are seconds of CLOCK_BOOTTIME.
"""

import enum
from typing import TypeAlias

from schedkit.errors import Misconfigured
from schedkit.records import dataclass


class LeaseLoss(enum.Enum):
    """Why a lease is no longer trusted."""

    EXPIRED = "etcd has ended the lease"
    UNANSWERED = "etcd answered no renewal in time"
    HUNG = "the event loop made no progress"


@dataclass(frozen=True, slots=True)
class LeaseWait:
    """Wait `seconds`, or until the next beat."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Send:
    """A keepalive is due now."""


Step: TypeAlias = LeaseWait | Send | LeaseLoss


@dataclass(frozen=True, slots=True)
class Timings:
    """The times that follow from the granted TTL, all in seconds."""

    ttl: float

    @property
    def safety_margin(self) -> float:
        """The time by which trust ends before the lease."""
        return max(1.0, self.ttl / 5)

    @property
    def interval(self) -> float:
        """The time between two keepalives; also the age at which a beat is too old."""
        return self.ttl / 3

    def check(self, deadline: float) -> None:
        """Reject a deadline that leaves no time for a second try. Raises Misconfigured: the
        message has the numbers.
        """
        needed = self.interval + 2 * deadline + self.safety_margin
        if needed > self.ttl + 1e-9:
            raise Misconfigured(
                f"a lease of {self.ttl:g} s can't be renewed in time if a call may take"
                f" {deadline:g} s: two calls need {needed:.2f} s; set a longer member_ttl"
            )


class LeaseTrust:
    """The trust in one lease, granted at `sent` for `ttl` seconds."""

    def __init__(self, ttl: float, *, deadline: float, sent: float) -> None:
        self._timings = Timings(ttl)
        self._timings.check(deadline)
        self._retry = deadline / 2
        self.until = sent + ttl - self._timings.safety_margin
        self.loss: LeaseLoss | None = None
        self._due = sent + self._timings.interval
        self._beat = sent
        self._held = False

    def beat(self, now: float) -> bool:
        """Record a beat of the main loop. Return True if a keepalive waited for it."""
        self._beat = now
        held, self._held = self._held, False
        return held

    def holds(self, now: float) -> bool:
        """Return whether the lease is trusted. Once False, always False."""
        if self.loss is None and now >= self.until:
            self.loss = LeaseLoss.HUNG if self._hung(now) else LeaseLoss.UNANSWERED
        return self.loss is None

    def step(self, now: float) -> Step:
        if not self.holds(now):
            assert self.loss is not None
            return self.loss
        if now < self._due:
            return LeaseWait(min(self._due, self.until) - now)
        self._held = self._hung(now)
        return LeaseWait(self.until - now) if self._held else Send()

    def renewed(self, sent: float, ttl: float, now: float) -> None:
        """Record the `ttl` granted to the keepalive sent at `sent`; 0: the lease has expired."""
        if not self.holds(now):
            return
        if ttl <= 0:
            self.loss = LeaseLoss.EXPIRED
            return
        self._timings = Timings(ttl)
        self.until = max(self.until, sent + ttl - self._timings.safety_margin)
        self._due = sent + self._timings.interval

    def failed(self, now: float) -> None:
        """Record that a keepalive failed or wasn't answered: the next try comes soon."""
        self._due = now + self._retry

    def give_up(self) -> None:
        self.loss = self.loss or LeaseLoss.UNANSWERED

    def _hung(self, now: float) -> bool:
        return now - self._beat > self._timings.interval
