"""L6: what processes hold comes back to where it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from faults.checker.verdict import Violation
from faults.checker.world import World
from faults.history import Resource


@dataclass(frozen=True, slots=True)
class PerMinuteLimit:
    """How much more of something there may be afterwards: a part of it, and a number."""

    field: str
    what: str
    part: float
    number: float


ALLOWANCES = (
    PerMinuteLimit("rss_kib", "KiB of memory", 0.3, 48 * 1024),
    PerMinuteLimit("fds", "descriptors", 0.1, 16),
    PerMinuteLimit("threads", "threads", 0.1, 8),
    PerMinuteLimit("connections", "connections", 0.0, 8),
    PerMinuteLimit("spool_bytes", "bytes of spool", 0.0, 64 * 1024),
    PerMinuteLimit("heap_bytes", "bytes of tables of what lives", 0.5, 4 * 1024 * 1024),
    PerMinuteLimit("dead_rows", "dead rows that VACUUM must leave", 0.0, 500),
)
"""Wide enough for caches that fill and pools that breathe, far below what a leak makes of minutes
of each-second jobs."""


def l6(world: World) -> Iterator[Violation]:
    """Descriptors, memory, threads, connections, spools and tables come back to where they were."""
    before = by_process(world, "before")
    after = by_process(world, "after")
    for who in sorted(before.keys() & after.keys()):
        for allowance in ALLOWANCES:
            had = level(before[who], allowance.field)
            has = level(after[who], allowance.field)
            if had is None or has is None:
                continue
            most = had * (1 + allowance.part) + allowance.number
            if has > most:
                yield Violation(
                    "L6",
                    f"{who} holds {has:g} {allowance.what}, before it held {had:g}",
                    (f"allowed: {most:g}",),
                )


def by_process(world: World, phase: str) -> Mapping[str, Sequence[Resource]]:
    """The samples of a phase by who they are of."""
    found: dict[str, list[Resource]] = defaultdict(list)
    for sample in world.history.resources:
        if sample.phase == phase:
            found[sample.who].append(sample)
    return found


def level(samples: Sequence[Resource], field: str) -> float | None:
    """The usual value; None where it doesn't apply."""
    values = [getattr(sample, field) for sample in samples]
    known = [value for value in values if value is not None]
    return median(known) if known else None
