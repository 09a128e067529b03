"""Chains: a job that runs after others, once a cycle, when each of them has ended in it. Pure.

    root fires, or is triggered ─→ a cycle ─→ its end arrives at each job that runs after it
    arrivals of all parents ─→ judge ─→ RUN | SKIP, with why | WAIT for who may still come

    success   all of them SUCCEEDED
    failure   at least one of them FAILED
    any       each has ended, as whatever: skipped, missed and cancelled are ends, too

A cycle is the nominal instant of the root's run, so that roots that fire at the same instant share
one; or, of a root that a person, a backfill or a submit started, that run alone. All runs of a
cycle have its instant as their nominal one.

Invariants
- A job has one run a cycle, made or skipped: its id is reckoned from the job and the cycle.
- A skipped run may be replaced by a new run that names it, after the parents that caused the skip
  ran again (`redo`). A run that ran is never run again automatically.
- No join waits for a parent that can't end, or longer than `LONGEST_WAIT`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.runs.lifecycle import State
from schedkit.records import dataclass

MOST_PARENTS: Final = 100
MOST_ANCESTORS: Final = 1_000
"""Above one job: each decision about a join reads all of them."""
LONGEST_WAIT: Final = timedelta(days=7)
"""From the first arrival: after this, a join doesn't wait for parents that haven't ended."""
LOOK_SOONEST: Final = timedelta(seconds=5)
LOOK_LATEST: Final = timedelta(minutes=5)
OF_SCHEDULES: Final = UUID(int=0)
"""The root of cycles that schedules begin: all roots that fire at that time share the cycle."""
_MOST_NAMED: Final = 3


class When(StrEnum):
    """What a parent's end has to be."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    ANY = "ANY"


@dataclass(frozen=True, slots=True)
class ChainParents:
    """What a definition says of its parents; they are named in its namespace."""

    jobs: tuple[str, ...]
    when: When = When.SUCCESS
    with_output: bool = False


@dataclass(frozen=True, slots=True)
class Cycle:
    """Which runs of a chain belong together."""

    scheduled_at: datetime
    root: UUID


@dataclass(frozen=True, slots=True)
class ParentEnded:
    """A parent's run that has ended in a cycle."""

    job: str
    run_id: RunId
    state: State


@dataclass(frozen=True, slots=True)
class Join:
    """The ends of parents that one job has received in one cycle, to decide on."""

    child: JobId
    shard: ShardId
    cycle: Cycle
    arrived: Mapping[JobId, ParentEnded]
    first_at: datetime
    """When the first of them arrived."""
    skipped_by: Mapping[JobId, ParentEnded] = field(default_factory=dict)
    """The ends that caused its earlier skip."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A join as its owner would judge it, by the definition that it knows."""

    join: Join
    generation: int
    """Of that definition; at another one nothing is judged."""
    after: ChainParents
    priority: int
    payload: bytes | None = None
    """What the parents gave back, serialised; None: the run has its job's own."""
    at_most_once: bool = False
    overlap_again: str | None = None
    """By what a run goes that does a skipped one: it is skipped for no other one."""

    @property
    def shard(self) -> ShardId:
        """Where the job is."""
        return self.join.shard


class JoinStep(StrEnum):
    """What becomes of a join."""

    RUN = "RUN"
    SKIP = "SKIP"
    WAIT = "WAIT"


@dataclass(frozen=True, slots=True)
class Judged:
    """The step, and why it is no run, in words."""

    step: JoinStep
    why: str = ""


def judge(
    when: When,
    parents: Mapping[JobId, str],
    arrived: Mapping[JobId, ParentEnded],
    coming: Collection[JobId],
    waited: timedelta,
) -> Judged:
    """Of a job with these `parents` (and their names), of which these have ended in the cycle, and
    of the others these may still: in line, under way, or behind what is.
    """
    missing = [job for job in parents if job not in arrived]
    awaited = [job for job in missing if job in coming]
    if awaited and waited < LONGEST_WAIT:
        return Judged(JoinStep.WAIT, f"for {_named(parents[job] for job in awaited)}")
    if awaited:
        names = _named(parents[job] for job in awaited)
        return Judged(JoinStep.SKIP, f"waited {LONGEST_WAIT.days} days for {names}")
    if missing:
        names = _named(parents[job] for job in missing)
        return Judged(JoinStep.SKIP, f"{names} had no run in this cycle")
    ends = [arrived[job] for job in parents]
    if when is When.SUCCESS and (odd := [one for one in ends if one.state is not State.SUCCEEDED]):
        return Judged(JoinStep.SKIP, f"{_ends_text(odd)}, and after.when is success")
    if when is When.FAILURE and not any(one.state is State.FAILED for one in ends):
        return Judged(JoinStep.SKIP, f"{_ends_text(ends)}, and after.when is failure")
    return Judged(JoinStep.RUN)


def look_after(waited: timedelta) -> timedelta:
    """When a join that waits is looked at next, without anything new: what can't come any more
    says so nowhere.
    """
    return min(LOOK_LATEST, max(LOOK_SOONEST, waited / 2))


def path_text(path: Sequence[str]) -> str:
    """Return a cycle in the graph as text."""
    return " → ".join(path)


def _ends_text(ends: Sequence[ParentEnded]) -> str:
    named = [f"run {one.run_id} of {one.job} is {one.state}" for one in ends[:_MOST_NAMED]]
    return ", ".join(named) + _more(len(ends))


def _named(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:_MOST_NAMED]) + _more(len(listed))


def _more(count: int) -> str:
    return f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
