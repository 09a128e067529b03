"""Notifications: what waits in the outbox of owned shards is delivered, each try on its own.

    rows that may be tried ─→ definitions of their jobs ─→ claimed, by lane ─→ a task each
    tasks' answers ─→ settled, by lane: delivered, tried again later, given up

Invariants
- Of one target (a host, a program, the mail server) so many are tried at once, and no more: one
  that is slow or dead keeps nobody else waiting, and nothing here is ever waited for by dispatch.
- An answer is kept until it is settled. What is under way when the tenure ends is tried again by
  whoever owns the shard then: told twice rather than never.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn
from uuid import UUID

from schedd.core.events import Emit, NotificationsWait, Notified
from schedd.core.ids import JobId
from schedd.core.notifications import (
    Kind,
    Notice,
    Notification,
    Settled,
    Waits,
    Way,
    settled,
    target,
)
from schedd.owner.board import Board
from schedd.owner.catalogue import Catalogue, Known
from schedd.owner.transact import Failed, Transactor
from schedd.ports import ClusterClock, NotificationStore, Sender
from schedkit.clock import boottime
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
SOONEST: Final = 0.05
"""Seconds from one look to the next, however often somebody wakes it."""
COUNT_EVERY: Final = 10.0
OF_ONE_TARGET: Final = 4
AT_ONCE: Final = 256
"""Tries under way, of all targets together."""


class Notifications:
    """The loop that delivers, and the tasks in which it does."""

    name: Final = "notifications"

    def __init__(
        self,
        board: Board,
        catalogue: Catalogue,
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
        self._under_way: dict[tuple[UUID, Way], str] = {}
        """Tries that aren't settled, with their targets."""
        self._busy: dict[tuple[JobId, Way], str] = {}
        """Whose targets have enough to do."""
        self._answers: list[Settled] = []
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
        load = Counter(self._under_way.values())
        self._busy = {of: to for of, to in self._busy.items() if load[to] >= OF_ONE_TARGET}
        if len(self._under_way) >= AT_ONCE:
            return LOOK_EVERY
        tenure = self._transactor.ownership.tenure
        busy = len(self._busy)
        waiting = await self._store.waiting(tenure, shards, list(self._busy))
        known = await self._catalogue.newest({one.job_id for one in waiting})
        chosen = self._chosen(waiting, known, load)
        if chosen:
            await self._begin(chosen, known)
        await asyncio.sleep(SOONEST)  # a wake comes with each answer
        return 0.0 if chosen or len(self._busy) > busy else LOOK_EVERY

    def _chosen(
        self, waiting: Sequence[Waits], known: Mapping[JobId, Known], load: Counter[str]
    ) -> list[Waits]:
        """Those whose targets have room; the others are busy."""
        chosen: list[Waits] = []
        for one in waiting:
            if (one.notification_id, one.way) in self._under_way:
                continue
            to = _target_of(known.get(one.job_id), one)
            if load[to] >= OF_ONE_TARGET:
                self._busy[one.job_id, one.way] = to
            elif len(self._under_way) + len(chosen) < AT_ONCE:
                load[to] += 1
                chosen.append(one)
        return chosen

    async def _begin(self, chosen: Sequence[Waits], known: Mapping[JobId, Known]) -> None:
        answers = await self._transactor.by_lane(chosen, self._store.claim)
        claimed = [one for each in answers if not isinstance(each, Failed) for one in each]
        assert self._group is not None, "it runs within its group"
        for one in claimed:
            entry = known.get(one.job_id)
            self._under_way[one.notification_id, one.way] = _target_of(entry, one)
            self._group.create_task(self._try(one, entry), name=f"notify {one.notification_id}")
        for each in answers:
            if isinstance(each, Failed):
                raise each.error

    async def _try(self, one: Notification, entry: Known | None) -> None:
        error = "the definition of its job can't be read here"
        if entry is not None:
            notice = _notice(entry, one.kind, one.way)
            # Who edits a job so that nobody is told any more means what waits, too.
            error = "" if notice is None else await self._sent(one, notice)
        answer = settled(one, error, self._clock.now())
        self._answers.append(answer)
        self._emit(Notified(one.way, error, given_up=bool(error) and answer.wait is None))
        self._loop.wake()

    async def _sent(self, one: Notification, notice: Notice) -> str:
        """Why it wasn't delivered; empty: it was. What one of them breaks holds up no other, and no
        owner: the next one would have the same before it.
        """
        try:
            return await self._sender.send(one, notice)
        except Exception as error:
            log.exception("notification %s can't be delivered", one.notification_id)
            return f"{type(error).__name__}: {error}"

    async def _settle(self) -> None:
        """Answers for shards that are another's now are dropped: it tells once more."""
        if answers := list(self._answers):
            await self._transactor.rows(answers, self._store.settle)
            del self._answers[: len(answers)]
            for one in answers:
                told = one.notification
                self._under_way.pop((told.notification_id, told.way), None)

    async def _count(self) -> None:
        if boottime() >= self._count_at:
            self._count_at = boottime() + COUNT_EVERY
            shards = sorted(self._board.ownership.epochs)
            self._emit(NotificationsWait(await self._store.counted(shards)))


def _notice(entry: Known, kind: Kind, way: Way) -> Notice | None:
    """Whom the job wants told of this by this way."""
    notices = entry.definition.notices
    notice = None if notices is None else notices.of(kind)
    return notice if notice is not None and way in notice.ways else None


def _target_of(entry: Known | None, one: Waits | Notification) -> str:
    notice = None if entry is None else _notice(entry, one.kind, one.way)
    return "" if notice is None else target(notice, one.way)
