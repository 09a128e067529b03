"""The loop that delivers notifications: who holds up whom, and what becomes of each try."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.events import Event, NotificationsExpired, Notified
from schedd.core.ids import Id, JobId, RunId, ShardId, TenureId
from schedd.core.jobs.notifications import (
    ABANDONED_AFTER,
    DeliveryOutcome,
    Notice,
    Notices,
    NotifiableEvent,
    NotificationChannel,
    NotificationKind,
    OutboxNotification,
    Overdue,
    PendingNotification,
)
from schedd.core.jobs.receiver_limits import OF_ONE, OF_SLOW, SLOW
from schedd.core.runs.model import Claim, LiveRun, RunKey
from schedd.dispatch.run_index import RunIndex
from schedd.notify.outbox_delivery import OutboxDelivery
from schedd.reconcile.deadlines import LateStartAlerts
from schedd.store.notify.outbox_claims import NotificationStore
from schedkit.errors import Unavailable
from support.dispatching import SHELL, Definitions
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import NOW, SetClock, owning, run
from support.wait import WAIT_TIMEOUT, wait_until_async

BREAKS = "https://breaks.example.com/"
DEAD, FINE = "https://dead.example.com/hook", "https://fine.example.com/hook"


@fake_of(NotificationStore)
class Outbox:
    """Rows in memory, of which some are shown at a time."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Id, NotificationChannel], PendingNotification] = {}
        self.outcomes: list[DeliveryOutcome] = []
        self.late: list[NotifiableEvent] = []
        self.away = 0
        self.old = 0
        self.asked: list[PendingNotification] = []
        self.generation: int | None = None
        """Of the newest definition, if claims compare it."""

    def put(self, count: int, job: JobId) -> None:
        for _ in range(count):
            one = PendingNotification(
                Id.from_int(len(self.rows)),
                NotificationChannel.WEBHOOK,
                job,
                ShardId(0),
                NotificationKind.FAILURE,
            )
            self.rows[one.notification_id, one.way] = one

    async def waiting(
        self,
        tenure: TenureId,
        shards: Sequence[ShardId],
        busy: Collection[tuple[JobId, NotificationChannel]],
    ) -> list[PendingNotification]:
        shown: Counter[JobId] = Counter()
        found = []
        for one in self.rows.values():
            shown[one.job_id] += (one.job_id, one.way) not in busy
            if (one.job_id, one.way) not in busy and shown[one.job_id] <= OF_ONE:
                found.append(one)
        return found

    async def counted(self, shards: Sequence[ShardId]) -> int:
        return len(self.rows)

    async def claim(
        self, claim: Claim, wanted: Sequence[PendingNotification]
    ) -> list[OutboxNotification]:
        self.asked += wanted
        if self.generation is not None:
            wanted = [one for one in wanted if one.generation == self.generation]
        mine = [one for one in wanted if self.rows.pop((one.notification_id, one.way), None)]
        return [
            OutboxNotification(
                one.notification_id, one.way, one.job_id, one.shard, one.kind, "default", "j",
                RunId(Id.from_int(1)), NOW, NOW, None, None, "FAILED", "", "", 1, 1, 1, "", 1, 0,
                NOW, NOW, 1,
            )
            for one in mine
        ]  # fmt: skip

    async def overdue(self, shards: Sequence[ShardId]) -> list[Overdue]:
        return [Overdue(shard) for shard in shards if self.old]

    async def expire(
        self, claim: Claim, wanted: Sequence[Overdue]
    ) -> list[tuple[NotificationChannel, int]]:
        ended, self.old = self.old, 0
        return [(NotificationChannel.WEBHOOK, ended)]

    async def record_outcomes(
        self, claim: Claim, outcomes: Sequence[DeliveryOutcome]
    ) -> list[DeliveryOutcome]:
        if self.away:
            self.away -= 1
            raise Unavailable("the database is away")
        self.outcomes += outcomes
        return list(outcomes)

    async def tell_late(self, claim: Claim, late: Sequence[NotifiableEvent]) -> list[RunId]:
        self.late += late
        return [one.run_id for one in late]


class Receivers:
    """Receivers of which one never answers; `errors` are the answers of the others."""

    def __init__(self) -> None:
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.error = ""

    async def send(self, notification: OutboxNotification, notice: Notice) -> str:
        to = notice.webhook
        self.under_way[to] += 1
        self.most[to] = max(self.most[to], self.under_way[to])
        try:
            if to == BREAKS:
                raise IndexError("string index out of range")
            if to == DEAD or ".dead." in to:
                await asyncio.Event().wait()
            return self.error
        finally:
            self.under_way[to] -= 1

    async def close(self) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.outbox, self.receivers, self.clock = Outbox(), Receivers(), SetClock()
        self.definitions, self.run_index = Definitions(SHELL), RunIndex(owning(0))
        self.events: list[Event] = []
        self.context = owner_context(
            self.run_index, self.definitions, clock=self.clock, emit=self.events.append
        )
        self.loop = OutboxDelivery(self.context, self.outbox, self.receivers)

    def job(self, number: int, notices: Notices | None) -> JobId:
        job = JobId(Id.from_int(1000 + number))
        self.definitions.jobs[job] = replace(SHELL, notices=notices)
        return job

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run(), name="notifications")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def wait_for_outcomes(self, count: int) -> None:
        await wait_until_async(lambda: len(self.outbox.outcomes) >= count, WAIT_TIMEOUT, "outcomes")


def to(url: str) -> Notices:
    return Notices(failure=Notice(webhook=url))


