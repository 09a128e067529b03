"""Notifications: what waits in the outbox of owned shards is delivered, each try on its own.

    rows that may be tried ─→ definitions of their jobs ─→ claimed, by lane ─→ a task each
    tasks' answers ─→ settled, by lane: delivered, tried again later, given up

Invariants
- Of one target (a host, a program, the mail server) so many are tried at once, and no more: one
  that is slow or dead keeps nobody else waiting, nor do hundreds of them
  (`core/jobs/receiver_limits.py`); and nothing here is ever waited for by dispatch.
- Whom to tell is the newest definition's word: one that is older than the row's claim isn't tried.
- An answer is kept until it is settled. What is under way when the tenure ends is tried again by
  whoever owns the shard then: told twice rather than never.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn
from uuid import UUID

from schedd.cluster.owner_transactions import Failed, Transactor
from schedd.core.events import Emit, NotificationsExpired, NotificationsWait, Notified
from schedd.core.ids import JobId
from schedd.core.jobs.notifications import (
    DeliveryOutcome,
    Notice,
    Notification,
    NotificationChannel,
    NotificationKind,
    PendingNotification,
    settled,
    target,
)
from schedd.core.jobs.receiver_limits import AT_ONCE, Receivers
from schedd.dispatch.run_index import RunIndex
from schedd.ports import ClusterClock, NotificationStore, Sender
from schedd.runtime.definition_cache import DefinitionCache
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.clock import boottime
from schedkit.records import replace
from schedkit.set_aside import set_aside
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
SOONEST: Final = 0.05
"""Seconds from one look to the next, however often somebody wakes it."""
COUNT_EVERY: Final = 10.0


class OutboxDelivery:
    """The loop that delivers, and the tasks in which it does."""

    name: Final = "notifications"

    def __init__(
        self,
        board: RunIndex,
        catalogue: DefinitionCache,
        store: NotificationStore,
        transactor: Transactor,
        clock: ClusterClock,
        sender: Sender,
        emit: Emit,
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._sender = sender
        self._emit = emit
        self._group: asyncio.TaskGroup | None = None
        self._receivers = Receivers()
        self._under_way: dict[tuple[UUID, NotificationChannel], str] = {}
        """Tries that aren't settled, with their targets."""
        self._busy: dict[tuple[JobId, NotificationChannel], str] = {}
        """Whose targets have enough to do."""
        self._answers: list[DeliveryOutcome] = []
        self._count_at = 0.0
        self._loop = Loop(self.name, self.step, interval=LOOK_EVERY)

    async def run(self) -> NoReturn:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            await self._loop.run()
        raise AssertionError("a loop never returns")

    async def step(self) -> float:
        """Settle what was answered, and begin what may be tried; seconds until the next look."""
        await self._settle()
        shards = sorted(self._board.ownership.epochs)
        if not shards:
            return LOOK_EVERY
        await self._count()
        self._busy = {of: to for of, to in self._busy.items() if not self._receivers.has_room(to)}
        if self._receivers.under_way >= AT_ONCE:
            return LOOK_EVERY
        tenure = self._transactor.ownership.tenure
        busy = len(self._busy)
        waiting = await self._store.waiting(tenure, shards, list(self._busy))
        known = await self._catalogue.newest({one.job_id for one in waiting})
        chosen = self._chosen(waiting, known)
        if chosen:
            await self._begin(chosen, known)
        await asyncio.sleep(SOONEST)  # a wake comes with each answer
        return 0.0 if chosen or len(self._busy) > busy else LOOK_EVERY

    def _chosen(
        self, waiting: Sequence[PendingNotification], known: Mapping[JobId, CachedDefinition]
    ) -> list[PendingNotification]:
        """Those whose targets have room; the others are busy."""
        chosen: list[PendingNotification] = []
        receivers = self._receivers.copy()
        for one in waiting:
            if (one.notification_id, one.way) in self._under_way:
                continue
            entry = known.get(one.job_id)
            to = _target_of(entry, one)
            if receivers.has_room(to):
                receivers.begin(to)
                chosen.append(one if entry is None else _asked(one, entry))
            elif receivers.under_way < AT_ONCE:
                self._busy[one.job_id, one.way] = to
        return chosen

    async def _begin(
        self, chosen: Sequence[PendingNotification], known: Mapping[JobId, CachedDefinition]
    ) -> None:
        answers = await self._transactor.by_lane(chosen, self._store.claim)
        claimed = [one for each in answers if not isinstance(each, Failed) for one in each]
        assert self._group is not None, "it runs within its group"
        # What wasn't claimed may have been edited: it is looked at by the definition of then.
        self._catalogue.forget({one.job_id for one in chosen} - {one.job_id for one in claimed})
        for one in claimed:
            entry = known.get(one.job_id)
            to = _target_of(entry, one)
            self._under_way[one.notification_id, one.way] = to
            self._receivers.begin(to)
            self._group.create_task(self._try(one, entry), name=f"notify {one.notification_id}")
        for each in answers:
            if isinstance(each, Failed):
                raise each.error

    async def _try(self, one: Notification, entry: CachedDefinition | None) -> None:
        error = "the definition of its job can't be read here"
        if entry is not None:
            notice = _notice(entry, one.kind, one.way)
            # Who edits a job so that nobody is told any more means what waits, too.
            began = boottime()
            error = "" if notice is None else await self._sent(one, notice)
            if notice is not None:
                self._receivers.answered(target(notice, one.way), boottime() - began)
        answer = settled(one, error, self._clock.now())
        self._answers.append(answer)
        self._emit(Notified(one.way, error, given_up=bool(error) and answer.wait is None))
        self._loop.wake()

    async def _sent(self, one: Notification, notice: Notice) -> str:
        """Why it wasn't delivered; empty: it was. What one of them breaks holds up no other, and no
        owner: the next one would have the same before it.
        """
        raised: list[Exception] = []
        with set_aside("notification", f"notification {one.notification_id}", then=raised.append):
            return await self._sender.send(one, notice)
        return f"{type(raised[0]).__name__}: {raised[0]}"

    async def _settle(self) -> None:
        """Answers for shards that are another's now are dropped: it tells once more."""
        if answers := list(self._answers):
            await self._transactor.rows(answers, self._store.settle)
            del self._answers[: len(answers)]
            for one in answers:
                told = one.notification
                to = self._under_way.pop((told.notification_id, told.way), None)
                if to is not None:
                    self._receivers.end(to)

    async def _count(self) -> None:
        if boottime() >= self._count_at:
            self._count_at = boottime() + COUNT_EVERY
            shards = sorted(self._board.ownership.epochs)
            if overdue := await self._store.overdue(shards):
                for way, count in await self._transactor.rows(overdue, self._store.expire):
                    self._emit(NotificationsExpired(way, count))
            self._emit(NotificationsWait(await self._store.counted(shards)))


def _asked(one: PendingNotification, entry: CachedDefinition) -> PendingNotification:
    """With what is known of whom to tell: by other ways than its own if that isn't named."""
    notices = entry.definition.notices
    notice = None if notices is None else notices.of(one.kind)
    ways = () if notice is None or one.way in notice.ways else notice.ways
    return replace(one, generation=entry.definition.generation, instead=ways)


def _notice(
    entry: CachedDefinition, kind: NotificationKind, way: NotificationChannel
) -> Notice | None:
    """Whom the job wants told of this by this way."""
    notices = entry.definition.notices
    notice = None if notices is None else notices.of(kind)
    return notice if notice is not None and way in notice.ways else None


def _target_of(entry: CachedDefinition | None, one: PendingNotification | Notification) -> str:
    notice = None if entry is None else _notice(entry, one.kind, one.way)
    return "" if notice is None else target(notice, one.way)
