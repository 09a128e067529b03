"""What a judge goes by: what jobs say, and what was said on the strength of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from faults.model.rows import JobId, RunId
from faults.model.timing import TRIGGERED, instant


class Broken(Exception):
    """An invariant is broken: the seed ends here."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant
        self.why = why


@dataclass(frozen=True, slots=True)
class Job:
    """What a definition says that no edit of the model changes."""

    limit: int
    """Admitted runs at once."""
    skip: bool
    """Past the limit a waiting run is SKIPPED; else it waits."""
    at_most_once: bool = False
    max_runs: int = 0
    """After so many runs the schedule has ended; 0: no limit."""


@dataclass(slots=True)
class Promises:
    """What was said on the strength of rows, and is void when those rows are lost."""

    fired: set[RunId] = field(default_factory=set)
    issued: Counter[RunId] = field(default_factory=Counter)
    """The greatest token of each run."""
    ended: set[RunId] = field(default_factory=set)
    """Runs with an accepted result that was their last."""
    over: dict[JobId, int] = field(default_factory=dict)
    """The generation up to which nothing may fire or start, by an `ok`."""
    tokens: int = 0
    """How many tokens were issued by then."""
    skipped_early: set[RunId] = field(default_factory=set)
    decided: set[int] = field(default_factory=set)
    """Cycles of which the child has a row, made or skipped."""
    joined: set[int] = field(default_factory=set)
    """Those in which it runs."""
    held: int | None = None
    """The database went back to here, and nobody has resumed it."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Instants after the one, up to the other, that a person chose not to run."""
    started: dict[RunId, set[int]] = field(default_factory=lambda: defaultdict(set))

    def begins(self, key: RunId, *, first: bool) -> None:
        """A run is fired or handed out, for the first time or not. Raises Broken."""
        if self.held is not None:
            raise Broken("R2", f"{key} begins in a database that went back; nobody resumed it")
        if key[1] >= TRIGGERED or not first:
            return
        for after, until in self.left_out:
            if after < instant(key[1]) <= until:
                raise Broken(
                    "R3", f"{key} may have run in what was lost; it wasn't to be caught up"
                )
