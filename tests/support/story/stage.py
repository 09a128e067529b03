"""The stage: a cluster's members, shards, workers and faults, and its users' calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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

SPACE = UUID(int=7)
META = Meta("leader-kill", 1, BASE, BASE + 250, 3.0, 3.0, failover=6.0, grace=5.0)


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
class Stage:
    """The transactions, probes and calls so far."""

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
        """Add a transaction."""
        self.transactions.append((at, changes))

    def tenure(self, name: str, at: float, *, fenced: float | None = None) -> None:
        """A member joins; and is fenced."""
        row = {"id": name, "member": name.rstrip("'"), "fenced_at": None}
        self.commit(at, insert("tenures", row))
        if fenced is not None:
            self.fence(name, fenced)

    def fence(self, tenure: str, at: float) -> None:
        """A tenure is over."""
        row = {"id": tenure, "member": tenure.rstrip("'"), "fenced_at": stamp(at)}
        self.commit(at, update("tenures", row))

    def term(self, number: int, leader: str, at: float) -> None:
        """A member becomes leader."""
        self.commit(at, update("term", {"one": "true", "term": str(number), "leader": leader}))

    def take(self, shard: int, owner: str | None, at: float, epoch: int | None = None) -> None:
        """A shard gets an owner, under the next epoch."""
        epoch = self.epoch(shard, at) + 1 if epoch is None else epoch
        row = {"id": str(shard), "owner": owner, "epoch": str(epoch), "timeline": "1"}
        line = {"shard": str(shard), "epoch": str(epoch), "tenure": owner}
        seq = {"seq": str(len(self.epochs) + 1)}
        logged = [insert("shard_log", {**seq, **line})] if owner is not None else []
        self.commit(at, update("shards", row), *logged)
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

    def change(
        self,
        job: Job,
        at: float,
        call: str,
        phase: str = "ok",
        *,
        also: Iterable[Change] = (),
        **wanted: Any,
    ) -> None:
        """Edit (`wanted`: what changes in the definition), pause, resume, delete a job; the
        commit writes `also`, too.
        """
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
        timer = gone if call == "delete" else timer
        self.commit(committed, update("jobs", dict(job.row)), timer, *also)

    def history(self) -> History:
        """All of it, as it would have been recorded."""
        ordered = sorted(self.transactions, key=lambda one: one[0])
        commits = tuple(
            Commit(f"0/{number:X}", 700 + number, BASE + at, changes)
            for number, (at, changes) in enumerate(ordered)
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
