"""A history in whose midst the database was put back to an older state: two histories and a hole.

    ── backup ────────── stopped ┄┄┄ opened ── paused ── resumed ───────▶
       │                    │           ├────────── the second ─────────   what was restored went on
       ├──── the first ─────┤           horizon: what fell due from here on is caught up
       └───── the hole ─────┘   rows that were lost; what they tell of did happen

Each of the two is judged by all invariants, as any other: the first as if it had ended when the
database was stopped, the second from the horizon on, beginning with the rows that were restored.
Nothing is excused in either. Between them, which neither can see (`between`):

- S3: epochs, terms and tokens of the second lie above all of the first, the lost ones included;
- S8: nothing is fired and nothing dispatched before an operator resumes the cluster;
- S10: what ran in the hole doesn't run again, but where it fell due after the horizon, or the
  restored rows have it under way; and never where it may run once at most.

The hole is reported by name (`Hole`): calls that were acknowledged and are un-acknowledged,
runs whose rows are gone, instants that ran and ran again.

A start or an end belongs to the first where its token was drawn there; the second sees it too
where the restored rows have that token still under way. A call under way when the database was
stopped has an unknown outcome, in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from faults.checker.lives import calls_of
from faults.checker.rows import FIRED, SCHEDULED, TERMINAL, Run
from faults.checker.tables import Table, clock
from faults.checker.verdict import Figures, Violation
from faults.checker.world import World
from faults.history import ClientEvent, Definition, History, Nemesis, ProbeEvent, Row

T = TypeVar("T")

LIVING = (
    *("jobs", "timers", "live", "cluster", "term", "tenures"),
    *("shards", "shard_log", "incarnations"),
)
"""Of these the second history has the restored rows; of runs it has those that hadn't ended."""