async def test_a_receiver_that_never_answers_delays_no_other() -> None:
    world = World()
    dead = [world.job(number, to(DEAD)) for number in range(20)]
    for job in dead:
        world.outbox.put(30, job)
    fine = world.job(100, to(FINE))
    world.outbox.put(40, fine)
    async with world.running():
        await world.wait_for_outcomes(40)
    assert {one.notification.job_id for one in world.outbox.outcomes} == {fine}
    assert world.receivers.most[DEAD] == OF_ONE
    assert world.receivers.most[FINE] <= OF_ONE
    assert world.receivers.under_way[DEAD] == 0, "nothing is under way when the tenure has ended"


async def test_a_notification_that_breaks_its_sender_ends_no_owner() -> None:
    """The notification stays in the outbox: the next owner would meet it too."""
    world = World()
    world.outbox.put(1, world.job(1, to(BREAKS)))
    world.outbox.put(1, world.job(2, to(FINE)))
    async with world.running():
        await world.wait_for_outcomes(2)
    errors = {one.notification.job_id.number: one.error for one in world.outbox.outcomes}
    assert errors == {1001: "IndexError: string index out of range", 1002: ""}


@pytest.mark.slow
async def test_hundreds_of_receivers_that_never_answer_delay_no_other() -> None:
    """This holds once they are known to be slow; a new receiver isn't known."""
    world = World()
    for number in range(300):
        url = f"https://{number}.dead.example.com"
        world.loop._receivers.answered(url, SLOW)
        world.outbox.put(4, world.job(number, to(f"{url}/hook")))
    fine = world.job(1000, to(FINE))
    world.outbox.put(40, fine)
    async with world.running():
        await world.wait_for_outcomes(40)
        assert world.receivers.under_way.total() == OF_SLOW
    assert {one.notification.job_id for one in world.outbox.outcomes} == {fine}


async def test_receivers_are_read_again_if_a_claim_has_a_newer_definition() -> None:
    world = World()
    job = world.job(1, to(FINE))
    world.definitions.stale[job] = replace(world.definitions.jobs[job], notices=to(BREAKS))
    world.definitions.jobs[job] = replace(world.definitions.jobs[job], generation=2)
    world.outbox.generation = 2
    world.outbox.put(1, job)
    async with world.running():
        await world.wait_for_outcomes(1)
    assert [one.generation for one in world.outbox.asked] == [1, 2]
    assert dict(world.receivers.most) == {FINE: 1}


async def test_a_notification_of_an_older_definition_goes_to_the_newest_receivers() -> None:
    world = World()
    mail = Notices(failure=Notice(email=("a@ops.example.com",)))
    world.outbox.put(1, world.job(1, mail))
    async with world.running():
        await wait_until_async(lambda: bool(world.outbox.asked), WAIT_TIMEOUT, "the claim")
    assert world.outbox.asked[0].instead == (NotificationChannel.EMAIL,)


async def test_a_notification_untried_for_a_day_is_abandoned_and_reported() -> None:
    world = World()
    world.outbox.old = 812
    async with world.running():
        expired = NotificationsExpired(NotificationChannel.WEBHOOK, 812)
        await wait_until_async(lambda: expired in world.events, WAIT_TIMEOUT, "the end of them")


async def test_answers_are_kept_during_a_database_outage() -> None:
    world = World()
    world.outbox.put(3, world.job(1, to(FINE)))
    world.outbox.away = 2
    async with world.running():
        await world.wait_for_outcomes(3)
    assert len(world.outbox.outcomes) == 3


@pytest.mark.slow
async def test_a_rejected_notification_is_retried_and_abandoned_after_a_day() -> None:
    world = World()
    job = world.job(1, to(FINE))
    world.receivers.error = "HTTP 500"
    async with world.running():
        world.outbox.put(1, job)
        await world.wait_for_outcomes(1)
        world.clock.time = NOW + ABANDONED_AFTER
        world.outbox.put(1, job)
        await world.wait_for_outcomes(2)
    again, over = world.outbox.outcomes
    assert (again.wait, over.wait) == (timedelta(seconds=5), None)
    notified = [event for event in world.events if isinstance(event, Notified)]
    assert [event.abandoned for event in notified] == [False, True]


async def test_a_notification_the_job_no_longer_wants_is_dropped_unsent() -> None:
    world = World()
    world.outbox.put(2, world.job(1, None))
    async with world.running():
        await world.wait_for_outcomes(2)
    assert [(one.error, one.wait) for one in world.outbox.outcomes] == [("", None)] * 2
    assert not world.receivers.most


async def test_a_waiting_run_is_reported_late_once() -> None:
    world = World()
    late = Notices(late=Notice(webhook=FINE, after=timedelta(seconds=10)))
    job = world.job(1, late)
    waits: list[LiveRun] = [run(1), run(2, losses=1), run(3)]
    waits = [replace(one, job_id=job) for one in waits[:2]] + waits[2:]
    world.run_index.put_runs(waits, NOW)
    world.definitions.any_late = True
    loop = LateStartAlerts(world.context, world.outbox)
    for seconds in (5, 10, 11, 12):
        world.clock.time = NOW + timedelta(seconds=seconds)
        await loop.step()
        assert len(world.outbox.late) == (seconds > 10)
    key = RunKey(world.outbox.late[0].scheduled_at, world.outbox.late[0].run_id)
    assert key == waits[0].key


async def test_a_run_that_waits_only_in_rows_is_reported_late_by_a_scan() -> None:
    world = World()
    job = world.job(1, Notices(late=Notice(webhook=FINE, after=timedelta(seconds=10))))
    waits = [replace(one, job_id=job) for one in (run(1), run(2, losses=1))]
    world.definitions.any_late = True
    loop = LateStartAlerts(world.context, world.outbox)
    for seconds in (5, 11):
        world.clock.time = NOW + timedelta(seconds=seconds)
        await loop.check_unloaded_runs(waits)
    assert [one.run_id for one in world.outbox.late] == [waits[0].key.run_id]
