"""Deliver the notifications in the outbox of owned shards, each delivery in a task.

    rows that are due ─→ definitions of their jobs ─→ claimed, by lane ─→ a task each
    tasks' outcomes ─→ written, by lane: delivered, retried later, abandoned

Invariants
- Deliveries to one target (a host, a program, the mail server) are limited, so a slow target delays
  no other target (`core/jobs/receiver_limits.py`). Dispatch never waits for a delivery.
- The newest definition names the targets. A definition older than the row's claim isn't used.
- An outcome is kept until it is written. A delivery in progress when the tenure ends is repeated by
  the next owner: a notification may be sent twice, never zero times.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from schedd.cluster.owner_transactions import Failed
from schedd.core.events import NotificationsExpired, NotificationsWait, Notified
from schedd.core.ids import Id, JobId
from schedd.core.jobs.notifications import (
    DeliveryOutcome,
    Notice,
    NotificationChannel,
    NotificationKind,
    OutboxNotification,
    PendingNotification,
    outcome_of,
    target,
)
from schedd.core.jobs.receiver_limits import AT_ONCE, Receivers
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.ports import Sender
from schedd.runtime.definition_texts import CachedDefinition
from schedd.store.notify.outbox_claims import NotificationStore
from schedkit.clock import boottime
from schedkit.records import replace
from schedkit.set_aside import set_aside
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
SOONEST: Final = 0.05
"""Minimum seconds between two rounds, however often the loop is woken."""
COUNT_EVERY: Final = 10.0
"""Seconds between two counts, and until the next round without a wake-up (`pending_work`)."""


class OutboxDelivery(OwnerPart):
    name: Final = "notifications"

    def __init__(self, context: OwnerContext, outbox: NotificationStore, sender: Sender) -> None:
        super().__init__(context)
        self._outbox = outbox
        self._sender = sender
        self._group: asyncio.TaskGroup | None = None
        self._receivers = Receivers()
        self._under_way: dict[tuple[Id, NotificationChannel], str] = {}
        """Deliveries without a written outcome, with their targets."""
        self._busy: dict[tuple[JobId, NotificationChannel], str] = {}
        """Targets at their limit of deliveries, by job and channel."""
        self._answers: list[DeliveryOutcome] = []
        self._count_at = 0.0
        self._loop = Loop(self.name, self.step, interval=COUNT_EVERY)

    def wake(self) -> None:
        """Run a round now: the outbox has rows."""
        self._loop.wake()

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as self._group:
            await self._loop.run()
        raise AssertionError(
            "unreachable: the loop that delivers notifications ends only with an error"
        )

    async def step(self) -> float:
        """Write outcomes and start deliveries; return the seconds until the next round."""
        await self._record_outcomes()
        shards = sorted(self._run_index.ownership.epochs)
        if not shards:
            return COUNT_EVERY
        await self._count()
        self._busy = {of: to for of, to in self._busy.items() if not self._receivers.has_room(to)}
        if self._receivers.under_way >= AT_ONCE:
            return LOOK_EVERY
        tenure = self._transactor.ownership.tenure
        busy = len(self._busy)
        waiting = await self._outbox.waiting(tenure, shards, list(self._busy))
        known = await self._definition_cache.newest({one.job_id for one in waiting})
        chosen = self._chosen(waiting, known)
        if chosen:
            await self._begin(chosen, known)
        await asyncio.sleep(SOONEST)  # each answer wakes the loop
        return 0.0 if chosen or len(self._busy) > busy else COUNT_EVERY

    def _chosen(
        self, waiting: Sequence[PendingNotification], known: Mapping[JobId, CachedDefinition]
    ) -> list[PendingNotification]:
        """Return notifications whose targets have room; mark the other targets as busy."""
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
        answers = await self._transactor.by_lane(chosen, self._outbox.claim)
        claimed = [one for each in answers if not isinstance(each, Failed) for one in each]
        assert self._group is not None, "it runs within its group"
        # An unclaimed row's job may have been edited: its definition is read again.
        self._definition_cache.forget(
            {one.job_id for one in chosen} - {one.job_id for one in claimed}
        )
        for one in claimed:
            entry = known.get(one.job_id)
            to = _target_of(entry, one)
            self._under_way[one.notification_id, one.way] = to
            self._receivers.begin(to)
            self._group.create_task(self._try(one, entry), name=f"notify {one.notification_id}")
        for each in answers:
            if isinstance(each, Failed):
                raise each.error

    async def _try(self, one: OutboxNotification, entry: CachedDefinition | None) -> None:
        error = "the definition of the job can't be read by this member"
        if entry is not None:
            notice = _notice(entry, one.kind, one.way)
            # An edit that removes a target also cancels its waiting notifications.
            began = boottime()
            error = "" if notice is None else await self._sent(one, notice)
            if notice is not None:
                self._receivers.answered(target(notice, one.way), boottime() - began)
        answer = outcome_of(one, error, self._clock.now())
        self._answers.append(answer)
        self._emit(Notified(one.way, error, abandoned=bool(error) and answer.wait is None))
        self._loop.wake()

    async def _sent(self, one: OutboxNotification, notice: Notice) -> str:
        """Return why the notification wasn't delivered; empty if it was. An exception fails one
        delivery only.
        """
        raised: list[Exception] = []
        with set_aside("notification", f"notification {one.notification_id}", then=raised.append):
            return await self._sender.send(one, notice)
        return f"{type(raised[0]).__name__}: {raised[0]}"

    async def _record_outcomes(self) -> None:
        """Write outcomes, except for shards of another owner now: that owner sends again."""
        if answers := list(self._answers):
            await self._transactor.rows(answers, self._outbox.record_outcomes)
            del self._answers[: len(answers)]
            for one in answers:
                sent = one.notification
                to = self._under_way.pop((sent.notification_id, sent.way), None)
                if to is not None:
                    self._receivers.end(to)

    async def _count(self) -> None:
        if boottime() >= self._count_at:
            self._count_at = boottime() + COUNT_EVERY
            shards = sorted(self._run_index.ownership.epochs)
            if overdue := await self._outbox.overdue(shards):
                for way, count in await self._transactor.rows(overdue, self._outbox.expire):
                    self._emit(NotificationsExpired(way, count))
            self._emit(NotificationsWait(await self._outbox.counted(shards)))


def _asked(one: PendingNotification, entry: CachedDefinition) -> PendingNotification:
    """Return it with the channels of the definition, if its own channel isn't among those."""
    notices = entry.definition.notices
    notice = None if notices is None else notices.notice_of_kind(one.kind)
    ways = () if notice is None or one.way in notice.ways else notice.ways
    return replace(one, generation=entry.definition.generation, instead=ways)


def _notice(
    entry: CachedDefinition, kind: NotificationKind, way: NotificationChannel
) -> Notice | None:
    """Return the notice of the job for this kind, if it names this channel."""
    notices = entry.definition.notices
    notice = None if notices is None else notices.notice_of_kind(kind)
    return notice if notice is not None and way in notice.ways else None


def _target_of(
    entry: CachedDefinition | None, one: PendingNotification | OutboxNotification
) -> str:
    notice = None if entry is None else _notice(entry, one.kind, one.way)
    return "" if notice is None else target(notice, one.way)
