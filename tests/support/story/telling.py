"""Changes of runs, row by row, on the stage of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from faults.history import (
    Change,
    ProbeEvent,
)
from support.story.rows import BASE, delete, insert, stamp, update
from support.story.stage import Job, Stage
from workerd.core import outcome
from workerd.core.ids import AssignmentKey


@dataclass(slots=True)
class Run:
    """A run of the story; `row` as it stands."""

    id: str
    job: Job
    at: float
    row: dict[str, str | None]
    worker: str = "w1"

    @property
    def token(self) -> int:
        """The newest one."""
        return int(self.row["token"] or 0)


@dataclass(slots=True)
class Story(Stage):
    """A stage with the changes of runs so far."""

    def fire(
        self, at: float, job: Job | None = None, *, on: float | None = None, **row: Any
    ) -> Run:
        """The owner fires an instant, 0.01 s after it or at `on`."""
        on = at + 0.01 if on is None else on
        run = self.new(at, job, **row)
        return self._fire(run, on, row.get("fired_by", self.owner(run.job.shard, on)))

    def fire_running(self, at: float, worker: str = "w1") -> Run:
        """The owner fires an instant and dispatches its run in one commit."""
        run, on = self.new(at), at + 0.01
        self._give(run, on, worker)
        return self._fire(run, on, self.owner(run.job.shard, on))

    def _fire(self, run: Run, on: float, by: str | None) -> Run:
        at, job = run.at, run.job
        run.row["fired_by"] = by
        last = at + (int(run.row["count"] or 1) - 1) * job.every
        timer = dict(job.timer) | {"nominal": stamp(last + job.every)}
        changes = [insert("runs", dict(run.row)), update("timers", timer)]
        if run.row["state"] == "PENDING" or run.token:
            changes.append(insert("live", live_row(run)))
        self.commit(on, *changes)
        return run

    def create_running(self, at: float, trigger: str, worker: str = "w1") -> Run:
        """A member stores a person's run and dispatches it in one commit."""
        run = self.new(at, trigger=trigger)
        self._give(run, at, worker)
        self.commit(at, insert("runs", dict(run.row)), insert("live", live_row(run)))
        return run

    def new(self, at: float, job: Job | None = None, **row: Any) -> Run:
        """A run that no commit has made."""
        job = job or self.jobs["tick"]
        trigger = row.get("trigger", "SCHEDULE")
        run_id = row.get("run_id") or str(uuid5(UUID(job.id), f"{at} {trigger}"))
        values: dict[str, str | None] = {
            "run_id": run_id,
            "job_id": job.id,
            "scheduled_at": stamp(at),
            "scheduled_until": None,
            "due_at": stamp(at),
            "shard": str(job.shard),
            "count": "1",
            "fired_by": None,
            "trigger": "SCHEDULE",
            "state": "PENDING",
            "reason": None,
            "ready_at": stamp(at),
            "token": "0",
            "generation": str(job.generation),
            "attempt": "0",
            "losses": "0",
            "cancelling": "false",
            "worker": None,
            "incarnation": None,
            "assigned_at": None,
            "started_at": None,
            "finished_at": None,
            "exit_code": None,
            "digest": None,
        }
        return Run(run_id, job, at, values | row)

    def merge(self, first: float, last: float, state: str, on: float, **row: Any) -> Run:
        """Add a row for several scheduled times that don't run."""
        span = {"scheduled_until": stamp(last), "count": str(round(last - first) + 1)}
        return self.fire(first, on=on, state=state, **(span | row))

    def assign(self, run: Run, at: float, worker: str = "w1", **row: Any) -> int:
        """The owner hands it out; gives the token."""
        self._give(run, at, worker)
        run.row |= row
        self.commit(at, update("runs", dict(run.row)))
        return int(run.row["token"] or 0)

    def _give(self, run: Run, at: float, worker: str) -> None:
        token = self.epoch(run.job.shard, at) << 32 | round(at * 1000)
        run.worker = worker
        run.row |= {
            "state": "RUNNING",
            "token": str(token),
            "generation": str(run.job.generation),
            "attempt": str(int(run.row["attempt"] or 0) + 1),
            "worker": worker,
            "incarnation": self.incarnations[worker],
            "assigned_at": stamp(at),
            "started_at": None,
            "finished_at": None,
            "exit_code": None,
            "reason": None,
            "digest": None,
        }

    def write(
        self, event: str, run: Run, at: float, code: int | None = None, **fields: Any
    ) -> None:
        """The probe job writes a line."""
        values: dict[str, Any] = {"token": run.token, "worker": run.worker} | fields
        nominal = datetime.fromtimestamp(BASE + run.at, UTC).isoformat()
        attempt = int(run.row["attempt"] or 0)
        line = ProbeEvent(
            event,  # type: ignore[arg-type] # "start" or "end"
            run.id,
            run.job.name,
            nominal,
            BASE + at,
            attempt=attempt,
            exit=code,
            **values,
        )
        self.probes.append(line)

    def accept(self, run: Run, at: float, code: int = 0, **row: Any) -> None:
        """A result is taken in."""
        token = row.pop("made_under", run.token)
        ended = {"state": "FAILED", "reason": "EXIT_CODE"} if code else {"state": "SUCCEEDED"}
        sent = outcome.digest(AssignmentKey(run.id, token), outcome.exited(code, ()))  # type: ignore[arg-type] # NewTypes of these
        run.row |= {
            "finished_at": stamp(at),
            "started_at": run.row["started_at"] or stamp(at - 0.02),
            "exit_code": str(code),
            "digest": f"\\x{sent.hex()}",
            **ended,
            **row,
        }
        self.update_run(run, at)

    def update_run(self, run: Run, at: float, *more: Change, **row: Any) -> None:
        """The run's row changes; it leaves `live` where it has ended."""
        run.row |= row
        changes = [update("runs", dict(run.row)), *more]
        if run.row["state"] not in ("PENDING", "RUNNING", "RETRYING"):
            changes.append(delete("live", live_row(run)))
        self.commit(at, *changes)

    def give_back(self, run: Run, at: float) -> None:
        """Return a run to PENDING: its attempt never started."""
        attempt = str(int(run.row["attempt"] or 0) - 1)
        self.update_run(run, at, state="PENDING", attempt=attempt, started_at=None)

    def rescue(self, run: Run, at: float, *, state: str = "RETRYING") -> None:
        """Its worker is lost."""
        count = {"attempt": str(int(run.row["attempt"] or 0) - 1)}
        losses = {"losses": str(int(run.row["losses"] or 0) + 1)}
        run.row |= count | losses | {"state": state, "reason": "WORKER_LOST"}
        changes = [update("runs", dict(run.row))]
        if state == "FAILED":
            changes.append(delete("live", live_row(run)))
        self.lose(str(run.row["incarnation"]), at, *changes)

    def refuse(self, run: Run, token: int, at: float, sender: str, *more: Change) -> None:
        """Reject a late result as STALE, with a row in the audit log."""
        row = {
            "seq": f"{at:g}",
            "action": "result",
            "object": f"run/{run.id}",
            "outcome": "refused",
            "reason": "STALE",
            "run_id": run.id,
            "token": str(token),
            "worker": sender.split("/", maxsplit=1)[0],
            "source": sender,
        }
        self.commit(at, insert("audit", row), *more)

    def play(
        self,
        run: Run,
        on: float,
        code: int = 0,
        worker: str = "w1",
        lasts: float = 0.02,
        **stored: Any,
    ) -> Run:
        """Dispatch the run at `on`, start it, end it, accept its result: 0.1 s in all. `stored`:
        columns of its row that differ from the sent result.
        """
        self.assign(run, on, worker)
        self.write("start", run, on + 0.02)
        self.write("end", run, on + 0.02 + lasts, code)
        self.accept(run, on + 0.06 + lasts, code, **stored)
        return run

    def tick(self, instants: Iterable[float], job: Job | None = None) -> None:
        """Fire and run these scheduled times without a fault."""
        for at in instants:
            self.play(self.fire(at, job), at + 0.05)


def live_row(run: Run) -> dict[str, str | None]:
    """The run's row in `live`, all of it is key."""
    return {"shard": run.row["shard"], "job_id": run.job.id, "run_id": run.id}
