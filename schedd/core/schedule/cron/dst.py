"""Apply the policy for clock changes (DST) to fixed times
(docs/semantics/time-zones-and-dst.md).
"""

from enum import StrEnum
from typing import Final

from schedd.core.schedule.cron.masks import Masks
from schedd.core.schedule.zones import NEAR, Segment, Zone
from schedkit.records import dataclass


class DstGap(StrEnum):
    """The policy of a fixed-time job whose local time is skipped by the clock."""

    RUN_AFTER = "RUN_AFTER"
    """Run once, at the first moment after the gap."""
    SKIP = "SKIP"


class DstOverlap(StrEnum):
    """The pass of a repeated hour in which a fixed-time job runs."""

    FIRST = "FIRST"
    SECOND = "SECOND"
    BOTH = "BOTH"


@dataclass(frozen=True, slots=True)
class DstPolicy:
    """A job's policy for the days on which clocks change. Wildcard jobs never use it."""

    gap: DstGap = DstGap.RUN_AFTER
    overlap: DstOverlap = DstOverlap.FIRST


DEBIAN: Final = DstPolicy()
"""The default policy: the rule of Debian's cron."""


def runs_after_gap(segment: Segment, masks: Masks, dst: DstPolicy) -> bool:
    """Return whether a fixed time falls into the gap before this segment, and runs after it."""
    if segment.before >= segment.offset or dst.gap is DstGap.SKIP:
        return False
    skipped = masks.next_local(segment.start + segment.before)
    return skipped is not None and skipped < segment.start + segment.offset


def fixed_time_span(segment: Segment, dst: DstPolicy) -> tuple[int, int]:
    """Return the part [start, end) of a segment in which fixed times count: one pass only."""
    start, end = segment.start, segment.end
    if segment.before > segment.offset and dst.overlap is DstOverlap.FIRST:
        start += segment.before - segment.offset
    if segment.after < segment.offset and dst.overlap is DstOverlap.SECOND:
        end -= segment.offset - segment.after
    return start, end


def instants_of(local: int, zone: Zone, dst: DstPolicy) -> tuple[int, ...]:
    """Return the UTC seconds since 1970 at which a fixed local time counts: usually one."""
    passes = zone.passes(local)
    if passes:
        one = {DstOverlap.FIRST: passes[:1], DstOverlap.SECOND: passes[-1:]}
        return one.get(dst.overlap, passes)
    if dst.gap is not DstGap.RUN_AFTER:
        return ()
    return tuple(
        after.start
        for after in zone.segments(local - NEAR, local + NEAR)
        if after.start + after.before <= local < after.start + after.offset
    )
