"""The loop that delivers notifications: who holds up whom, and what becomes of each try."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast
from uuid import UUID

from schedd.core.events import Event, Notified
from schedd.core.ids import JobId, RunId, ShardId, TenureId
from schedd.core.model import Claim, LiveRun, RunKey
from schedd.core.notifications import (
    GIVEN_UP_AFTER,
    Happened,
    Kind,
    Notice,
    Notices,
    Notification,
    Settled,
    Waits,
    Way,
)
from schedd.owner.board import Board
from schedd.owner.brake import Brake
from schedd.owner.late_starts import LateStarts
from schedd.owner.notifications import OF_ONE_TARGET, Notifications
from schedd.owner.transact import Transactor
from schedd.ports import PauseStore
from schedkit.errors import Unavailable
from support.dispatching import SHELL, Definitions
from support.runs import NOW, SetClock, owning, run
from support.wait import PATIENCE, wait_until_async

BREAKS = "https://breaks.example.com/"
DEAD, FINE = "https://dead.example.com/hook", "https://fine.example.com/hook"


class Outbox:
    """Rows in memory, of which some are shown at a time."""

    def __init__(self) -> None:
        self.rows: dict[tuple[UUID, Way], Waits] = {}
        self.settled: list[Settled] = []
        self.late: list[Happened] = []
        self.away = 0

    def put(self, count: int, job: JobId) -> None:
        for _ in range(count):
            one = Waits(UUID(int=len(self.rows)), Way.WEBHOOK, job, ShardId(0), Kind.FAILURE)
            self.rows[one.notification_id, one.way] = one

    async def waiting(
        self, tenure: TenureId, shards: Sequence[ShardId], busy: Collection[tuple[JobId, Way]]
    ) -> list[Waits]:
        shown: Counter[JobId] = Counter()
        found = []
        for one in self.rows.values():
            shown[one.job_id] += (one.job_id, one.way) not in busy
            if (one.job_id, one.way) not in busy and shown[one.job_id] <= OF_ONE_TARGET:
                found.append(one)
        return found

    async def counted(self, shards: Sequence[ShardId]) -> int:
        return len(self.rows)

    async def claim(self, claim: Claim, wanted: Sequence[Waits]) -> list[Notification]:
        mine = [one for one in wanted if self.rows.pop((one.notification_id, one.way), None)]
        return [
            Notification(
                one.notification_id, one.way, one.job_id, one.shard, one.kind, "default", "j",
                RunId(UUID(int=1)), NOW, NOW, None, None, "FAILED", "", "", 1, 1, 1, "", 1, 0, NOW,
                NOW, 1,
            )
            for one in mine
        ]  # fmt: skip

    async def settle(self, claim: Claim, settled: Sequence[Settled]) -> list[Settled]:
        if self.away:
            self.away -= 1
            raise Unavailable("the database is away")
        self.settled += settled
        return list(settled)

    async def tell_late(self, claim: Claim, late: Sequence[Happened]) -> list[RunId]:
        self.late += late
        return [one.run_id for one in late]


class Receivers:
    """One of them never answers; `errors` are what the others say."""

    def __init__(self) -> None:
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.error = ""

    async def send(self, notification: Notification, notice: Notice) -> str:
        to = notice.webhook
        self.under_way[to] += 1
        self.most[to] = max(self.most[to], self.under_way[to])
        try:
            if to == BREAKS:
                raise IndexError("string index out of range")
            if to == DEAD:
                await asyncio.Event().wait()
            return self.error
        finally:
            self.under_way[to] -= 1

    async def close(self) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.outbox, self.receivers, self.clock = Outbox(), Receivers(), SetClock()
        self.definitions, self.board = Definitions(SHELL), Board(owning(0))
        self.events: list[Event] = []
        self.transactor = Transactor(self.board.ownership, lambda: True, self.events.append)
        self.loop = Notifications(
            self.board,
            self.definitions,
            self.outbox,
            self.transactor,
            self.clock,
            self.receivers,
            self.events.append,
        )

    def job(self, number: int, notices: Notices | None) -> JobId:
        job = JobId(UUID(int=1000 + number))
        self.definitions.jobs[job] = replace(SHELL, job_id=job, notices=notices)
        return job

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run(), name="notifications")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def settled(self, count: int) -> None:
        await wait_until_async(lambda: len(self.outbox.settled) >= count, PATIENCE, "answers")


def to(url: str) -> Notices:
    return Notices(failure=Notice(webhook=url))


async def test_a_receiver_that_never_answers_holds_up_nobody_else() -> None:
    world = World()
    dead = [world.job(number, to(DEAD)) for number in range(20)]
    for job in dead:
        world.outbox.put(30, job)
    fine = world.job(100, to(FINE))
    world.outbox.put(40, fine)
    async with world.running():
        await world.settled(40)
    assert {one.notification.job_id for one in world.outbox.settled} == {fine}
    assert world.receivers.most[DEAD] == OF_ONE_TARGET
    assert world.receivers.most[FINE] <= OF_ONE_TARGET
    assert world.receivers.under_way[DEAD] == 0, "nothing is under way when the tenure has ended"


async def test_one_that_breaks_whoever_sends_it_ends_no_owner() -> None:
    """It stays in the outbox: the next owner would have it before it, too."""
    world = World()
    world.outbox.put(1, world.job(1, to(BREAKS)))
    world.outbox.put(1, world.job(2, to(FINE)))
    async with world.running():
        await world.settled(2)
    told = {one.notification.job_id.int: one.error for one in world.outbox.settled}
    assert told == {1001: "IndexError: string index out of range", 1002: ""}


async def test_answers_are_kept_while_the_database_is_away() -> None:
    world = World()
    world.outbox.put(3, world.job(1, to(FINE)))
    world.outbox.away = 2
    async with world.running():
        await world.settled(3)
    assert len(world.outbox.settled) == 3


async def test_what_nobody_takes_is_tried_again_and_given_up_after_a_day() -> None:
    world = World()
    job = world.job(1, to(FINE))
    world.receivers.error = "HTTP 500"
    async with world.running():
        world.outbox.put(1, job)
        await world.settled(1)
        world.clock.time = NOW + GIVEN_UP_AFTER
        world.outbox.put(1, job)
        await world.settled(2)
    again, over = world.outbox.settled
    assert (again.wait, over.wait) == (timedelta(seconds=5), None)
    told = [event for event in world.events if isinstance(event, Notified)]
    assert [event.given_up for event in told] == [False, True]


async def test_what_the_job_wants_told_no_more_is_dropped_unsent() -> None:
    world = World()
    world.outbox.put(2, world.job(1, None))
    async with world.running():
        await world.settled(2)
    assert [(one.error, one.wait) for one in world.outbox.settled] == [("", None)] * 2
    assert not world.receivers.most


async def test_a_run_that_waits_is_told_to_be_late_once_it_is_and_once() -> None:
    world = World()
    late = Notices(late=Notice(webhook=FINE, after=timedelta(seconds=10)))
    job = world.job(1, late)
    waits: list[LiveRun] = [run(1), run(2, losses=1), run(3)]
    waits = [replace(one, job_id=job) for one in waits[:2]] + waits[2:]
    world.board.put_runs(waits, NOW)
    world.definitions.any_late = True
    brake = Brake(cast("PauseStore", None), world.events.append)
    loop = LateStarts(
        world.board, world.definitions, world.outbox, world.transactor, world.clock, brake
    )
    for seconds in (5, 10, 11, 12):
        world.clock.time = NOW + timedelta(seconds=seconds)
        await loop.step()
        assert len(world.outbox.late) == (seconds > 10)
    key = RunKey(world.outbox.late[0].scheduled_at, world.outbox.late[0].run_id)
    assert key == waits[0].key
