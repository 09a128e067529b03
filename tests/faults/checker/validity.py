"""N1: a run of the test counts only where it could have failed. Else it is INCONCLUSIVE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from faults.checker.resources import by_process
from faults.checker.tables import clock
from faults.checker.verdict import Violation
from faults.checker.windows import CLOCK_BOUND, Fault
from faults.checker.world import World

NO_FAULTS = "no faults"
"""A scenario whose name begins so means to have no fault."""
ENOUGH_INSTANTS = 200
ENOUGH_IN_WINDOW = 20
ENOUGH_OK = 0.9
SHOWN = 10


def n1(world: World) -> Iterator[Violation]:
    """The nemesis took effect, quiet calls were ok, enough was judged, the record is whole."""
    yield from _whole(world)
    judged = len(world.dues)
    if judged < ENOUGH_INSTANTS:
        yield _doubt(f"{judged} instants were judged, {ENOUGH_INSTANTS} are needed")
    if world.meta.legs:
        yield from _clock_followed(world)
    elif not world.windows.faults and not world.meta.scenario.startswith(NO_FAULTS):
        yield _doubt("no fault is recorded, and the scenario's name doesn't begin with `no faults`")
    for fault in world.windows.faults:
        yield from _felt(world, fault)
    yield from _quiet_calls(world)


def _felt(world: World, fault: Fault) -> Iterator[Violation]:
    name = f"{fault.name} of {fault.target} (id {fault.id})"
    if fault.took_effect is None:
        yield _doubt(f"{name} did not verifiably take effect", f"begun {clock(fault.begin)}")
        return
    count = sum(1 for due in world.dues if fault.begin <= due.at <= fault.healed)
    if count < ENOUGH_IN_WINDOW:
        yield _doubt(
            f"{count} instants fell into {name}, {ENOUGH_IN_WINDOW} are needed",
            f"from {clock(fault.begin)} to {clock(fault.healed)}",
        )


def _clock_followed(world: World) -> Iterator[Violation]:
    """Whether the database dated its commits by the clock that the test moved."""
    began, ended = world.meta.began - CLOCK_BOUND, world.meta.ended + CLOCK_BOUND
    astray = [commit for commit in world.history.commits if not began <= commit.at <= ended]
    if astray:
        yield _doubt(
            f"{len(astray)} commits are dated before or after the run: the clock that was moved"
            " isn't the database's",
            *(f"lsn {commit.lsn} at {clock(commit.at)}" for commit in astray[:SHOWN]),
        )


def _quiet_calls(world: World) -> Iterator[Violation]:
    quiet = [
        call
        for call in world.calls.values()
        if world.windows.quiet(call.invoked.at, call.invoked.at)
    ]
    counts = Counter(call.phase for call in quiet)
    if not quiet:
        yield _doubt("no user's call was made in a quiet time")
    elif counts["ok"] < ENOUGH_OK * len(quiet):
        yield _doubt(
            f"{counts['ok']} of {len(quiet)} calls in quiet times were ok",
            *(f"op {c.op}: {c.call} {c.phase}" for c in quiet if c.phase != "ok"),
        )


def _whole(world: World) -> Iterator[Violation]:
    """Whether all was recorded that the checks stand on."""
    history = world.history
    for damaged in history.damaged[:SHOWN]:
        yield _doubt(f"line {damaged.line} of {damaged.file} can't be read", damaged.why)
    if not history.commits:
        yield _doubt("no commit is recorded")
    if not world.starts:
        yield _doubt("no probe job has written a line")
    yield from _lines(world)
    if history.leftovers is None:
        yield _doubt("leftovers were not checked")
    if not by_process(world, "before").keys() & by_process(world, "after").keys():
        yield _doubt("no process's resources are known both before and after")
    runs = (step for step in world.runs.steps if step.commit >= 0)
    fired = (step for step in runs if step.after and step.after.fired_by)
    unowned = {
        step.after.shard
        for step in fired
        if step.after and world.shards.before(step.commit, str(step.after.shard)) is None
    }
    if unowned:
        yield _doubt(f"who owned {len(unowned)} shards at first is not recorded", f"{unowned}")
    headless = [s for s in world.runs.steps if s.before is None and s.op != "insert"]
    if headless:
        where = (f"run {step.key[0]} in {step.where}" for step in headless[:SHOWN])
        yield _doubt(f"{len(headless)} commits change runs that no commit has made", *where)
    committed = {key[0] for key in world.runs.rows}
    kept = history.database.get("runs")
    if kept is None:
        yield _doubt("the final rows of runs are not recorded")
        return
    unseen = [str(row["run_id"]) for row in kept if row["run_id"] not in committed]
    if unseen:
        yield _doubt(f"{len(unseen)} final rows of runs were in no commit", *unseen[:SHOWN])
    lives = {"tenures": set(world.tenures.rows), "incarnations": set(world.incarnations.rows)}
    for table, rows in lives.items():
        unknown = [str(r["id"]) for r in history.database.get(table, ()) if (r["id"],) not in rows]
        if unknown:
            yield _doubt(f"{len(unknown)} rows of {table} were in no commit", *unknown[:SHOWN])


def _lines(world: World) -> Iterator[Violation]:
    """A line of an end has its line of a start, before it."""
    begun = {(start.run, start.token): start for s in world.starts.values() for start in s[::-1]}
    for (run_id, token), end in world.ends.items():
        start = begun.get((run_id, token))
        if start is None or start.at > end.at:
            wrong = "has no start" if start is None else "comes before its start"
            yield _doubt(f"the end of run {run_id} under token {token} {wrong}", f"{end}")


def _doubt(what: str, *evidence: str) -> Violation:
    return Violation("N1", what, evidence)
