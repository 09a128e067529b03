"""L1, L2: every due instant is accounted for, and what fired ran, each in its window."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from faults import oracle
from faults.checker.instants import describe, wrote
from faults.checker.ledger import Due, LedgerRow
from faults.checker.lives import Deletion
from faults.checker.overlap import limit_of
from faults.checker.rows import NEVER_RAN, ticks
from faults.checker.tables import clock
from faults.checker.verdict import Violation
from faults.checker.windows import CLOCK_BOUND, ON_TIME
from faults.checker.world import World
from faults.history import Definition

NEVER = float("inf")
EDIT_SLACK = 1.5
"""Seconds before an edit or pause asked for within which an instant may fall to it unfired."""
WAITS_LONG = 3.0
"""Seconds for which a run waits before newer ones of its job are skipped, under overlap SKIP."""
SEEN_AFTER = 0.1
"""Seconds from a commit's record to its being seen, at most. PostgreSQL writes and flushes a commit
before it shows it, so of two close together, without a lock in common, the later may be seen first.
"""


def l1(world: World) -> Iterator[Violation]:
    """Due instants = fired + missed(reason) + skipped(policy) + coalesced(into); quiet: fired.

    What didn't fire is written down within the window in which it would have had to.
    """
    for due in world.dues:
        if not due.rows:
            quiet = ", in a quiet time" if due.in_time else ""
            what = f"{due.name} at {clock(due.at)} stands in no row{quiet}"
            yield Violation("L1", what, _around(world, due))
        for ledger_row in due.rows[:1]:
            why = _unjustified(world, due, ledger_row)
            if why is not None:
                what = f"{due.name} at {clock(due.at)}: {why}"
                yield Violation(
                    "L1", what, (describe(ledger_row), f"ended by {ledger_row.ended.where}")
                )
    yield from _deleted(world)


def _deleted(world: World) -> Iterator[Violation]:
    """Check the due times before a deletion: each has a row, with the reason of the deletion."""
    for due in world.dues_at_deletion:
        assert due.life.deletion is not None, "it is owed by a deletion"
        where = f"{due.name} at {clock(due.at)}"
        gone = f"deleted at {clock(due.life.deletion.at)}"
        if not due.rows:
            what = f"{where} stands in no row, and its job was {gone}"
            yield Violation("L1", what, _around(world, due))
        for ledger_row in due.rows[:1]:
            why = _by_deletion(due, due.life.deletion, ledger_row)
            if why is not None:
                what = f"{where}: {why}, and its job was {gone}"
                yield Violation("L1", what, (describe(ledger_row),))


def l2(world: World) -> Iterator[Violation]:
    """Each fired instant has a distinct finished run started in its window: by id, and by time."""
    owed: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for due in world.dues:
        deadline = owes_start(world, due)
        if deadline is None:
            continue
        owed[due.name].append((due.at, deadline))
        yield from _by_id(world, due, due.rows[0], deadline)
    starts = _starts_by_name(world)
    for job, wanted in owed.items():
        yield from _by_time(job, sorted(wanted), starts.get(job, ()))


def owes_start(world: World, due: Due) -> float | None:
    """By when a run must have started for this instant; None: none need have."""
    if not due.rows:
        return None
    row = due.rows[0].row
    phase = due.life.at_generation(row.generation)
    if row.state in NEVER_RAN or phase is None or row.state == "CANCELLED":
        return None
    definition = phase.definition
    if row.reason == "TOO_MANY_LOSSES" or (
        row.reason == "WORKER_LOST" and definition.delivery == "at_most_once"
    ):
        return None
    deadline = due.deadline
    pause = due.life.paused(due.at, deadline)
    if pause is not None:
        deadline = max(deadline, pause.resumed + world.windows.timeout)
    if _waits_for_others(definition):
        deadline = NEVER
    if row.ended or deadline < world.meta.ended:
        return deadline
    return None


def started(world: World, due: Due) -> float | None:
    """When the run of this instant first started, by its own line."""
    starts = world.starts.get(due.rows[0].row.run_id, ()) if due.rows else ()
    return starts[0].at if starts else None


def _by_id(world: World, due: Due, ledger_row: LedgerRow, deadline: float) -> Iterator[Violation]:
    row = ledger_row.row
    starts = world.starts.get(row.run_id, ())
    where = f"{due.name} at {clock(due.at)}"
    if not starts:
        yield Violation("L2", f"{where} fired and never started", (describe(ledger_row),))
        return
    for start in starts:
        if ticks(start.instant) != ticks(row.scheduled_at):
            what = f"{where} was given the scheduled time {start.nominal}"
            yield Violation("L2", what, (wrote(start), describe(ledger_row)))
    late = starts[0].at - deadline
    if late > 0:
        kind = "quiet" if due.in_time else "the fault's"
        yield Violation(
            "L2",
            f"{where} started {starts[0].at - due.at:.3f} s late, {late:.3f} s out of"
            f" {kind} window",
            (
                f"deadline {clock(deadline)}",
                wrote(starts[0]),
                describe(ledger_row),
                *_stood_still(world, due.at, starts[0].at),
            ),
        )
    end = None if row.ended else world.ends.get((row.run_id, row.token))
    if end is not None and world.meta.ended - end.at > world.windows.timeout:
        what = f"{where} ran to its end, and its row is still {row.state}"
        yield Violation("L2", what, (describe(ledger_row), f"ended {clock(end.at)}"))


def _by_time(
    job: str, owed: Sequence[tuple[float, float]], starts: Sequence[float]
) -> Iterator[Violation]:
    """Blindly: each start serves the open instant whose deadline is nearest."""
    waiting: list[tuple[float, float]] = []
    unserved: list[float] = []
    place = 0
    for at in (*starts, NEVER):
        while place < len(owed) and owed[place][0] - CLOCK_BOUND <= at:
            heapq.heappush(waiting, (owed[place][1], owed[place][0]))
            place += 1
        while waiting and (waiting[0][0] < at or at == NEVER):
            unserved.append(heapq.heappop(waiting)[1])
        if waiting:
            heapq.heappop(waiting)
    if unserved:
        yield Violation(
            "L2",
            f"{job}: by time alone {len(unserved)} of {len(owed)} instants were not served",
            tuple(f"due {clock(at)}" for at in sorted(unserved)[:10]),
        )


def _stood_still(world: World, since: float, until: float) -> Iterator[str]:
    """Return the machine's own stalls in this time, as a possible cause."""
    for stall in world.history.stalls:
        if stall.at >= since and stall.at - stall.late <= until:
            yield f"the machine stood still for {stall.late:g} s until {clock(stall.at)}"


