"""A history made ready for questions: tables through time, lives of jobs, assignments, starts.

Everything here is read from what was recorded; nothing is decided. Each part is made when it is
first asked for, once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from faults.checker import rows, tables
from faults.checker.assignments import Assignment, assignments_of
from faults.checker.ledger import Due, LedgerRow, dues_at_deletion, dues_of
from faults.checker.lives import Call, Lives, calls_of, lives_of
from faults.checker.tables import Table
from faults.checker.windows import Windows, windows_of
from faults.history import History, ProbeEvent


class World:
    """History, and everything derived from it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.meta = history.meta

    @cached_property
    def windows(self) -> Windows:
        members = {step.after.member for step in self.tenures.steps if step.after}
        workers = {step.after.worker for step in self.incarnations.steps if step.after}
        return windows_of(self.meta, self.history.nemesis, members | workers)

    @cached_property
    def runs(self) -> Table[rows.Run]:
        return tables.build(self.history, "runs", ("run_id",), rows.Run.of)

    @cached_property
    def jobs(self) -> Table[rows.Job]:
        return tables.build(self.history, "jobs", ("job_id",), rows.Job.of)

    @cached_property
    def timers(self) -> Table[rows.Timer]:
        return tables.build(self.history, "timers", ("job_id",), rows.Timer.of)

    @cached_property
    def shards(self) -> Table[rows.Shard]:
        return tables.build(self.history, "shards", ("id",), rows.Shard.of)

    @cached_property
    def takings(self) -> Table[rows.Taking]:
        return tables.build(self.history, "shard_log", ("seq",), rows.Taking.of)

    @cached_property
    def tenures(self) -> Table[rows.Tenure]:
        return tables.build(self.history, "tenures", ("id",), rows.Tenure.of)

    @cached_property
    def terms(self) -> Table[rows.Term]:
        return tables.build(self.history, "term", (), rows.Term.of)

    @cached_property
    def incarnations(self) -> Table[rows.Incarnation]:
        return tables.build(self.history, "incarnations", ("id",), rows.Incarnation.of)

    @cached_property
    def audit(self) -> Table[rows.Audit]:
        return tables.build(self.history, "audit", ("seq",), rows.Audit.of)

    @cached_property
    def cluster(self) -> Table[rows.Cluster]:
        return tables.build(self.history, "cluster", (), rows.Cluster.of)

    @cached_property
    def live(self) -> Table[str]:
        """Run ids of `live`."""
        key = ("shard", "job_id", "run_id")
        return tables.build(self.history, "live", key, lambda row: str(row["run_id"]))

    @cached_property
    def calls(self) -> Mapping[int, Call]:
        return calls_of(self.history.clients)

    @cached_property
    def lives(self) -> Lives:
        return lives_of(self.history.jobs, self.calls, self.jobs, self.timers, self.cluster)

    @cached_property
    def assignments(self) -> Mapping[str, tuple[Assignment, ...]]:
        """By run id, in commit order."""
        return assignments_of(self.runs)

    @cached_property
    def assignments_by_job(self) -> Mapping[str, Sequence[Assignment]]:
        """By job id, those of each run in commit order."""
        found: dict[str, list[Assignment]] = defaultdict(list)
        for held in self.assignments.values():
            for assignment in held:
                found[assignment.job_id].append(assignment)
        return found

    @cached_property
    def starts(self) -> Mapping[str, Sequence[ProbeEvent]]:
        """Starts as the probe jobs wrote them, by run id, in order of time."""
        found: dict[str, list[ProbeEvent]] = defaultdict(list)
        for event in self.history.probes:
            if event.event == "start":
                found[event.run].append(event)
        return found

    @cached_property
    def starts_by_job(self) -> Mapping[str, Sequence[ProbeEvent]]:
        """The same by job id, of the runs that a commit made; in no order."""
        found: dict[str, list[ProbeEvent]] = defaultdict(list)
        for run_id, starts in self.starts.items():
            run = self.run(run_id)
            if run is not None:
                found[run.job_id].extend(starts)
        return found

    @cached_property
    def ends(self) -> Mapping[tuple[str, int], ProbeEvent]:
        """Ends by run id and token; the last one, should there be more."""
        return {(e.run, e.token): e for e in self.history.probes if e.event == "end"}

    @cached_property
    def lost_at(self) -> Mapping[str, float]:
        """Incarnation → the instant of the commit that said it was lost."""
        return {
            step.key[0]: step.at
            for step in self.incarnations.steps
            if step.after is not None
            and step.after.lost
            and not (step.before is not None and step.before.lost)
        }

    @cached_property
    def dues(self) -> Sequence[Due]:
        """Return the instants that every job of the test owes."""
        return dues_of(self.lives.by_job.values(), self.rows_by_job, self.windows)

    @cached_property
    def dues_at_deletion(self) -> Sequence[Due]:
        """Return the due instants of a job before its deletion that no owner was left to
        account for.
        """
        judged = {(due.life.job_id, due.at) for due in self.dues}
        owed = dues_at_deletion(self.lives.by_job.values(), self.rows_by_job, self.windows)
        return [due for due in owed if (due.life.job_id, due.at) not in judged]

    @cached_property
    def rows_by_job(self) -> Mapping[str, Sequence[LedgerRow]]:
        """The rows that the schedule of each job has left, in order of their instants."""
        found: dict[str, list[LedgerRow]] = defaultdict(list)
        for steps in self.runs.rows.values():
            first, last = steps[0].after, steps[-1].after
            if first is not None and last is not None and last.scheduled:
                found[last.job_id].append(LedgerRow(steps[0], first, last, steps[-1]))
        for ledger_row in found.values():
            ledger_row.sort(key=lambda each: each.row.scheduled_at)
        return found

    def assignment(self, run_id: str, token: int) -> Assignment | None:
        """Return the assignment of this run under this token."""
        return next((a for a in self.assignments.get(run_id, ()) if a.token == token), None)

    def writes(self, run: rows.Run) -> bool:
        """Whether this is a run of a probe job, that writes its lines."""
        if run.trigger == rows.SUBMITTED:
            return self.submits_write
        return run.job_id in self.lives.by_job and bool(self.starts)

    @cached_property
    def submits_write(self) -> bool:
        """Whether what users submitted writes lines too."""
        runs = (self.run(run_id) for run_id in self.starts)
        return any(run is not None and run.trigger == rows.SUBMITTED for run in runs)

    def lost_by(self, incarnation: str | None, at: float) -> bool:
        """Whether the worker's lease was seen gone at this instant."""
        return incarnation is not None and self.lost_at.get(incarnation, float("inf")) <= at

    def job_of(self, call: Call) -> str:
        """The id of the job that a call is about, by its name if need be; "" if there is none."""
        named = call.named("job_id")
        if named is not None:
            return named
        name, namespace = call.named("name"), call.named("namespace") or "default"
        known = [
            step.after.job_id
            for step in self.jobs.steps
            if step.before is None
            and step.after is not None
            and (step.after.namespace, step.after.name) == (namespace, name)
            and step.at <= call.until
        ]
        return known[-1] if known else ""

    def run(self, run_id: str) -> rows.Run | None:
        """The run's row at the end."""
        steps = self.runs.of(run_id)
        return steps[-1].after if steps else None
