"""Times when the cluster was quiet or had a fault, and the deadline of a due run.

    ──┬── fault ──┬───── F ─────┬──── working ────┬── fault ──┬───── F ─────┬──── working ────▶
      begin       healed        failed over       begin       healed

A run that is due in quiet starts within a second. Any other has G seconds of *working* time: while
no fault lasts and the last one healed at least F ago; and never less than F + G in all. After one
fault alone that is heal + F + G. A fault lasts from its `begin` to its `healed` (or its `end`, or
the end of the run).

A fault of one member or one worker alone is *tolerated* by the others: they must have failed over F
after it began, healed or not. So an owner that stands still for a minute doesn't excuse them for a
minute.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from faults.history import Meta, Nemesis

NEVER = float("inf")
ON_TIME = 1.0
"""Seconds after its due instant within which a run starts in quiet."""
CLOCK_BOUND = 1.0
"""Seconds by which hosts' clocks may differ (S7) while a fault is at one, or at the wire by which
members read the cluster's.
"""
QUIET_BOUND = 0.1
"""The same at any other time: all processes of a run share one host's clock."""
ANY_PROCESS = ("a member", "a worker")
"""The targets of a fault that strikes whichever of them comes first."""
SLEEPS = ("stop", "pause", "freeze", "suspend")
"""A fault with one of these in its name suspends its target; the target continues later."""
BACK_WITHIN = 15.0
"""Seconds from the end of a fault to where its target must be back: how long a daemon may take to
start on a busy machine. However late it says that it is ready, from then on it counts as healed.
"""
WIRE = "wire"
CLOCK = "clock"
"""A fault with one of these in its name is at a clock, or at a wire by which one is read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault as it was: seconds of the epoch; `took_effect` None: not verified."""

    id: int
    name: str
    target: str
    begin: float
    took_effect: float | None
    healed: float
    tolerated: bool = False

    def over(self, failover: float) -> float:
        """Return when it ended for the system as a whole, which then needs F to fail over."""
        return min(self.healed, self.begin + failover) if self.tolerated else self.healed

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
    def timeout(self) -> float:
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
                return max(latest + left, due + self.timeout)
            left -= max(0.0, end - latest)
            latest = max(latest, end)
        return NEVER

    def early(self, due: float) -> float:
        """The earliest instant at which a run due then may start."""
        disturbed = any(
            (CLOCK in fault.name or WIRE in fault.name) and fault.overlaps(due - ON_TIME, due)
            for fault in self.faults
        )
        return due - (CLOCK_BOUND if disturbed else QUIET_BOUND)

    def slept(self, who: str, first: float, last: float) -> bool:
        """Whether a fault made this process stand still at some moment of [first, last]."""
        return any(fault.sleeps(who) and fault.overlaps(first, last) for fault in self.faults)


def windows_of(meta: Meta, events: Sequence[Nemesis], alone: Collection[str] = ()) -> Windows:
    """The windows of a run, of its nemesis' record; `alone`: names of members and workers."""
    by_id: dict[int, list[Nemesis]] = {}
    for event in events:
        by_id.setdefault(event.id, []).append(event)
    faults = sorted(
        (_fault(one, meta.ended) for one in by_id.values()), key=lambda each: (each.begin, each.id)
    )
    judged = tuple(replace(each, tolerated=_tolerated(each, faults, alone)) for each in faults)
    return Windows(meta, judged, tuple(_working(meta, judged)))


def _tolerated(fault: Fault, faults: Sequence[Fault], alone: Collection[str]) -> bool:
    """Whether it was of one process alone, and nothing else was wrong meanwhile."""
    sides = re.split(r"\s*<?->\s*", fault.target)
    single = any(side in alone or side in ANY_PROCESS for side in sides)
    others = (other for other in faults if other.id != fault.id)
    return single and not any(other.overlaps(fault.begin, fault.healed) for other in others)


def _working(meta: Meta, faults: Sequence[Fault]) -> Iterator[tuple[float, float]]:
    ready = meta.began
    for fault in faults:
        if ready < fault.begin:
            yield ready, fault.begin
        ready = max(ready, fault.over(meta.failover) + meta.failover)
    yield ready, NEVER


def _fault(events: Sequence[Nemesis], ended: float) -> Fault:
    first = min(events, key=lambda event: event.at)

    def at(phase: str) -> float | None:
        return max((event.at for event in events if event.phase == phase), default=None)

    healed, end = at("healed"), at("end")
    if healed is not None and end is not None:
        healed = min(max(healed, end), end + BACK_WITHIN)
    return Fault(
        id=first.id,
        name=first.fault,
        target=first.target,
        begin=first.at,
        took_effect=at("took_effect"),
        healed=ended if (over := healed or end) is None else over,
    )
