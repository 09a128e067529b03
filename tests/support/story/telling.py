"""The story itself: a cluster, users, and the lives of runs, told row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from faults.history import (
    Change,
    ClientEvent,
    Commit,
    Definition,
    History,
    Leftovers,
    Meta,
    Nemesis,
    ProbeEvent,
    Resource,
    Schedule,
)
from support.story.rows import BASE, delete, final, insert, stamp, update
from workerd.core import outcome
from workerd.core.ids import Key

SPACE = UUID(int=7)
META = Meta("leader-kill", 1, BASE, BASE + 250, 3.0, 3.0, failover=6.0, grace=5.0)
NEVER_STARTED: Mapping[str, str | None] = {"state": "PENDING", "started_at": None}


@dataclass(slots=True)
class Job:
    """A job of the story; `row` and `timer` as they stand."""

    id: str
    name: str
    shard: int
    row: dict[str, str | None]
    timer: dict[str, str | None]
    every: float
    generation: int = 1


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
class Story:
    """What is told so far."""

    meta: Meta = META
    transactions: list[tuple[float, tuple[Change, ...]]] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    clients: list[ClientEvent] = field(default_factory=list)
    probes: list[ProbeEvent] = field(default_factory=list)
    nemesis: list[Nemesis] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    leftovers: Leftovers | None = field(default_factory=Leftovers)
    epochs: list[tuple[float, int, int]] = field(default_factory=list)
    owners: list[tuple[float, int, str]] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    incarnations: dict[str, str] = field(default_factory=dict)

    # -- the cluster

    def commit(self, at: float, *changes: Change) -> None:
        """One transaction."""
        self.transactions.append((at, changes))

    def tenure(self, name: str, at: float, *, fenced: float | None = None) -> None:
        """A member joins; and is fenced."""
        row = {"id": name, "member": name.rstrip("'"), "fenced_at": None}
        self.commit(at, insert("tenures", row))
        if fenced is not None:
            self.commit(fenced, update("tenures", row | {"fenced_at": stamp(fenced)}))

    def term(self, number: int, leader: str, at: float) -> None:
        """A member becomes leader."""
        self.commit(at, update("term", {"one": "true", "term": str(number), "leader": leader}))

    def take(self, shard: int, owner: str | None, at: float, epoch: int | None = None) -> None:
        """A shard gets an owner, under the next epoch."""
        epoch = self.epoch(shard, at) + 1 if epoch is None else epoch
        row = {"id": str(shard), "owner": owner, "epoch": str(epoch), "timeline": "1"}
        self.commit(at, update("shards", row))
        self.epochs.append((at, shard, epoch))
        self.owners.append((at, shard, owner or ""))

    def epoch(self, shard: int, at: float) -> int:
        """The epoch of a shard at an instant."""
        return max((e for t, s, e in self.epochs if s == shard and t <= at), default=99)

    def owner(self, shard: int, at: float) -> str:
        """Its owner."""
        return max(((t, o) for t, s, o in self.owners if s == shard and t <= at))[1]

    def attach(self, worker: str, at: float, *, lost: float | None = None) -> str:
        """A worker registers an incarnation; gives its id. It may be lost later."""
        incarnation = f"{worker}/{at:g}"
        row = {"id": incarnation, "worker": worker, "lost_at": None}
        self.incarnations[worker] = incarnation
        self.commit(at, insert("incarnations", row))
        if lost is not None:
            self.lose(incarnation, lost)
        return incarnation

    def lose(self, incarnation: str, at: float, *changes: Change) -> None:
        """An incarnation is lost; its runs move on in the same commit."""
        row = {
            "id": incarnation,
            "worker": incarnation.split("/", maxsplit=1)[0],
            "lost_at": stamp(at),
        }
        self.commit(at, update("incarnations", row), *changes)

    def fault(
        self, name: str, target: str, begin: float, healed: float, *, took: bool = True
    ) -> None:
        """The nemesis does something; from then to healing, F and G it isn't quiet."""
        self.meta = replace(self.meta, quiet=tuple(self._quiet_but(begin, healed)))
        number = len({event.id for event in self.nemesis}) + 1
        phases = {"begin": begin, "end": healed - 0.5, "healed": healed}
        if took:
            phases["took_effect"] = begin + 0.1
        for phase, at in phases.items():
            self.nemesis.append(
                Nemesis(BASE + at, number, name, target, phase)  # type: ignore[arg-type] # from the literal above
            )

    def _quiet_but(self, begin: float, healed: float) -> Iterable[tuple[float, float]]:
        again = BASE + healed + self.meta.failover + self.meta.grace + 1
        for first, last in self.meta.quiet:
            spans = ((first, min(last, BASE + begin)), (max(first, again), last))
            yield from (span for span in spans if span[0] < span[1])

    # -- users

    def call(self, call: str, at: float, phase: str = "ok", **about: Any) -> int:
        """A call of 0.1 s; `answer` in `about` is its answer. Gives its number."""
        op = len(self.clients) + 1
        answer = about.pop("answer", None)
        self.clients.append(ClientEvent(op, "invoke", BASE + at, call, about))
        end = ClientEvent(op, phase, BASE + at + 0.1, call, answer=answer)  # type: ignore[arg-type] # "ok", "fail", "unknown"
        self.clients.append(end)
        return op

    def job(self, name: str, at: float = 0.2, *, shard: int = 0, **wanted: Any) -> Job:
        """A user makes a job (each second); `wanted` are fields of its definition."""
        every = wanted.pop("every", 1.0)
        job_id = str(uuid5(SPACE, f"{name} {at}"))
        about = {"name": name, "namespace": "default"}
        op = self.call("create", at, answer={"job_id": job_id, "generation": 1}, **about)
        schedule = wanted.pop("schedule", Schedule(every=every))
        self.definitions.append(
            Definition(BASE + at, job_id, "default", name, 1, schedule, op=op, **wanted)
        )
        row: dict[str, str | None] = {
            "job_id": job_id,
            **about,
            "shard": str(shard),
            "generation": "1",
            "spec": "\\x01",
            "ephemeral": "false",
            "paused_at": None,
            "deleted_at": None,
        }
        timer: dict[str, str | None] = {
            "job_id": job_id,
            "shard": str(shard),
            "nominal": stamp(at + 1),
            "generation": "1",
            "paused": "false",
        }
        self.commit(at + 0.05, insert("jobs", dict(row)), insert("timers", dict(timer)))
        job = self.jobs[name] = Job(job_id, name, shard, row, timer, every)
        return job

    def change(self, job: Job, at: float, call: str, phase: str = "ok", **wanted: Any) -> None:
        """Edit (`wanted`: what changes in the definition), pause, resume, delete a job."""
        job.generation += 1
        generation = str(job.generation)
        answer = {"job_id": job.id, "generation": job.generation} if phase == "ok" else None
        op = self.call(call, at, phase, job_id=job.id, answer=answer)
        committed = at + 0.05
        job.row |= {"generation": generation}
        job.timer |= {"generation": generation}
        if call == "edit":
            job.row["spec"] = f"\\x{job.generation:02x}"
            last = [each for each in self.definitions if each.job_id == job.id][-1]
            new = replace(last, at=BASE + at, generation=job.generation, op=op, **wanted)
            self.definitions.append(new)
        elif call == "delete":
            job.row["deleted_at"] = stamp(committed)
        else:
            job.row["paused_at"] = stamp(committed) if call == "pause" else None
            job.timer["paused"] = "true" if call == "pause" else "false"
        job.timer["nominal"] = stamp(int(committed) + 1)
        timer = update("timers", dict(job.timer))
        gone = delete("timers", {"job_id": job.id})
        self.commit(committed, update("jobs", dict(job.row)), gone if call == "delete" else timer)

    # -- runs

    def fire(
        self, at: float, job: Job | None = None, *, on: float | None = None, **row: Any
    ) -> Run:
        """The owner fires an instant, 0.01 s after it or at `on`."""
        run = self.new(at, job, **row)
        on = at + 0.01 if on is None else on
        job = run.job
        run.row["fired_by"] = row.get("fired_by", self.owner(job.shard, on))
        timer = dict(job.timer) | {"nominal": stamp(at + job.every)}
        changes = [insert("runs", dict(run.row)), update("timers", timer)]
        if run.row["state"] == "PENDING":
            changes.append(insert("live", live_row(run)))
        self.commit(on, *changes)
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

    def fold(self, first: float, last: float, state: str, on: float, **row: Any) -> Run:
        """One row for several instants that don't run."""
        span = {"scheduled_until": stamp(last), "count": str(round(last - first) + 1)}
        return self.fire(first, on=on, state=state, **(span | row))

    def assign(self, run: Run, at: float, worker: str = "w1", **row: Any) -> int:
        """The owner hands it out; gives the token."""
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
        } | row
        self.commit(at, update("runs", dict(run.row)))
        return int(run.row["token"] or 0)

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
        sent = outcome.digest(Key(run.id, token), outcome.exited(code, ()))  # type: ignore[arg-type] # NewTypes of these
        run.row |= {
            "finished_at": stamp(at),
            "started_at": run.row["started_at"] or stamp(at - 0.02),
            "exit_code": str(code),
            "digest": f"\\x{sent.hex()}",
            **ended,
            **row,
        }
        self.settle(run, at)

    def settle(self, run: Run, at: float, *more: Change, **row: Any) -> None:
        """The run's row changes; it leaves `live` where it has ended."""
        run.row |= row
        changes = [update("runs", dict(run.row)), *more]
        if run.row["state"] not in ("PENDING", "RUNNING", "RETRYING"):
            changes.append(delete("live", live_row(run)))
        self.commit(at, *changes)

    def give_back(self, run: Run, at: float) -> None:
        """It is said to have never started."""
        attempt = str(int(run.row["attempt"] or 0) - 1)
        self.settle(run, at, state="PENDING", attempt=attempt, started_at=None)

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
        """A late result is told STALE, and audited."""
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
        self, run: Run, on: float, code: int = 0, worker: str = "w1", lasts: float = 0.02
    ) -> Run:
        """Handed out at `on`, started, ended, accepted: 0.1 s in all."""
        self.assign(run, on, worker)
        self.write("start", run, on + 0.02)
        self.write("end", run, on + 0.02 + lasts, code)
        self.accept(run, on + 0.06 + lasts, code)
        return run

    def tick(self, instants: Iterable[float], job: Job | None = None) -> None:
        """These instants fire and run as they should."""
        for at in instants:
            self.play(self.fire(at, job), at + 0.05)

    # -- the end

    def history(self) -> History:
        """All of it, as it would have been recorded."""
        told = sorted(self.transactions, key=lambda one: one[0])
        commits = tuple(
            Commit(f"0/{number:X}", 700 + number, BASE + at, changes)
            for number, (at, changes) in enumerate(told)
        )
        return History(
            self.meta,
            jobs=tuple(self.definitions),
            clients=tuple(sorted(self.clients, key=lambda event: event.at)),
            probes=tuple(sorted(self.probes, key=lambda event: event.at)),
            nemesis=tuple(sorted(self.nemesis, key=lambda event: event.at)),
            commits=commits,
            database={"runs": tuple(final(commits, "runs"))},
            resources=tuple(self.resources),
            leftovers=self.leftovers,
        )


def live_row(run: Run) -> dict[str, str | None]:
    """The run's row in `live`, all of it is key."""
    return {"shard": run.row["shard"], "job_id": run.job.id, "run_id": run.id}