FIRST = "no faults until the restore"
"""Name of the first history: nothing went wrong in it."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Losses of a restore, counted: calls that were answered `ok` and are lost, runs whose
    rows are gone, and of the instants that ran before it those that ran again.
    """

    seconds: float
    calls: int
    runs: int
    again: int


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Change of a row by one commit."""

    commit: int
    where: str
    before: T | None
    after: T


def split(history: History) -> tuple[History, History]:
    """The history until the database was stopped, and the one from the horizon on."""
    restore = history.restore
    assert restore is not None, "nothing was restored in this history"
    first = replace(
        history,
        meta=replace(
            history.meta,
            scenario=FIRST,
            ended=restore.stopped,
            quiet=_within(history, history.meta.began, restore.stopped),
        ),
        jobs=tuple(each for each in history.jobs if each.at <= restore.stopped),
        clients=tuple(each for each in history.clients if each.at <= restore.stopped),
        nemesis=(),
        commits=history.commits[: restore.commits],
        database=history.stopped,
        restore=None,
    )
    drawn = _tokens(first)
    under_way = {
        (str(row["run_id"]), int(row["token"] or 0))
        for row in history.restored.get("runs", ())
        if row["state"] == "RUNNING"
    }
    second = replace(
        history,
        meta=replace(
            history.meta,
            began=restore.horizon,
            quiet=_within(history, restore.opened, history.meta.ended),
        ),
        jobs=tuple(_definitions(history)),
        clients=tuple(_clients(history)),
        probes=tuple(
            each
            for each in history.probes
            if (each.run, each.token) not in drawn or (each.run, each.token) in under_way
        ),
        nemesis=tuple(_from_the_horizon(history)),
        commits=history.commits[restore.commits :],
        initial=_living(history),
        database={**history.database, "runs": _changed_since(history)},
        restore=None,
    )
    return replace(
        first, probes=tuple(e for e in history.probes if (e.run, e.token) in drawn)
    ), second


def between(history: History, first: World, second: World) -> Iterator[Violation]:
    """Yield violations that neither of the two histories can show."""
    yield from _grown(first, second)
    yield from _before_resumed(second)
    yield from _run_again(history, first, second)


def hole_of(history: History) -> Hole:
    """Count what was undone."""
    restore = history.restore
    assert restore is not None
    first, second = map(World, split(history))
    restored = {str(row["run_id"]) for row in history.restored.get("runs", ())}
    gone = [run for run in first.runs.final() if run.run_id not in restored]
    lost_jobs = {str(row["job_id"]) for row in history.stopped.get("jobs", ())} - {
        str(row["job_id"]) for row in history.restored.get("jobs", ())
    }
    lost_runs = {run.run_id for run in gone}
    undone = [
        call
        for call in first.calls.values()
        if call.phase == "ok"
        and (call.named("run_id") in lost_runs or call.named("job_id") in lost_jobs)
    ]
    again = sum(1 for _ in _twice(first, second))
    return Hole(round(restore.stopped - restore.taken, 1), len(undone), len(gone), again)


def added(one: Figures, other: Figures) -> Figures:
    """The figures of both."""
    return Figures(
        judged=one.judged + other.judged,
        on_time=one.on_time + other.on_time,
        late=one.late + other.late,
        missed=one.missed + other.missed,
        lost=one.lost + other.lost,
        doubled=one.doubled + other.doubled,
        explained=one.explained + other.explained,
        longest_gap=max(one.longest_gap, other.longest_gap),
        max_lateness=max(one.max_lateness, other.max_lateness),
        stale=one.stale + other.stale,
        overlaps=one.overlaps + other.overlaps,
    )


def _within(history: History, first: float, last: float) -> tuple[tuple[float, float], ...]:
    spans = ((max(first, begin), min(last, end)) for begin, end in history.meta.quiet)
    return tuple(span for span in spans if span[0] < span[1])


def _tokens(history: History) -> frozenset[tuple[str, int]]:
    """Return run and token of each dispatch."""
    rows = [*history.initial.get("runs", ())]
    rows += [c.row for each in history.commits for c in each.changes if c.table == "runs"]
    return frozenset((str(row["run_id"]), int(row.get("token") or 0)) for row in rows)


def _living(history: History) -> dict[str, tuple[Row, ...]]:
    """The restored rows that may still change, and no account of what had ended by then."""
    rows = {table: found for table, found in history.restored.items() if table in LIVING}
    runs = history.restored.get("runs", ())
    return {**rows, "runs": tuple(row for row in runs if row["state"] not in TERMINAL)}


def _changed_since(history: History) -> tuple[Row, ...]:
    """The final rows of runs, but for those that had ended when they were restored, and stand as
    they were. (The restored ones have columns that a final one lacks.)
    """
    ended = {
        row["run_id"]: row for row in history.restored.get("runs", ()) if row["state"] in TERMINAL
    }
    return tuple(
        row
        for row in history.database.get("runs", ())
        if row["run_id"] not in ended or not row.items() <= ended[row["run_id"]].items()
    )


def _definitions(history: History) -> Iterator[Definition]:
    """Yield the definitions of restored jobs that were in force, and all that came later."""
    restore = history.restore
    assert restore is not None
    calls = calls_of(history.clients)
    known: dict[str | None, list[tuple[int, Definition]]] = {}
    for definition in sorted(history.jobs, key=lambda each: each.at):
        if definition.at > restore.stopped:
            yield definition
        else:
            call = calls.get(definition.op) if definition.op is not None else None
            given = call.named("generation") if call is not None else None
            one = int(given) if given is not None else definition.generation, definition
            known.setdefault(definition.job_id, []).append(one)
    for row in history.restored.get("jobs", ()):
        generation = int(row["generation"] or 0)
        made = [definition for g, definition in known.get(row["job_id"], ()) if g <= generation]
        if made:
            yield replace(made[-1], generation=generation, op=None, at=restore.horizon)


def _clients(history: History) -> Iterator[ClientEvent]:
    """Yield calls made since, and calls in progress then, whose outcome is unknown."""
    restore = history.restore
    assert restore is not None
    ended = {e.op for e in history.clients if e.phase != "invoke" and e.at <= restore.stopped}
    asked = {e.op for e in history.clients if e.phase == "invoke" and e.at > restore.stopped}
    for event in history.clients:
        if event.op in asked or (event.phase == "invoke" and event.op not in ended):
            yield event


def _from_the_horizon(history: History) -> Iterator[Nemesis]:
    """The restore, as a fault that begins where the second history does."""
    restore = history.restore
    assert restore is not None
    for event in history.nemesis:
        yield replace(event, at=min(event.at, restore.horizon)) if event.phase == "begin" else event


def _grown(first: World, second: World) -> Iterator[Violation]:
    epochs: dict[int, int] = {}
    for shard in (step.after for step in first.shards.steps if step.after):
        epochs[shard.id] = max(shard.epoch, epochs.get(shard.id, 0))
    for step in _later(second.shards):
        taken = step.after
        fresh = taken.owner is not None and taken.owner != (step.before and step.before.owner)
        if fresh and taken.epoch <= epochs.get(taken.id, 0):
            what = f"shard {taken.id} was taken at epoch {taken.epoch} after the restore"
            yield Violation("S3", f"{what}, and {epochs[taken.id]} was before", (step.where,))
    term = max((step.after.term for step in first.terms.steps if step.after), default=0)
    for led in _later(second.terms):
        if led.after != led.before and led.after.term <= term:
            what = f"term {led.after.term} began after the restore, and {term} was before"
            yield Violation("S3", what, (led.where,))
    tokens: dict[str, int] = {}
    for run in (step.after for step in first.runs.steps if step.after):
        tokens[run.job_id] = max(run.token, tokens.get(run.job_id, 0))
    for drawn in _drawn(second):
        greatest = tokens.get(drawn.after.job_id, 0)
        if drawn.after.token <= greatest:
            what = f"run {drawn.after.run_id} got token {drawn.after.token} after the restore"
            yield Violation("S3", f"{what}, and its job had {greatest} before", (drawn.where,))


def _before_resumed(second: World) -> Iterator[Violation]:
    paused = next((s.commit for s in _later(second.cluster) if s.after.paused), None)
    if paused is None:
        yield Violation("S8", "the database went back, and the cluster wasn't paused")
        return
    ends = (s.commit for s in _later(second.cluster) if s.commit > paused and not s.after.paused)
    resumed = next(ends, len(second.history.commits))
    fired = (s for s in _later(second.runs) if s.before is None and s.after.state in FIRED)
    deeds = [("fired", step) for step in fired if step.after.trigger == SCHEDULED]
    deeds += [("dispatched", step) for step in _drawn(second)]
    for deed, step in deeds:
        if step.commit < resumed:
            run = f"run {step.after.run_id} ({clock(step.after.scheduled_at)})"
            what = f"{run} was {deed} before the restored cluster was resumed"
            yield Violation("S8", what, (step.where,))


def _run_again(history: History, first: World, second: World) -> Iterator[Violation]:
    restore = history.restore
    assert restore is not None
    for run, start in _twice(first, second):
        found = second.runs.before(0, run.run_id)
        life = second.lives.by_job.get(run.job_id)
        phase = life.at_generation(run.generation) if life is not None else None
        once = phase is not None and phase.definition.delivery == "at_most_once"
        if not once and run.scheduled and run.scheduled_at >= restore.horizon:
            continue  # as the operator requested
        if found is None or found.state in TERMINAL or once:
            how = "at most once" if once else "though the restored rows don't have it under way"
            what = f"run {run.run_id} ({clock(run.scheduled_at)}) ran before the restore and again"
            state = found.state if found is not None else "not there"
            evidence = (f"restored as: {state}", f"again under token {start.token}")
            yield Violation("S10", f"{what}: {how}", evidence)


def _twice(first: World, second: World) -> Iterator[tuple[Run, ProbeEvent]]:
    """Runs that started before the restore, and the first of their starts after it."""
    for run_id, starts in second.starts.items():
        tokens = {start.token for start in first.starts.get(run_id, ())}
        again = next((start for start in starts if start.token not in tokens), None)
        run = second.run(run_id)
        if tokens and again is not None and run is not None:
            yield run, again


def _drawn(world: World) -> Iterator[Done[Run]]:
    """The commits that handed a run out."""
    for step in _later(world.runs):
        if step.after.token != (step.before.token if step.before is not None else 0):
            yield step


def _later(table: Table[T]) -> Iterator[Done[T]]:
    """The steps of commits; not the rows that stood there before the first, nor deletions."""
    for step in table.steps:
        if step.commit >= 0 and step.after is not None:
            yield Done(step.commit, step.where, step.before, step.after)
