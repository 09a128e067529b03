"""The leader checks for data loss in the database before it writes any map.

    term begins ─→ compare marks in etcd and PostgreSQL (`core/cluster/data_loss_check.py`)
                     no loss           ─→ continue
                     no mark in etcd   ─→ warn, audit, continue: the operator runs `schedd recover`
                     a short tail lost ─→ warn, audit, continue
                     more lost         ─→ recovery: pause since the mark, workers marked lost,
                                          at_most_once runs that may have run are ended
                   ─→ first mark of the term, in PostgreSQL and then in etcd ─→ the map

A member ends its tenure if its database went back or moved to another timeline or server. That ends
its term too, so a new term checks every such change. No new tenure owns a shard before that term's
map, so nothing fires in an unchecked database.

Invariants
- The mark is written after recovery is complete. If the leader stops during recovery, its successor
  finds the same gap and begins again. If etcd has lost the mark, the successor finds the pause
  and ends the doubtful runs.
- A mark is written to etcd after its commit was confirmed, under the mandate.
"""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from schedd.cluster.leader.term import OUTRANKED, REPLACED, Leadership, TermOver
from schedd.core.cluster.coordination import Get, Put
from schedd.core.cluster.data_loss_check import EVERY, KEY, DataLoss, Mark, decode, encode, gap
from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.ids import JobId, Term
from schedd.core.jobs.definition import Delivery
from schedd.core.runs.lifecycle import Reason
from schedd.core.runs.model import AuditRecord, RunKey
from schedd.core.runs.records import StoredDefinition, WaitingRun
from schedd.core.runs.retry import fingerprint
from schedd.core.timers.cluster_pauses import Pause, Pauses
from schedd.ports import Coordination
from schedd.runtime.job_codec import JobDefinition
from schedd.store.cluster.recovery import RecoveryStore
from schedkit.backoff import Backoff
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

PAGE = 2_000
"""Live runs that one statement examines."""

ACTOR = "schedd"


class Recovery:
    """The check for data loss by a leading member. `ttl`: of its lease, in seconds."""

    def __init__(self, coordination: Coordination, store: RecoveryStore, ttl: float) -> None:
        self._coordination = coordination
        self._store = store
        self._ttl = ttl

    async def check_data_loss(self, leadership: Leadership) -> None:
        """Compare the marks, recover if data was lost, then write the first mark of the term.
        Raises TermOver: the term was raised by another leader, or the mandate was lost. Raises
        Unavailable: the outcome is unknown; campaign again.
        """
        found = await self._store.read_mark()
        remembered = await self._remembered(leadership)
        if remembered is None and found.at is not None:
            await self._tell_of_no_memory(leadership, found.at)
        lost = gap(remembered, found)
        leadership.check()
        if lost is not None and not lost.tolerated:
            until = lost.doubtful_until(self._ttl)
            await recover(self._store, leadership.term, until, lost)
        else:
            if lost is not None:
                await self._accept_loss(leadership.term, lost)
            await self._finish(leadership.term)
        await self._mark(leadership)

    async def _finish(self, term: Term) -> None:
        """End the doubtful runs of an open recovery. Its leader may have stopped during it, and a
        restored etcd may have lost the mark.
        """
        pause = await self._store.holding()
        if pause is None or pause.lost_until is None:
            return
        if ended := await _end_doubtful(self._store, term, pause.lost_until):
            log.error("recovery: %d more waiting runs failed as lost: they may have run", ended)

    def marking(self, leadership: Leadership) -> Loop:
        backoff = Backoff(initial=0.2, maximum=EVERY)
        step = partial(self._mark, leadership)
        return Loop("data loss check", step, interval=EVERY, backoff=backoff)

    async def _remembered(self, leadership: Leadership) -> Mark | None:
        read = await self._coordination.txn(leadership.mandate.guards, [Get(KEY)])
        if not read.succeeded:
            raise TermOver(REPLACED)
        [entry] = read.read
        try:
            return None if entry is None else decode(entry.value)
        except InvalidValue as error:
            log.warning("data-loss check skipped: the mark in etcd is invalid: %s", error)
            return None

    async def _tell_of_no_memory(self, leadership: Leadership, newest: datetime) -> None:
        """Warn: etcd has no mark and the database has some, so a data loss can't be detected."""
        what = (
            "data-loss check skipped: etcd has no mark of this database, whose newest mark is of"
            f" {_iso(newest)}. If the database was restored from a backup, stop all members and run"
            " `schedd recover` before they start again"
        )
        log.warning("%s", what)
        leadership.check()
        await self._audit(leadership.term, "forget-mark", what)

    async def _accept_loss(self, term: Term, lost: DataLoss) -> None:
        what = f"the database lost {_loss_text(lost)}: acknowledged calls of that time are lost"
        log.warning("%s, and runs of that time may run again", what)
        await self._audit(term, "lose-tail", what)

    async def _audit(self, term: Term, action: str, what: str) -> None:
        entry = AuditRecord(ACTOR, action, "cluster", "ok", what)
        if not await self._store.tell(term, entry):
            raise TermOver(OUTRANKED)

    async def _mark(self, leadership: Leadership) -> None:
        leadership.check()
        mark = await self._store.mark(leadership.term)
        if mark is None:
            raise TermOver(OUTRANKED)
        written = await self._coordination.txn(leadership.mandate.guards, [Put(KEY, encode(mark))])
        if not written.succeeded:
            raise TermOver(REPLACED)


