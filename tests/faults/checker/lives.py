"""The life of each job: which definition was in force when, when it was paused, how it ended.

    made ──── definition 1 ────┬── definition 2 ── …    each from the commit of its `jobs` row
              paused ══════    └ asked for by a client's call

What the test asked for (`jobs.jsonl`, `clients.jsonl`) is matched with what the database committed:
by the generation that an answer named, else (the call's outcome is unknown) by the first new `spec`
after the call. Pauses and resumes raise the generation and leave the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from faults.checker.rows import Cluster, Job, Timer
from faults.checker.tables import Step, Table
from faults.history import ClientEvent, Definition, Schedule

NEVER = float("inf")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A user's call: how it was asked, how it ended. `phase` is "unknown" where no end was seen."""

    op: int
    call: str
    invoked: ClientEvent
    phase: str
    ended: ClientEvent | None

    @property
    def until(self) -> float:
        """When its outcome was known; never, for unknown ones."""
        return self.ended.at if self.ended is not None and self.phase != "unknown" else NEVER

    def named(self, key: str) -> str | None:
        """Return the value of `key` in the answer, or else in the arguments."""
        answer = self.ended.answer if self.ended is not None and self.ended.answer else {}
        value = answer.get(key, self.invoked.args.get(key))
        return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Phase:
    """Definition in force from `committed` on; a client asked for it at `invoked`."""

    definition: Definition
    generation: int
    commit: int
    invoked: float
    committed: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Of the job or of the whole cluster: committed at `committed`, over at `resumed`."""

    committed: float
    resumed: float = NEVER


@dataclass(frozen=True, slots=True)
class Deletion:
    """Of a job, at the moment that its row names; `left`: the first instant that its timer hadn't
    accounted for then.
    """

    commit: int
    at: float
    left: float


@dataclass(frozen=True, slots=True)
class Life:
    """A job that the test knows. `stopped`: when it was deleted, or paused and never resumed;
    `left`: the first instant that its timer hadn't accounted for then.
    """

    job_id: str
    name: str
    namespace: str
    phases: tuple[Phase, ...]
    pauses: tuple[Pause, ...] = ()
    stopped: float = NEVER
    left: float = NEVER
    deletion: Deletion | None = None

    def at_generation(self, generation: int) -> Phase | None:
        """The definition that a row of this generation was made from."""
        found = [phase for phase in self.phases if phase.generation <= generation]
        return found[-1] if found else None

    def paused(self, first: float, last: float) -> Pause | None:
        """The last pause that touches [first, last]."""
        touching = [p for p in self.pauses if p.committed <= last and first <= p.resumed]
        return touching[-1] if touching else None

    def segments(self) -> list[tuple[Schedule, float, float]]:
        """Schedule, from, to: where nothing but this schedule can have been in force."""
        found: list[tuple[Schedule, float, float]] = []
        for phase in self.phases:
            schedule = phase.definition.schedule
            if found and found[-1][0] == schedule:
                continue
            if found:
                found[-1] = (found[-1][0], found[-1][1], phase.invoked)
            found.append((schedule, phase.committed, NEVER))
        return found


@dataclass(frozen=True, slots=True)
class Lives:
    """All lives by job id, and what didn't match: definitions acknowledged and not there, and
    changes of a known job that no client asked for.
    """

    by_job: Mapping[str, Life]
    missing: tuple[Definition, ...]
    unasked: tuple[Step[Job], ...]


def calls_of(events: Sequence[ClientEvent]) -> dict[int, Call]:
    """Each call by its number."""
    calls: dict[int, Call] = {}
    for event in sorted(events, key=lambda each: (each.at, each.phase != "invoke")):
        if event.phase == "invoke":
            calls[event.op] = Call(event.op, event.call, event, "unknown", None)
        elif event.op in calls:
            calls[event.op] = replace(calls[event.op], phase=event.phase, ended=event)
    return calls


def lives_of(
    definitions: Sequence[Definition],
    calls: Mapping[int, Call],
    jobs: Table[Job],
    timers: Table[Timer],
    cluster: Table[Cluster],
) -> Lives:
    """Match what was asked for with what was committed."""
    by_job: dict[str, Life] = {}
    missing: list[Definition] = []
    unasked: list[Step[Job]] = []
    asked: dict[str, list[Definition]] = {}
    for definition in sorted(definitions, key=lambda each: each.at):
        call = calls.get(definition.op) if definition.op is not None else None
        if call is not None and call.phase == "fail":
            continue
        job_id = definition.job_id or (call and call.named("job_id")) or _by_name(definition, jobs)
        if job_id is not None and jobs.of(job_id):
            asked.setdefault(job_id, []).append(definition)
        elif call is None or call.phase == "ok":
            missing.append(definition)
    for job_id, wanted in asked.items():
        steps = jobs.of(job_id)
        phases, absent = _phases(wanted, calls, steps)
        missing.extend(absent)
        taken = {phase.commit for phase in phases}
        unasked.extend(step for step in steps if _spec_changed(step) and step.commit not in taken)
        if phases:
            by_job[job_id] = _life(phases, steps, timers, cluster)
    return Lives(by_job, tuple(missing), tuple(unasked))


def _by_name(definition: Definition, jobs: Table[Job]) -> str | None:
    for step in jobs.steps:
        made = step.after
        if (
            step.before is None
            and made is not None
            and (made.namespace, made.name) == (definition.namespace, definition.name)
            and step.at >= definition.at - 1
        ):
            return made.job_id
    return None


def _phases(
    wanted: Sequence[Definition], calls: Mapping[int, Call], steps: Sequence[Step[Job]]
) -> tuple[list[Phase], list[Definition]]:
    phases: list[Phase] = []
    absent: list[Definition] = []
    certain = [d for d in wanted if _outcome(d, calls) == "ok"]
    doubtful = [d for d in wanted if _outcome(d, calls) != "ok"]
    for definition in certain + doubtful:
        taken = {phase.commit for phase in phases}
        free = (step for step in steps if step.commit not in taken)
        if definition in certain:
            generation = _generation(definition, calls)
            step = next((s for s in free if s.after and s.after.generation == generation), None)
        else:
            step = next((s for s in free if _spec_changed(s) and s.at >= definition.at), None)
        if step is not None and step.after is not None:
            generation = step.after.generation
            phases.append(Phase(definition, generation, step.commit, definition.at, step.at))
        elif definition in certain:
            absent.append(definition)
    return sorted(phases, key=lambda phase: phase.commit), absent


def _outcome(definition: Definition, calls: Mapping[int, Call]) -> str:
    call = calls.get(definition.op) if definition.op is not None else None
    return "ok" if call is None else call.phase


def _generation(definition: Definition, calls: Mapping[int, Call]) -> int:
    call = calls.get(definition.op) if definition.op is not None else None
    named = call.named("generation") if call is not None else None
    return definition.generation if named is None else int(named)


def _spec_changed(step: Step[Job]) -> bool:
    if step.after is None:
        return False
    return step.before is None or step.before.spec != step.after.spec


def _life(
    phases: list[Phase],
    steps: Sequence[Step[Job]],
    timers: Table[Timer],
    cluster: Table[Cluster],
) -> Life:
    own, stopped = _pauses(steps, lambda job: job.paused)
    whole, halted = _pauses(cluster.steps, lambda row: row.paused)
    deleted = next((s for s in steps if s.after and s.after.deleted), None)
    stop = min(
        (one for one in (stopped, halted, deleted) if one is not None),
        key=lambda one: one.commit,
        default=None,
    )
    first = phases[0].definition
    pauses = tuple(sorted(own + whole, key=lambda pause: pause.committed))
    life = Life(steps[0].key[0], first.name, first.namespace, tuple(phases), pauses)
    if stop is None:
        return life
    left = _unaccounted(timers, stop.commit, life.job_id)
    life = replace(life, stopped=stop.at, left=left)
    if deleted is None or deleted.after is None or deleted.after.deleted_at is None:
        return life
    left = _unaccounted(timers, deleted.commit, life.job_id)
    return replace(life, deletion=Deletion(deleted.commit, deleted.after.deleted_at, left))


def _unaccounted(timers: Table[Timer], commit: int, job_id: str) -> float:
    """The first instant that the timer had still to account for, just before this commit."""
    timer = timers.before(commit, job_id)
    return timer.nominal if timer is not None and timer.nominal is not None else NEVER


def _pauses(
    steps: Sequence[Step[T]], paused: Callable[[T], bool]
) -> tuple[list[Pause], Step[T] | None]:
    """The pauses in a row's life, and the step that began the one that never ended."""
    pauses: list[Pause] = []
    open_since: Step[T] | None = None
    for step in steps:
        on = step.after is not None and paused(step.after)
        if on and open_since is None:
            pauses.append(Pause(step.at))
            open_since = step
        elif not on and open_since is not None and step.after is not None:
            pauses[-1] = replace(pauses[-1], resumed=step.at)
            open_since = None
    return pauses, open_since
