"""The leader looks whether the database lost what it had, before it writes any map.

    term begins ─→ mark in etcd against mark in PostgreSQL (`core/cluster/data_loss_check.py`)
                     nothing lost  ─→ go on
                     no memory     ─→ warning and audit, go on: `schedd recover` is a person's
                     a short tail  ─→ warning and audit, go on
                     more          ─→ recovery: paused from the mark on, workers written off,
                                      at_most_once runs that may have run ended
                   ─→ first mark of the term, in PostgreSQL and then in etcd ─→ the map

A member whose database went back, or moved to another timeline or server, ends its tenure, and so
its term: whatever changes under a running cluster is looked at by a new term. No new tenure owns a
shard before that term's map, so nothing fires in a database that nobody has looked at.

Invariants
- The mark is written only once all of recovery is done: a leader that dies in it has a successor
  that finds the same gap, and begins anew; or, where etcd has forgotten it, finds the pause, and
  ends what is doubtful.
- A mark goes into etcd after it was seen committed, under the mandate.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from schedd.cluster.leader.term import Leadership, TermOver
from schedd.core.cluster.coordination import Get, Put
from schedd.core.cluster.data_loss_check import EVERY, KEY, DataLoss, Mark, decode, encode, gap
from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.ids import JobId, Term
from schedd.core.jobs.definition import Delivery
from schedd.core.runs.lifecycle import Reason
from schedd.core.runs.model import AuditEntry, RunKey
from schedd.core.runs.records import StoredDefinition, WaitingRun
from schedd.core.runs.retry import fingerprint
from schedd.core.timers.cluster_pauses import Pause, Pauses
from schedd.ports import Coordination, RecoveryStore
from schedd.runtime.job_codec import stored_definition
from schedkit.backoff import Backoff
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

PAGE = 2_000
"""Live runs that are looked at in one statement."""

ACTOR = "schedd"


class Recovery:
    """One member's part in it, while it leads. `ttl`: of its lease, in seconds."""

    def __init__(self, coordination: Coordination, store: RecoveryStore, ttl: float) -> None:
        self._coordination = coordination
        self._store = store
        self._ttl = ttl

    async def look(self, leadership: Leadership) -> None:
        """Compare, and do what follows from it; then the first mark of the term.

        Raises:
            TermOver: the term was raised by another leader, or the mandate has gone.
            Unavailable: nothing is known; campaign anew.
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
                await self._go_on(leadership.term, lost)
            await self._finish(leadership.term)
        await self._mark(leadership)

    async def _finish(self, term: Term) -> None:
        """A recovery that nobody has resumed may have a leader that died in it, and its gap been
        forgotten with an etcd that was restored.
        """
        pause = await self._store.holding()
        if pause is None or pause.lost_until is None:
            return
        if ended := await _end_doubtful(self._store, term, pause.lost_until):
            log.error("recovery: %d more waiting runs may have run, and are ended as lost", ended)

    def marking(self, leadership: Leadership) -> Loop:
        """The loop of a term."""

        async def step() -> None:
            await self._mark(leadership)

        return Loop("marks", step, interval=EVERY, backoff=Backoff(initial=0.2, maximum=EVERY))

    async def _remembered(self, leadership: Leadership) -> Mark | None:
        read = await self._coordination.txn(leadership.mandate.guards, [Get(KEY)])
        if not read.succeeded:
            raise TermOver("the election key is another's")
        [entry] = read.read
        try:
            return None if entry is None else decode(entry.value)
        except InvalidValue as error:
            log.warning("the mark in etcd can't be read, so nothing is compared with it: %s", error)
            return None

    async def _tell_of_no_memory(self, leadership: Leadership, newest: datetime) -> None:
        """An etcd without a mark, and a database with some: nobody can tell what that lost."""
        what = (
            "etcd doesn't remember where the database stood, so whether it went back can't be told:"
            f" its newest mark is of {_iso(newest)}. If it was restored from a backup, end all"
            " members and run `schedd recover` before they start again"
        )
        log.warning("%s", what)
        leadership.check()
        entry = AuditEntry(
            actor=ACTOR, action="forget-mark", object="cluster", outcome="ok", reason=what
        )
        if not await self._store.tell(leadership.term, entry):
            raise TermOver("the term was raised by another leader")

    async def _go_on(self, term: Term, lost: DataLoss) -> None:
        what = f"the database lost {_told(lost)}: calls acknowledged in them are un-acknowledged"
        log.warning("%s, and runs of them may run again", what)
        entry = AuditEntry(
            actor=ACTOR, action="lose-tail", object="cluster", outcome="ok", reason=what
        )
        if not await self._store.tell(term, entry):
            raise TermOver("the term was raised by another leader")

    async def _mark(self, leadership: Leadership) -> None:
        leadership.check()
        mark = await self._store.mark(leadership.term)
        if mark is None:
            raise TermOver("the term was raised by another leader")
        written = await self._coordination.txn(leadership.mandate.guards, [Put(KEY, encode(mark))])
        if not written.succeeded:
            raise TermOver("the election key is another's")


async def recover(
    store: RecoveryStore, term: Term | None, until: datetime | None, lost: DataLoss | None = None
) -> Pause:
    """Hold a database that went back until a person resumes it. `until`: when the lost one may have
    gone on; None: until now. `lost`: what is known of it.

    Raises:
        TermOver: the term was raised by another leader.
    """

    def entry(before: Pauses, after: Pauses) -> AuditEntry:
        present = after.present
        assert present is not None
        told = {"wentBackTo": _iso(present.began), "note": present.note}
        was = {"paused": before.present is not None}
        return AuditEntry(
            actor=ACTOR,
            action="recover",
            object="cluster",
            outcome="ok",
            reason="the database went back" if lost is None else f"it lost {_told(lost)}",
            before=json.dumps(was),
            after=json.dumps(told),
        )

    pause = await store.begin(term, until, _note, entry)
    if pause is None or pause.lost_until is None:
        raise TermOver("the term was raised by another leader")
    ended = await _end_doubtful(store, term, pause.lost_until)
    log.error(
        "recovery: %s; %d waiting runs of at_most_once jobs may have run, and are ended as lost",
        pause.note,
        ended,
    )
    return pause


async def _end_doubtful(store: RecoveryStore, term: Term | None, until: datetime) -> int:
    """End what waits, was made by then, and is to run at most once; how many they were."""
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
    error = "it may have run: it waited in a database that went back, and runs at most once"
    ended = await store.end(term, keys, error, fingerprint(Reason.WORKER_LOST, None, error))
    if ended is None:
        raise TermOver("the term was raised by another leader")
    return ended


def _at_most_once(stored: StoredDefinition) -> bool:
    """Whether the job says so; one that can't be read isn't handed out by anybody."""
    try:
        definition = stored_definition(stored)
    except (ValueError, OverflowError):
        return False
    return definition.delivery is Delivery.AT_MOST_ONCE


def _note(began: datetime, until: datetime, present: Pause | None) -> str:
    paused = ""
    if present is not None and not present.recovering:
        note = f": {present.note}" if present.note else ""
        paused = f" (It was paused by {present.by} already{note}.)"
    return (
        f"the database went back to {_iso(began)}, and the lost one may have gone on until"
        f" {_iso(until)}. Look at what is there, then"
        f" `schedctl cluster resume --catch-up-since T` (or --catch-up, --no-catch-up){paused}"
    )


def _told(lost: DataLoss) -> str:
    if lost.seconds is None:
        return f"what it had until {_iso(lost.until)}, since a time that isn't known"
    place = ", and it is another server's" if lost.moved else ""
    return f"about {lost.seconds:.1f} s, from {_iso(lost.since)} to {_iso(lost.until)}{place}"


def _iso(instant: datetime | None) -> str:
    if instant is None:
        return "?"
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
