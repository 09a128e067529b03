"""Facts for the judge: definitions of jobs, and answers given on the strength of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from faults.model.rows import JobId, RunId
from faults.model.timing import TRIGGERED, has, instant


class Broken(Exception):
    """An invariant is broken: the seed ends here."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant
        self.why = why


@dataclass(frozen=True, slots=True)
class Job:
    """Fields of a definition that no edit of the model changes."""

    limit: int
    """Admitted runs at once."""
    skip: bool
    """Past the limit a waiting run is SKIPPED; else it waits."""
    at_most_once: bool = False
    max_runs: int = 0
    """After so many runs the schedule has ended; 0: no limit."""


@dataclass(slots=True)
class Span:
    """A time in which a job's timer stood somehow, by a call that changed this generation."""

    generation: int
    began: int
    ended: int | None = None
    ok: bool = False
    """An `ok` was answered while that lasted."""

    def holds(self, at: int) -> bool:
        """Whether the span includes this time, has ended, and was acknowledged."""
        return self.ok and self.began < at and (self.ended is None or at <= self.ended)


@dataclass(slots=True)
class Promises:
    """Answers given on the strength of rows, void when those rows are lost."""

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
    edited_early: set[RunId] = field(default_factory=set)
    """Ended before they were due, for want of an instant in the schedule of then."""
    pauses: dict[JobId, list[Span]] = field(default_factory=lambda: defaultdict(list))
    thinned: dict[JobId, list[Span]] = field(default_factory=lambda: defaultdict(list))
    """When its schedule lacked every other instant."""
    decided: set[int] = field(default_factory=set)
    """Cycles of which the child has a row, made or skipped."""
    joined: set[int] = field(default_factory=set)
    """Cycles in which it runs."""
    held: int | None = None
    """The database went back to here, and no operator has resumed it."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Instants after the one, up to the other, that a person chose not to run."""
    started: dict[RunId, set[int]] = field(default_factory=lambda: defaultdict(set))

    def starts(self, key: RunId) -> None:
        """A worker starts a run for the first time. Raises Broken."""
        job, number = key
        if any(span.holds(instant(number)) for span in self.pauses[job]):
            raise Broken("S8", f"{key} starts, but was due in a pause that was answered ok")
        lacked = not has(True, number)
        if lacked and any(span.holds(instant(number)) for span in self.thinned[job]):
            raise Broken("S8", f"{key} starts, but an edit that was answered ok removed it")

    def begins(self, key: RunId, *, first: bool) -> None:
        """Check that a run may be fired or dispatched, for the first time or not. Raises Broken."""
        if self.held is not None:
            raise Broken("R2", f"{key} begins after a loss of data, before the cluster was resumed")
        if key[1] >= TRIGGERED or not first:
            return
        for after, until in self.left_out:
            if after < instant(key[1]) <= until:
                raise Broken("R3", f"{key} starts, but the user chose not to catch it up")
