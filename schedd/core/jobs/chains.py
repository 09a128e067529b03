"""Chains: a job runs once per cycle, after all its parents have ended in that cycle
(docs/semantics/chains.md). Pure.

A cycle is the scheduled time of the root's run: roots that fire at the same time share a cycle. If
a person, a backfill or a submit started the root, that run has a cycle of its own.

Invariants
- A job has one run per cycle, created or skipped. Its id is computed from the job and the cycle.
- A skipped run may be replaced by a new run that names it, after the parents that caused the skip
  ran again (`redo`). A run that ran is never run again automatically.
- No join waits for a parent that can't end, or longer than `LONGEST_WAIT`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.runs.lifecycle import State
from schedkit.records import dataclass

MOST_PARENTS: Final = 100
MOST_ANCESTORS: Final = 1_000
"""The most ancestors of a job: each decision on a join reads all of them."""
LONGEST_WAIT: Final = timedelta(days=7)
"""How long a join waits for its other parents, from the first parent's end on."""
LOOK_SOONEST: Final = timedelta(seconds=5)
LOOK_LATEST: Final = timedelta(minutes=5)
OF_SCHEDULES: Final = Id.from_int(0)
"""The root of cycles that schedules start: all roots that fire at that time share the cycle."""
_MOST_NAMED: Final = 3


class When(StrEnum):
    """The condition on the parents' ends."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    ANY = "ANY"


@dataclass(frozen=True, slots=True)
class ChainParents:
    """The `after` of a definition. `jobs` are names in the job's namespace."""

    jobs: tuple[str, ...]
    when: When = When.SUCCESS
    with_output: bool = False


@dataclass(frozen=True, slots=True)
class Cycle:
    """The key of a cycle: its scheduled time and its root."""

    scheduled_at: datetime
    root: Id


@dataclass(frozen=True, slots=True)
class ParentEnded:
    job: str
    run_id: RunId
    state: State


@dataclass(frozen=True, slots=True)
class ChainJoin:
    """The parents' ends that a job has received in one cycle."""

    child: JobId
    shard: ShardId
    cycle: Cycle
    arrived: Mapping[JobId, ParentEnded]
    first_at: datetime
    skipped_by: Mapping[JobId, ParentEnded] = field(default_factory=dict)
    """The ends that caused an earlier skip in this cycle."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A join to decide, with the settings of the definition that its owner knows."""

    join: ChainJoin
    generation: int
    """The definition's generation. At another generation the store doesn't decide."""
    after: ChainParents
    priority: int
    payload: bytes | None = None
    """The parents' results, serialized. None: the run has its job's payload."""
    at_most_once: bool = False
    overlap_again: str | None = None
    """The overlap policy of a run that replaces a skipped run. It prevents another skip."""

    @property
    def shard(self) -> ShardId:
        return self.join.shard


class JoinStep(StrEnum):
    RUN = "RUN"
    SKIP = "SKIP"
    WAIT = "WAIT"


@dataclass(frozen=True, slots=True)
class JoinDecision:
    """The decision on a join. `why`: the reason for SKIP or WAIT, as text."""

    step: JoinStep
    why: str = ""


def judge(
    when: When,
    parents: Mapping[JobId, str],
    arrived: Mapping[JobId, ParentEnded],
    coming: Collection[JobId],
    waited: timedelta,
) -> JoinDecision:
    """Return the decision on a join.

    - `parents`: all parents of the job, with their names.
    - `arrived`: the parents that have ended in the cycle.
    - `coming`: jobs that may still end in it: a run of them, or of an ancestor, waits or runs.
    - `waited`: the time since the first parent's end.
    """
    missing = [job for job in parents if job not in arrived]
    awaited = [job for job in missing if job in coming]
    if awaited and waited < LONGEST_WAIT:
        return JoinDecision(JoinStep.WAIT, f"for {_named(parents[job] for job in awaited)}")
    if awaited:
        names = _named(parents[job] for job in awaited)
        return JoinDecision(JoinStep.SKIP, f"waited {LONGEST_WAIT.days} days for {names}")
    if missing:
        names = _named(parents[job] for job in missing)
        return JoinDecision(JoinStep.SKIP, f"{names} had no run in this cycle")
    ends = [arrived[job] for job in parents]
    if when is When.SUCCESS and (odd := [one for one in ends if one.state is not State.SUCCEEDED]):
        return JoinDecision(JoinStep.SKIP, f"{_ends_text(odd)}, and after.when is success")
    if when is When.FAILURE and not any(one.state is State.FAILED for one in ends):
        return JoinDecision(JoinStep.SKIP, f"{_ends_text(ends)}, and after.when is failure")
    return JoinDecision(JoinStep.RUN)


def look_after(waited: timedelta) -> timedelta:
    """Return the wait until a join is decided again without a new end. No event reports that a
    parent can't end any more, so joins are checked regularly.
    """
    return min(LOOK_LATEST, max(LOOK_SOONEST, waited / 2))


def path_text(path: Sequence[str]) -> str:
    return " → ".join(path)


def _ends_text(ends: Sequence[ParentEnded]) -> str:
    named = [f"run {one.run_id} of {one.job} is {one.state}" for one in ends[:_MOST_NAMED]]
    return ", ".join(named) + _more(len(ends))


def _named(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:_MOST_NAMED]) + _more(len(listed))


def _more(count: int) -> str:
    return f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
