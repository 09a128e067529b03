"""S11: what was acknowledged is there, what failed isn't, what is unknown happened at most once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

from faults.checker.durable import not_durable
from faults.checker.lives import Call
from faults.checker.rows import Job, Run
from faults.checker.tables import clock
from faults.checker.verdict import Violation
from faults.checker.world import World

MAKES_RUNS = {"MANUAL": "trigger", "SUBMIT": "submit"}
"""`trigger` of a run → the call that makes such a run."""


def s11(world: World) -> Iterator[Violation]:
    """Acknowledged calls are durable; failed ones leave nothing; unknown ones happen once at most.

    The same idempotency key gives the same id.
    """
    for call in world.calls.values():
        holds = EFFECTS.get(call.call)
        if call.phase == "ok" and holds is not None and not holds(world, call):
            what = f"{call.call} (op {call.op}) was acknowledged, and is not in the database"
            yield Violation("S11", what, describe(call))
    for definition in world.lives.missing:
        what = f"generation {definition.generation} of {definition.name} was acknowledged and lost"
        yield Violation("S11", what, (f"asked for at {clock(definition.at)}",))
    for step in world.lives.unasked:
        name = step.after.name if step.after else step.key[0]
        what = f"the definition of {name} changed, and no call that may have worked asked for it"
        yield Violation("S11", what, (step.where,))
    yield from _too_many(world)
    yield from _keys(world.calls)
    yield from not_durable(world)


def describe(call: Call) -> tuple[str, ...]:
    """A call in words."""
    ended = f"{call.phase} {clock(call.until)}" if call.ended else "no answer"
    answer = call.ended.answer if call.ended else None
    return (
        f"op {call.op}: {call.call} {dict(call.invoked.args)}",
        f"invoked {clock(call.invoked.at)}, {ended}: {answer}",
    )


def _job_at_ok(world: World, call: Call) -> Job | None:
    return world.jobs.asof(call.until, world.job_of(call))


def _made(world: World, call: Call) -> bool:
    return _job_at_ok(world, call) is not None


def _edited(world: World, call: Call) -> bool:
    job, generation = _job_at_ok(world, call), call.named("generation")
    return job is not None and (generation is None or job.generation >= int(generation))


def _state_in_call(holds: Callable[[Job], bool]) -> Callable[[World, Call], bool]:
    """Whether the job was so at some moment of the call; another may have changed it since."""

    def held(world: World, call: Call) -> bool:
        states = [_job_at_ok(world, call)]
        for step in world.jobs.of(world.job_of(call)):
            if call.invoked.at <= step.at <= call.until:
                states += [step.before, step.after]
        return any(state is not None and holds(state) for state in states)

    return held


def _cluster_in_call(*, paused: bool) -> Callable[[World, Call], bool]:
    """Whether the whole cluster was paused, or wasn't, at some moment of the call."""

    def held(world: World, call: Call) -> bool:
        states = [world.cluster.asof(call.until)]
        for step in world.cluster.steps:
            if call.invoked.at <= step.at <= call.until:
                states += [step.before, step.after]
        return any(state is not None and state.paused is paused for state in states)

    return held


def _run_made(world: World, call: Call) -> bool:
    run_id = call.named("run_id")
    return run_id is None or world.runs.asof(call.until, run_id) is not None


def _cancelled(world: World, call: Call) -> bool:
    run = world.runs.asof(call.until, call.named("run_id") or "")
    return run is not None and (run.cancelling or run.ended)


EFFECTS: Mapping[str, Callable[[World, Call], bool]] = {
    "create": _made,
    "edit": _edited,
    "pause": _state_in_call(lambda job: job.paused),
    "resume": _state_in_call(lambda job: not job.paused),
    "delete": _state_in_call(lambda job: job.deleted),
    "cluster-pause": _cluster_in_call(paused=True),
    "cluster-resume": _cluster_in_call(paused=False),
    "trigger": _run_made,
    "submit": _run_made,
    "cancel": _cancelled,
}
"""Checks of the rows that a call answered `ok` must leave in the database."""


def _too_many(world: World) -> Iterator[Violation]:
    """More of an effect than the calls that may have worked can have had."""
    for trigger, name in MAKES_RUNS.items():
        by_job = name == "trigger"
        allowed = _may_have_worked(world, name, world.job_of if by_job else _nothing)
        made: dict[str, list[Run]] = defaultdict(list)
        for steps in world.runs.rows.values():
            run = steps[0].after
            if run is not None and run.trigger == trigger:
                made[run.job_id if by_job else ""].append(run)
        for job_id, runs in made.items():
            if len(runs) > allowed[job_id]:
                yield Violation(
                    "S11",
                    f"{len(runs)} runs were made by {name} of {job_id or 'anything'}, and"
                    f" {allowed[job_id]} calls may have worked",
                    tuple(f"run {run.run_id} at {clock(run.scheduled_at)}" for run in runs),
                )
    allowed = _may_have_worked(world, "create", _name)
    made_jobs = Counter(
        step.after.name
        for step in world.jobs.steps
        if step.before is None and step.after is not None and not step.after.ephemeral
    )
    asked = {_name(call) for call in world.calls.values() if call.call == "create"}
    for job, count in made_jobs.items():
        if job in asked and count > allowed[job]:
            what = f"{job} was made {count} times, and {allowed[job]} calls may have worked"
            yield Violation("S11", what)
    yield from _flips(world, "pause", lambda job: job.paused)
    yield from _flips(world, "resume", lambda job: not job.paused)
    yield from _flips(world, "delete", lambda job: job.deleted)


def _flips(world: World, name: str, holds: Callable[[Job], bool]) -> Iterator[Violation]:
    allowed = _may_have_worked(world, name, world.job_of)
    for key, steps in world.jobs.rows.items():
        flips = [
            step
            for step in steps
            if step.before and step.after and holds(step.after) and not holds(step.before)
        ]
        if key[0] in world.lives.by_job and len(flips) > allowed[key[0]]:
            what = f"job {key[0]} saw {len(flips)} × {name}, and {allowed[key[0]]} may have worked"
            yield Violation("S11", what, tuple(step.where for step in flips))


def _may_have_worked(world: World, name: str, subject_of: Callable[[Call], str]) -> Counter[str]:
    """How many calls weren't refused, by what they are about; those of one key count once."""
    seen: set[tuple[str, str]] = set()
    counts: Counter[str] = Counter()
    for call in world.calls.values():
        if call.call != name or call.phase == "fail":
            continue
        subject = subject_of(call)
        key = call.named("idempotency_key") or f"op {call.op}"
        if (subject, key) not in seen:
            seen.add((subject, key))
            counts[subject] += 1
    return counts


def _name(call: Call) -> str:
    return call.named("name") or ""


def _nothing(call: Call) -> str:
    return ""


def _keys(calls: Mapping[int, Call]) -> Iterator[Violation]:
    given: dict[tuple[str, str, str], dict[str, Call]] = defaultdict(dict)
    for call in calls.values():
        key = call.named("idempotency_key")
        made = call.named("run_id" if call.call in MAKES_RUNS.values() else "job_id")
        if call.phase == "ok" and key is not None and made is not None:
            given[call.named("namespace") or "", call.call, key][made] = call
    for (_, name, key), ids in given.items():
        if len(ids) > 1:
            evidence = tuple(line for call in ids.values() for line in describe(call))
            yield Violation("S11", f"{name} with key {key!r} gave {len(ids)} ids", evidence)