def _starts_by_name(world: World) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for event in world.history.probes:
        if event.event == "start":
            found[event.job].append(event.at)
    return found


def _waits_for_others(definition: Definition) -> bool:
    policy = definition.overlap
    return policy.startswith(("buffer", "cancel", "terminate", "allow:"))


def _around(world: World, due: Due) -> tuple[str, ...]:
    """The rows nearest to an instant that has none."""
    rows = world.rows_by_job.get(due.life.job_id, ())
    before = [each for each in rows if each.row.scheduled_at < due.at][-1:]
    behind = [each for each in rows if each.row.scheduled_at > due.at][:1]
    return tuple(describe(ledger_row) for ledger_row in before + behind)


def _unjustified(world: World, due: Due, ledger_row: LedgerRow) -> str | None:
    """Why the row may not account for the instant so; None: it may."""
    row = ledger_row.row
    if ledger_row.ran:
        return _unwanted(world, due, ledger_row)
    phase = due.life.at_generation(ledger_row.first.generation)
    policy = phase.definition.catch_up if phase else "latest"
    if row.reason in ("EDITED", "PAUSED"):
        return _by_control(due, ledger_row, row.reason)
    if row.state == "SKIPPED" and row.reason == "OVERLAP":
        return _by_overlap(world, ledger_row, phase.definition if phase else None)
    if row.state == "SKIPPED" and row.reason == "BUFFER_FULL":
        buffers = phase is not None and phase.definition.overlap.startswith("buffer")
        return None if buffers else "SKIPPED (BUFFER_FULL), and its job has no buffer"
    outcome = f"{row.state} ({row.reason})" if row.reason else row.state
    if due.in_time:
        return f"{outcome} in a quiet time"
    late = _accounted_late(due, ledger_row)
    if late is not None:
        return f"{outcome} {late}"
    if row.state == "COALESCED" and policy == "latest":
        return _into(world, due, ledger_row)
    age = ledger_row.inserted.at - due.at
    justified = {
        ("MISSED", "CATCH_UP_NONE"): policy == "none",
        ("MISSED", "WINDOW"): phase is not None and age > phase.definition.window - ON_TIME,
    }
    if justified.get((row.state, row.reason or ""), False):
        return None
    return f"{outcome} is not what catch_up {policy} may do"


def _accounted_late(due: Due, ledger_row: LedgerRow) -> str | None:
    """Return how late the row was written, if it was written after the window of its instant."""
    at = ledger_row.inserted.at
    if at <= due.deadline or due.life.paused(due.at, due.deadline) is not None:
        return None
    return f"was written {at - due.at:.1f} s late, {at - due.deadline:.1f} s out of its window"


