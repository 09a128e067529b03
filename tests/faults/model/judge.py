"""The invariants of the model, judged as a checker of a real run could: at each commit, in commit
order, before the rows change; at each physical start; at each answer that a process relies on.

What a lost tail of PostgreSQL un-acknowledges is forgotten with it (`promises`). Tokens, epochs and
terms grow across restores, and what was started stays started; a tolerated tail forgives only that
what changed in it runs again.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

from faults.model import turns
from faults.model.cycles import Cycles
from faults.model.etcd import Etcd
from faults.model.holds import Cluster
from faults.model.promises import Broken, Job, Promises, Span
from faults.model.rows import (
    LIVE,
    WAITING,
    Claim,
    Database,
    Incarnation,
    IncarnationId,
    JobId,
    Run,
    RunId,
    Shard,
    Timer,
    Transaction,
)
from faults.model.timing import AGAIN, HORIZON, TRIGGERED, due_at, instant

Executing = Callable[[RunId], Iterable[tuple[int, IncarnationId]]]
"""The physical executions of a run: token, and the incarnation it was given to."""


class Judge:
    """Raises Broken. `seen` counts what there was to judge."""

    def __init__(
        self,
        database: Database,
        etcd: Etcd,
        jobs: dict[JobId, Job],
        executing: Executing,
        *,
        chained: bool,
    ) -> None:
        self.promises = Promises()
        self.seen: Counter[str] = Counter()
        self._database = database
        self._etcd = etcd
        self._jobs = jobs
        self._executing = executing
        self._tokens: Counter[JobId] = Counter()
        self._epochs: Counter[int] = Counter()
        self._written: Counter[int] = Counter()
        self._term = 0
        self._chained = chained
        self._cycles = Cycles()
        self._starts: set[tuple[RunId, int]] = set()
        self._lost_tail: set[int] = set()
        self._order: list[int] = []
        self._made: dict[RunId, int] = {}
        self._unknown: set[int] = set()
        """Tokens that a database gave out which was lost by more than a tail."""
        self.marks: list[int] = []
        self.note: Callable[[str], None] = lambda _: None

    # -- restores of PostgreSQL --

    def snapshot(self) -> Promises:
        """Copy the promises on the rows of this moment."""
        return copy.deepcopy(self.promises)

    def lost_tail(self, promises: Promises, changed: set[RunId]) -> None:
        """The rows went back a little, to where these were made: the runs that `changed` since may
        run again, whatever they are.
        """
        self.note("PostgreSQL restarted without the changes of the last seconds")
        started = self.promises.started
        self._back_to(promises)
        for key in changed:
            started.pop(key, None)
        self.promises.started = started

    def went_back(self, promises: Promises, to: int) -> None:
        """The rows went back far, to where these were made: what was started stays started, and
        nothing happens before a person resumes it.
        """
        self.seen["went back"] += 1
        self.note(f"PostgreSQL was restored to time {to}")
        self._unknown.update(self._order[promises.tokens :])
        started, held = self.promises.started, promises.held
        self._back_to(promises)
        self.promises.started = started
        self.promises.held = to if held is None else min(to, held)

    def _back_to(self, promises: Promises) -> None:
        self._lost_tail.update(self._order[promises.tokens :])
        self.promises = copy.deepcopy(promises)

    def alarms(self, remembered: int) -> None:
        """A leader finds that the database lost this mark."""
        if remembered not in self.marks:
            raise Broken("R1", f"a loss is reported by mark {remembered}, which no database had")

    # -- commits --

    def committed(self, transaction: Transaction) -> None:
        """This is about to change the rows."""
        if transaction.claim is not None and transaction.writes:
            self._owner(transaction.claim)
        rows = self._database
        self._counted(transaction)
        for (name, key), (table, new) in transaction.writes.items():
            old = table.get(key)
            if name == rows.runs.name:
                self._run(transaction, cast("RunId", key), old, new)
            elif name == rows.shards.name:
                self._shard(cast("int", key), cast("Shard", old), new)
            elif name == rows.timers.name:
                self._timer(cast("JobId", key), old, new)
            elif name == rows.incarnations.name:
                self._lost(transaction, cast("IncarnationId", key), old, new)
            elif name == rows.terms.name:
                self._raised(new.term)
            elif name == rows.cluster.name:
                self._cluster(transaction, old, new)

    def _counted(self, transaction: Transaction) -> None:
        """Whether the timers that it writes count the runs that are there."""
        for name, key in transaction.writes:
            most = self._jobs[key].max_runs if name == self._database.timers.name else 0
            if most and (why := turns.wrong(self._database, transaction, key, most)):
                raise Broken("S5", f"job {key}: {why}")

    def _owner(self, claim: Claim) -> None:
        shard, epoch = claim.shard, claim.epoch
        if epoch < self._written[shard]:
            raise Broken(
                "S4",
                f"shard {shard}: a write of epoch {epoch} after epoch {self._written[shard]}",
            )
        self._written[shard] = epoch
        owner = self._database.shards[shard].owner
        if owner is not None and owner != claim.tenure and self._may_own(owner):
            raise Broken(
                "S13", f"shard {shard}: tenure {claim.tenure} writes, but the owner is {owner}"
            )

    def _lost(
        self,
        transaction: Transaction,
        key: IncarnationId,
        old: Incarnation | None,
        new: Incarnation,
    ) -> None:
        if transaction.claim is None or not new.lost or (old is not None and old.lost):
            return
        self.seen["losses"] += 1
        if self._etcd.holds(key, self._database.now) and key not in self._etcd.excused:
            raise Broken("S10", f"{key} is stored as lost while its lease is valid")

    def _raised(self, term: int) -> None:
        if term <= self._term:
            raise Broken("S3", f"term {term} isn't greater than the earlier term {self._term}")
        self._term = term

    def _cluster(self, transaction: Transaction, old: Cluster, new: Cluster) -> None:
        if new.mark != old.mark:
            self.marks.append(new.mark)
        if new.switched != old.switched and new.paused:  # whom it writes off lives, and runs on
            lost = self._database.incarnations.name
            self._etcd.excused.update(key for name, key in transaction.writes if name == lost)
        if not old.paused or new.paused:
            return
        self.seen["resumed"] += 1
        held, self.promises.held = self.promises.held, None
        last = new.holds[-1]
        until = last.ended if last.since is None else last.since - 1
        if held is not None and until is not None:
            self.promises.left_out.append((held, until))

    def _may_own(self, tenure: int) -> bool:
        row = self._database.tenures.get(tenure)
        return row is not None and not row.fenced

    def _shard(self, shard: int, old: Shard, new: Shard) -> None:
        if new.epoch != old.epoch:
            self.seen["epochs"] += 1
            if new.epoch <= self._epochs[shard]:
                raise Broken(
                    "S3", f"shard {shard}: epoch {new.epoch} after epoch {self._epochs[shard]}"
                )
            self._epochs[shard] = new.epoch
        if None not in (old.owner, new.owner) and old.owner != new.owner:
            self.seen["takeovers"] += 1
            if old.owner is not None and self._may_own(old.owner):
                raise Broken("S13", f"shard {shard} has two owners: {old.owner} and {new.owner}")

    def _timer(self, job: JobId, old: Timer | None, new: Timer | None) -> None:
        if old is None or new is None:
            return
        promises, now = self.promises, self._database.now
        at = old.generation, new.changed_at
        _spans(promises.pauses[job], *at, old.paused, new.paused)
        _spans(promises.thinned[job], *at, old.thin, new.thin)
        for run in promises.edited_early:
            if run[0] == job and not new.thin and instant(run[1]) > now:
                raise Broken(
                    "L1",
                    f"{run} was skipped by an edit, but its scheduled time was restored before it",
                )
        if not old.paused or new.paused:
            return
        for run in self.promises.skipped_early:
            if run[0] == job and instant(run[1]) > self._database.now:
                raise Broken(
                    "L1", f"{run} was skipped by a pause that ended before the run was due"
                )

    def _run(self, transaction: Transaction, key: RunId, old: Run | None, new: Run) -> None:
        timer = transaction.get(self._database.timers, key[0])
        if ("runs", key) in transaction.inserts:
            self._inserted(transaction, key, new)
        elif old is not None and old.state not in LIVE and new.state != old.state:
            raise Broken("S12", f"{key} changed from the final state {old.state} to {new.state}")
        before = (old.state, old.token) if old else ("", 0)
        if timer is None and new.state in WAITING and new.state != before[0]:
            raise Broken("L4", f"{key} of a deleted job waits forever")
        if new.token != before[1] and new.token:
            self._issued(transaction, key, old, new)
        if old is not None and len(new.results) > len(old.results):
            self._accepted(key, new)
        if new.state == "SKIPPED" and before[0] and instant(key[1]) > self._database.now:
            timer_now = self._database.timers.get(key[0])
            if timer_now and timer and new.token == 0 and timer_now.generation != timer.generation:
                self.promises.skipped_early.add(key)
        if old is not None and new.state == "SKIPPED" != old.state:
            self._skipped(transaction, key, new.why)

    def _skipped(self, transaction: Transaction, key: RunId, why: str) -> None:
        rows, now = self._database, self._database.now
        if why == "EDITED":
            self.seen["edited away"] += 1
            if instant(key[1]) > now:
                self.promises.edited_early.add(key)
        if why != "OVERLAP":
            return
        if due_at(key[1]) > now:
            raise Broken("L1", f"{key} is skipped for overlap before it is due")
        others = [
            (other, transaction.get(rows.runs, other))
            for other, _ in rows.runs_of(key[0])
            if other != key
        ]
        admitted = [
            (other, run) for other, run in others if run and run.token and run.state in LIVE
        ]
        if not admitted:  # it has ended since the statement
            return
        made_at = self._made.get(key, 0)
        if key[1] < TRIGGERED and all(
            due_at(other[1]) > max(now, instant(key[1])) and run.sent[-1].at > made_at
            for other, run in admitted
        ):
            raise Broken(
                "L1",
                f"{key} is skipped because of {admitted[0][0]}, which was pre-dispatched later",
            )
        timer = rows.timers.get(key[0])
        if (
            timer is not None
            and timer.paused
            and all(
                run.state == "PENDING" and due_at(other[1]) > timer.paused_at
                for other, run in admitted
            )
        ):
            raise Broken(
                "L1", f"{key} is skipped because of {admitted[0][0]}, which waits for a resume"
            )

    def _inserted(self, transaction: Transaction, key: RunId, new: Run) -> None:
        if self._chained and self._cycles.inserted(transaction, key, new, self.promises):
            self.seen["joined"] += 1
        if key[1] >= TRIGGERED:
            return
        self.promises.begins(key, first=True)
        self.seen["fired"] += 1
        self._made[key] = self._database.now
        if instant(key[1]) > self._database.now + HORIZON:
            raise Broken("S7", f"{key} fires {instant(key[1]) - self._database.now} steps early")
        if key in self.promises.fired:
            raise Broken("S5", f"{key} was inserted twice")
        self.promises.fired.add(key)
        if new.generation <= self.promises.over.get(key[0], 0):
            raise Broken(
                "S8", f"{key} fired with generation {new.generation}, after ok for a later change"
            )

    def _issued(self, transaction: Transaction, key: RunId, old: Run | None, new: Run) -> None:
        self.seen["assigned"] += 1
        self.promises.begins(key, first=old is not None and old.token == 0)
        job = key[0]
        if new.token <= self._tokens[job]:
            raise Broken("S3", f"job {job}: token {new.token} after token {self._tokens[job]}")
        self._tokens[job] = new.token
        self._order.append(new.token)
        self.promises.tokens = len(self._order)
        at_once = 1 + sum(
            other != key
            and getattr(transaction.get(self._database.runs, other), "state", "") == "RUNNING"
            for other, _ in self._database.runs_of(job)
        )
        if at_once > self._jobs[job].limit:
            raise Broken("S9", f"job {job}: {at_once} runs are RUNNING, more than its limit")
        for token, incarnation in self._executing(key):
            if not self._excused(token, incarnation):
                raise Broken("S10", f"{key}: token {new.token} is issued while token {token} runs")
        self.promises.issued[key] = new.token

    def _accepted(self, key: RunId, new: Run) -> None:
        self.seen["accepted"] += 1
        token, _ = new.results[-1]
        if token < self.promises.issued[key]:
            raise Broken(
                "S2", f"{key}: old token {token} is accepted, newest {self.promises.issued[key]}"
            )
        if key in self.promises.ended or token in [each for each, _ in new.results[:-1]]:
            raise Broken("S1", f"{key}: a second result is accepted, with token {token}")
        if new.state not in LIVE:
            self.promises.ended.add(key)

    def _excused(self, token: int, incarnation: IncarnationId) -> bool:
        """Whether an earlier attempt may run beside a later one: its lease was gone, or the rows
        that knew of it are.
        """
        self._etcd.listing(self._database.now)
        return incarnation in self._etcd.excused or token in self._lost_tail

    # -- outside of the cluster --

    def starts(self, key: RunId, token: int, generation: int, incarnation: IncarnationId) -> None:
        """A worker starts an attempt, physically."""
        self.seen["started"] += 1
        self.note(f"start   {key} token {token}, generation {generation}, {incarnation}")
        if (key, token) in self._starts:
            raise Broken("S10", f"{key}: token {token} is started twice")
        self._starts.add((key, token))
        if token in self._lost_tail:
            if token in self._unknown:
                self.promises.started[key].add(token)
            return
        if self._database.now < due_at(key[1]):
            raise Broken("S7", f"{key} starts {due_at(key[1]) - self._database.now} steps early")
        if key[1] < TRIGGERED and not self.promises.started[key] and not self._was_lost(key):
            self.promises.starts(key)
        if generation <= self.promises.over.get(key[0], 0):
            raise Broken(
                "S8", f"{key} starts with generation {generation}, after ok for a later change"
            )
        newer = self.promises.issued[key]
        if newer > token and incarnation not in self._etcd.excused:
            raise Broken("S10", f"{key}: token {token} starts after token {newer} was issued")
        if self._jobs[key[0]].at_most_once and key[1] < AGAIN:  # that a person asked for again
            self._starts_at_most_once(key)
        self.promises.started[key].add(token)

    def _was_lost(self, key: RunId) -> bool:
        """Whether it may have started with a worker that was written off."""
        row = self._database.runs.get(key)
        gone = self._database.incarnations
        return row is not None and any(
            getattr(gone.get(attempt.incarnation), "lost", True) for attempt in row.sent
        )

    def _starts_at_most_once(self, key: RunId) -> None:
        row = self._database.runs.get(key)
        reported = {token for token, how in row.results if how == "FAILED"} if row else set()
        if unreported := self.promises.started[key] - reported:
            raise Broken("AMO", f"{key} starts again, but token {min(unreported)} didn't fail")

    def acknowledges(self, key: RunId, result: tuple[int, str], *, stale: bool) -> None:
        """Check the acknowledgement of a result; its worker forgets the result."""
        row = self._database.runs.get(key)
        stored = row is not None and result in row.results
        if not stale and not stored:
            raise Broken("S11", f"{key}: result {result} is acknowledged but not stored")
        if stale and stored:
            raise Broken("S11", f"{key}: result {result} is stored but answered as stale")

    def ok(self, job: JobId, generation: int) -> None:
        """Check the answer that nothing up to this generation fires or starts any more."""
        self.seen["ok"] += 1
        self.note(f"ok      job {job}: no run up to generation {generation} starts any more")
        self.promises.over[job] = max(generation, self.promises.over.get(job, 0))
        for span in (*self.promises.pauses[job], *self.promises.thinned[job]):
            span.ok = span.ok or (span.generation <= generation and span.ended is None)


def _spans(spans: list[Span], generation: int, at: int, before: bool, after: bool) -> None:
    """A call that found this generation begins one, or ends the last."""
    if after and not before:
        spans.append(Span(generation, at))
    elif before and not after:
        spans[-1].ended = at
