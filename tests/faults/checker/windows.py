"""When the world was quiet, when something was wrong with it, and by when a due run must start.

    ──┬── fault ──┬───── F ─────┬──── working ────┬── fault ──┬───── F ─────┬──── working ────▶
      begin       healed        failed over       begin       healed

A run that is due in quiet starts within a second. Any other has G seconds of *working* time: while
no fault lasts and the last one healed at least F ago; and never less than F + G in all. After one
fault alone that is heal + F + G. A fault lasts from its `begin` to its `healed` (or its `end`, or
the end of the run).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from faults.history import Meta, Nemesis

NEVER = float("inf")
ON_TIME = 1.0
"""Seconds after its due instant within which a run starts in quiet."""
CLOCK_BOUND = 1.0
"""Seconds by which hosts' clocks may differ (S7) where something was wrong."""
QUIET_BOUND = 0.1
"""The same in quiet: all processes of a run share one host's clock."""
SLEEPS = ("stop", "pause", "freeze", "suspend")
"""A fault with one of these in its name keeps its target from running; it goes on later."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as it was: seconds of the epoch; `took_effect` None: not verifiably."""

    id: int
    name: str
    target: str
    begin: float
    took_effect: float | None
    healed: float

    def sleeps(self, who: str) -> bool:
        """Whether it made this process stand still."""
        return any(word in self.name.lower() for word in SLEEPS) and who in self.target.split(",")

    def overlaps(self, first: float, last: float) -> bool:
        """Whether it lasted at some moment of [first, last]."""
        return self.begin <= last and first <= self.healed


@dataclass(frozen=True, slots=True)
class Windows:
    """The quiet spans and the faults of a run, and when the system had to work, in order."""

    meta: Meta
    faults: tuple[Fault, ...]
    working: tuple[tuple[float, float], ...]

    @property
    def patience(self) -> float:
        """F + G."""
        return self.meta.failover + self.meta.grace

    def quiet(self, first: float, last: float) -> bool:
        """Whether all of [first, last] lies in one quiet span."""
        return any(begin <= first and last <= end for begin, end in self.meta.quiet)

    def in_time(self, due: float) -> bool:
        """Whether a run due then must start within a second."""
        return self.quiet(due, due + ON_TIME)

    def deadline(self, due: float) -> float:
        """The latest instant at which a run that was due then may start."""
        if self.in_time(due):
            return due + ON_TIME
        left, latest = self.meta.grace, due
        for begin, end in self.working:
            latest = max(latest, begin)
            if end - latest >= left:
                return max(latest + left, due + self.patience)
            left -= max(0.0, end - latest)
            latest = max(latest, end)
        return NEVER

    def early(self, due: float) -> float:
        """The earliest instant at which a run due then may start."""
        return due - (QUIET_BOUND if self.quiet(due - ON_TIME, due) else CLOCK_BOUND)

    def slept(self, who: str, first: float, last: float) -> bool:
        """Whether a fault made this process stand still at some moment of [first, last]."""
        return any(fault.sleeps(who) and fault.overlaps(first, last) for fault in self.faults)


def windows_of(meta: Meta, events: Sequence[Nemesis]) -> Windows:
    """The windows of a run, of its nemesis' record."""
    faults = _faults(events, meta.ended)
    return Windows(meta, faults, tuple(_working(meta, faults)))


def _working(meta: Meta, faults: Sequence[Fault]) -> Iterator[tuple[float, float]]:
    ready = meta.began
    for fault in faults:
        if ready < fault.begin:
            yield ready, fault.begin
        ready = max(ready, fault.healed + meta.failover)
    yield ready, NEVER


def _faults(events: Sequence[Nemesis], ended: float) -> tuple[Fault, ...]:
    """The faults of a run in order of their beginning."""
    by_id: dict[int, list[Nemesis]] = {}
    for event in events:
        by_id.setdefault(event.id, []).append(event)
    faults = [_fault(one, ended) for one in by_id.values()]
    return tuple(sorted(faults, key=lambda fault: (fault.begin, fault.id)))


def _fault(events: Sequence[Nemesis], ended: float) -> Fault:
    first = min(events, key=lambda event: event.at)

    def at(phase: str) -> float | None:
        return max((event.at for event in events if event.phase == phase), default=None)

    over = [each for each in (at("healed"), at("end")) if each is not None]
    return Fault(
        id=first.id,
        name=first.fault,
        target=first.target,
        begin=first.at,
        took_effect=at("took_effect"),
        healed=max(over, default=ended),
    )