def _unwanted(world: World, due: Due, ledger_row: LedgerRow) -> str | None:
    """Return why the cancellation is unjustified: no caller asked for it. None: it is justified."""
    row = ledger_row.row
    if row.state != "CANCELLED":
        return None
    at = ledger_row.ended.at
    asked = {
        "DELETED": due.life.stopped <= at,
        "BY_USER": any(
            call.call == "cancel" and call.phase != "fail" and call.named("run_id") == row.run_id
            for call in world.calls.values()
        ),
        "BY_OVERLAP": any(
            each.definition.overlap.startswith(("cancel", "terminate")) for each in due.life.phases
        ),
    }
    return None if asked.get(row.reason or "") else f"CANCELLED ({row.reason}), and no caller asked"


def _by_control(due: Due, ledger_row: LedgerRow, reason: str) -> str | None:
    at = ledger_row.ended.at
    if reason == "PAUSED":
        pauses = [p for p in due.life.pauses if p.committed <= at]
        touching = [p for p in pauses if not due.in_time or due.at >= p.committed - EDIT_SLACK]
        return None if any(p.resumed >= due.at for p in touching) else "PAUSED, and no pause was on"
    edits = [phase.invoked for phase in due.life.phases[1:] if phase.invoked <= at]
    if any(not due.in_time or due.at >= invoked - EDIT_SLACK for invoked in edits):
        return None
    return "EDITED, and nothing had been edited"


def _by_deletion(due: Due, deletion: Deletion, ledger_row: LedgerRow) -> str | None:
    """Why the row may not account for what a deletion found; None: it may."""
    row = ledger_row.row
    if due.at < deletion.left or ledger_row.ran:
        return None
    paused = due.life.paused(due.at, deletion.at) is not None
    outcome = (row.state, row.reason)
    if outcome == ("MISSED", "DELETED") or (outcome == ("SKIPPED", "PAUSED") and paused):
        late = ledger_row.inserted.commit != deletion.commit
        return "was written by another commit than the deletion's" if late else None
    return f"{row.state} ({row.reason})"


def _by_overlap(world: World, ledger_row: LedgerRow, definition: Definition | None) -> str | None:
    """A skip for overlap needs another run that was admitted after it was inserted.

    The statement that skips sees the rows as they stand when it begins, and that lies between the
    two commits of this row; what others commit before it does comes too late for its eyes, and what
    they committed shortly before the first may.
    """
    if definition is not None and limit_of(definition.overlap) is None:
        return f"SKIPPED (OVERLAP) under overlap {definition.overlap}"
    row, commit = ledger_row.row, ledger_row.ended.commit
    for held in world.assignments_by_job.get(row.job_id, ()):
        if held.run_id == row.run_id or held.begun.commit > commit:
            continue
        steps = world.runs.of(held.run_id)
        states = [world.runs.before(ledger_row.inserted.commit, held.run_id)]
        states += [s.after for s in steps if ledger_row.inserted.commit <= s.commit <= commit]
        states += [
            s.before
            for s in steps
            if s.commit < ledger_row.inserted.commit and s.at > ledger_row.inserted.at - SEEN_AFTER
        ]
        if any(run is not None and run.admitted for run in states):
            return None
    if _waited_long(world, ledger_row):
        return None
    return "SKIPPED (OVERLAP), and no other run of the job was under way or waited for long"


def _waited_long(world: World, ledger_row: LedgerRow) -> bool:
    """Whether an older run of the job had waited for long when this one was skipped, and was
    assigned afterwards.
    """
    row, ended = ledger_row.row, ledger_row.ended
    for held in world.assignments_by_job.get(row.job_id, ()):
        if held.run_id == row.run_id or held.begun.commit <= ended.commit:
            continue
        run = world.runs.before(ended.commit, held.run_id)
        if run is None or run.admitted or run.ready_at is None or run.due_at > row.due_at:
            continue
        if run.ready_at <= ended.at - WAITS_LONG + SEEN_AFTER:
            return True
    return False


def _into(world: World, due: Due, ledger_row: LedgerRow) -> str | None:
    """Return why no fired instant comes right after the coalesced ones; None: one does."""
    row = ledger_row.first
    phase = due.life.at_generation(row.generation)
    last = row.scheduled_until or row.scheduled_at
    if phase is None:
        return None
    later = (each for each in world.rows_by_job[due.life.job_id] if each.row.scheduled_at > last)
    into = next(later, None)
    if into is not None and (into.fired or into.first.state == "COALESCED"):
        between = oracle.due(
            phase.definition.schedule, last + oracle.HALF, into.row.scheduled_at - oracle.HALF
        )
        if not between:
            return None
    return "COALESCED into nothing that fired"