async def recover(
    store: RecoveryStore, term: Term | None, until: datetime | None, lost: DataLoss | None = None
) -> Pause:
    """Pause a restored database until a person resumes it; return the pause. `until`: the latest
    time at which the lost database may have been in use; None: now. `lost`: the known loss. Raises
    TermOver: the term was raised by another leader.
    """

    def entry(before: Pauses, after: Pauses) -> AuditRecord:
        present = after.present
        assert present is not None
        now = {"wentBackTo": _iso(present.began), "note": present.note}
        was = {"paused": before.present is not None}
        return AuditRecord(
            actor=ACTOR,
            action="recover",
            object="cluster",
            outcome="ok",
            reason="PostgreSQL was restored to an earlier state"
            if lost is None
            else f"PostgreSQL lost {_loss_text(lost)}",
            before=json.dumps(was),
            after=json.dumps(now),
        )

    pause = await store.begin(term, until, _note, entry)
    if pause is None or pause.lost_until is None:
        raise TermOver(OUTRANKED)
    ended = await _end_doubtful(store, term, pause.lost_until)
    log.error(
        "recovery: %s; %d waiting runs of at_most_once jobs failed as lost: they may have run",
        pause.note,
        ended,
    )
    return pause


async def _end_doubtful(store: RecoveryStore, term: Term | None, until: datetime) -> int:
    """End the waiting `at_most_once` runs that were created by `until`; return their number."""
    once: dict[JobId, bool] = {}
    after: WaitingRun | None = None
    ended = 0
    while page := await store.waiting(after, until, PAGE):
        after = page[-1]
        doubtful = [run for run in page if run.doubtful]
        unknown = {run.job_id for run in doubtful} - once.keys()
        if unknown:
            stored = await store.definitions(sorted(unknown))
            once |= {job: job in stored and _at_most_once(stored[job]) for job in unknown}
        ended += await _end(store, term, [run.key for run in doubtful if once[run.job_id]])
    return ended


async def _end(store: RecoveryStore, term: Term | None, keys: Sequence[RunKey]) -> int:
    if not keys:
        return 0
    error = (
        "the run may have run: it waited when PostgreSQL was restored to an earlier state, and its"
        " job has delivery: at_most_once"
    )
    ended = await store.end(term, keys, error, fingerprint(Reason.WORKER_LOST, None, error))
    if ended is None:
        raise TermOver(OUTRANKED)
    return ended


def _at_most_once(stored: StoredDefinition) -> bool:
    """Return whether the job is `at_most_once`; a job that can't be read is never dispatched."""
    try:
        definition = JobDefinition.read(stored).parsed
    except (ValueError, OverflowError):
        return False
    return definition.delivery is Delivery.AT_MOST_ONCE


def _note(began: datetime, until: datetime, present: Pause | None) -> str:
    paused = ""
    if present is not None and not present.recovering:
        note = f": {present.note}" if present.note else ""
        paused = f" (The cluster was already paused by {present.by}{note}.)"
    return (
        f"PostgreSQL was restored to its state of {_iso(began)}, and the lost database may have"
        f" been in use until {_iso(until)}. Check what was lost, then run"
        f" `schedctl cluster resume --catch-up-since T` (or --catch-up, --no-catch-up){paused}"
    )


def _loss_text(lost: DataLoss) -> str:
    if lost.seconds is None:
        return f"the data of an unknown time until {_iso(lost.until)}"
    place = ", and the database is on another server" if lost.moved else ""
    return (
        f"the data of about {lost.seconds:.1f} s, from {_iso(lost.since)} to"
        f" {_iso(lost.until)}{place}"
    )


def _iso(instant: datetime | None) -> str:
    if instant is None:
        return "?"
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
