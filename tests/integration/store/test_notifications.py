"""Notifications are written with their events, and delivered by the owner of the shard."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, event

from schedd.core.ids import ShardId
from schedd.core.jobs.notifications import (
    DeliveryOutcome,
    Notice,
    Notices,
    NotifiableEvent,
    NotificationChannel,
    NotificationKind,
    Overdue,
    redirected,
)
from schedd.core.runs.deadlines import DeadlineExpiry
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, Loss, Verdict
from schedd.core.runs.records import JobRecord, TimerEdit
from schedd.store.notify import outbox as noticing
from support.store import Member, World, draft, firing, new_run, ok, report
from support.wait import WAIT_TIMEOUT, wait_until

HOOK = Notice(webhook="https://ops.example.com/hook", email=("a@ops.example.com",))
ALL = Notices(failure=HOOK, recovery=HOOK, dead_letter=HOOK, late=HOOK)
FAILED: dict[str, Any] = {"state": State.FAILED, "reason": Reason.EXIT_CODE, "dead": True}


async def running(me: Member, job: JobRecord) -> LiveRun:
    [run] = (await me.fire(firing(job))).runs
    [assigned] = await me.assigned(draft(run))
    return assigned


async def notified(world: World) -> list[tuple[Any, ...]]:
    return await world.sql(
        "SELECT kind, way, failures, held_back FROM notifications ORDER BY kind, way"
    )


async def test_a_failure_is_notified_once_by_each_way_however_often_its_result_arrives(
    world: World,
) -> None:
    """P5.1: it is a row, written with the result."""
    me = await world.member()
    run = await running(me, await world.job())
    result = report(run, notices=replace(ALL, late=None), **FAILED)
    assert await me.store.results.accept([result]) == [Verdict.ACCEPTED]
    assert await me.store.results.accept([result]) == [Verdict.REPEATED]
    assert await notified(world) == [
        ("run.dead_lettered", "EMAIL", 1, 0),
        ("run.dead_lettered", "WEBHOOK", 1, 0),
        ("run.failed", "EMAIL", 1, 0),
        ("run.failed", "WEBHOOK", 1, 0),
    ]
    identities = await world.sql("SELECT count(DISTINCT notification_id) FROM notifications")
    assert identities == [(2,)]


async def test_a_job_without_notifications_costs_no_statement(world: World) -> None:
    me = await world.member()
    statements: list[str] = []
    event.listen(
        me.store.database._engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: statements.append(statement),
    )
    for job in (await world.job(), await world.job()):
        run = await running(me, job)
        await me.store.results.accept([report(run, **FAILED)])
    assert statements
    assert not [one for one in statements if re.search("notices|notifications|late_notified", one)]
    # If recovery is notified, a success checks whether there was a failure, and no more.
    run = await running(me, await world.job())
    statements.clear()
    await me.store.results.accept([report(run, notices=replace(ALL, late=None))])
    assert len([one for one in statements if "notices" in one]) == 1


async def test_failures_are_counted_over_results_and_losses_and_end_with_a_success(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    notices = Notices(failure=Notice(webhook=HOOK.webhook, threshold=2), recovery=HOOK)
    run = await running(me, job)
    await me.store.results.accept([report(run, notices=notices, **FAILED)])
    assert await notified(world) == []
    lost = await next_run(world, me, job)
    assert lost.incarnation is not None
    loss = Loss(
        lost.key, lost.shard, lost.token, lost.incarnation, State.FAILED, Reason.WORKER_LOST,
        dead=True, fingerprint="x", notices=notices,
    )  # fmt: skip
    assert await me.store.owner.rescue(me.claim(0), [loss]) == [lost.key]
    assert await notified(world) == [("run.failed", "WEBHOOK", 2, 0)]
    fine = await next_run(world, me, job)
    await me.store.results.accept([report(fine, notices=notices)])
    assert ("run.recovered", "WEBHOOK", 0, 0) in await notified(world)
    assert await world.sql("SELECT failures, notified FROM notices") == [(0, False)]


async def next_run(world: World, me: Member, job: JobRecord) -> LiveRun:
    """Return another run of the job, dispatched."""
    [timer] = await me.store.owner.timers([job.definition.job_id])
    assert timer.due_at is not None
    moved = replace(job, due_at=timer.due_at, nominal=timer.nominal)
    return await running(me, moved)


async def test_a_silence_merges_events_into_one_row_that_waits_for_its_end(
    world: World,
) -> None:
    me = await world.member()
    notices = Notices(failure=Notice(webhook=HOOK.webhook, min_interval=timedelta(hours=1)))
    run = await running(me, await world.job())
    key = run.key
    failed = NotifiableEvent(
        key.scheduled_at, key.run_id, run.job_id, run.shard, notices, State.FAILED
    )
    for _ in range(4):
        await me.store.database.call(lambda c: noticing.write_notifications(c, [failed]))
    rows = await world.sql(
        "SELECT held_back, failures, ready_at - occurred_at < interval '1 h 1 s',"
        " ready_at > clock_timestamp() FROM notifications ORDER BY ready_at"
    )
    assert rows == [(0, 1, True, False), (3, 4, True, True)]


# -- What an edit makes of what waits --

MAIL = Notice(email=("a@ops.example.com",))


async def edited(me: Member, job: JobRecord, old: Notice, new: Notice) -> None:
    generation = job.definition.generation
    done = await me.store.users.update_job(
        job.definition.job_id,
        generation,
        replace(job.definition, generation=generation + 1),
        TimerEdit(),
        ok("update"),
        redirection=redirected(Notices(failure=old), Notices(failure=new)),
    )
    assert isinstance(done, JobRecord)


async def rows(world: World) -> list[tuple[Any, ...]]:
    return await world.sql(
        "SELECT way, held_back, ready_at > clock_timestamp() + interval '1 min',"
        " ready_at > clock_timestamp(), next_at = ready_at"
        " FROM notifications ORDER BY ready_at, way"
    )


async def test_waiting_notifications_use_the_channel_that_an_edit_names(world: World) -> None:
    me = await world.member()
    job = await world.job()
    hook, both = Notice(webhook=HOOK.webhook), replace(MAIL, webhook=HOOK.webhook)
    run = await running(me, job)
    await me.store.results.accept([report(run, notices=Notices(failure=hook), **FAILED)])
    [(identity,)] = await world.sql("SELECT notification_id FROM notifications")
    await edited(me, job, hook, MAIL)
    assert await world.sql("SELECT notification_id, way, tries FROM notifications") == [
        (identity, "EMAIL", 0)
    ]
    # Of an event with two ways, one of which is left, the other isn't used again.
    other = await world.job(name="other")
    run = await running(me, other)
    await me.store.results.accept([report(run, notices=Notices(failure=both), **FAILED)])
    await world.sql("DELETE FROM notifications WHERE way = 'EMAIL'")
    await edited(me, other, both, MAIL)
    assert await notified(world) == []


async def test_channels_of_an_older_definition_are_replaced_by_those_of_the_newest(
    world: World,
) -> None:
    """Its writer, or the owner that delivers it, may know the newest later than the rows do."""
    me = await world.member()
    job = await world.job()
    run = await running(me, job)
    hook = Notice(webhook=HOOK.webhook)
    await edited(me, job, hook, MAIL)
    await me.store.results.accept([report(run, notices=Notices(failure=hook), **FAILED)])
    outbox = me.store.notifications
    [waits] = await outbox.waiting(me.tenure, [ShardId(0)], [])
    assert await outbox.claim(me.claim(0), [replace(waits, generation=1)]) == []
    assert (
        await outbox.claim(
            me.claim(0), [replace(waits, generation=1, instead=(NotificationChannel.EMAIL,))]
        )
        == []
    )
    assert await notified(world) == [("run.failed", "WEBHOOK", 1, 0)]
    assert (
        await outbox.claim(
            me.claim(0), [replace(waits, generation=2, instead=(NotificationChannel.EMAIL,))]
        )
        == []
    )
    [turned] = await outbox.waiting(me.tenure, [ShardId(0)], [])
    [claimed] = await outbox.claim(me.claim(0), [replace(turned, generation=2)])
    assert (claimed.notification_id, claimed.way) == (
        waits.notification_id,
        NotificationChannel.EMAIL,
    )


async def test_notifications_silenced_before_an_edit_wait_for_the_edited_silence(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    run = await running(me, job)
    key = run.key

    async def fails(notice: Notice) -> None:
        one = NotifiableEvent(
            key.scheduled_at, key.run_id, run.job_id, run.shard, Notices(failure=notice),
            State.FAILED,
        )  # fmt: skip
        await me.store.database.call(lambda c: noticing.write_notifications(c, [one]))

    hour = Notice(webhook=HOOK.webhook, min_interval=timedelta(hours=1))
    short = replace(hour, min_interval=timedelta(seconds=20))
    for _ in range(2):
        await fails(hour)
    assert [row[:3] for row in await rows(world)] == [("WEBHOOK", 0, False), ("WEBHOOK", 1, True)]
    await edited(me, job, hour, short)
    assert await rows(world) == [
        ("WEBHOOK", 0, False, False, True),
        ("WEBHOOK", 1, False, True, True),
    ]
    # Events that join it use the ways of now, too.
    await fails(replace(short, email=MAIL.email))
    assert [row[:2] for row in await rows(world)] == [("WEBHOOK", 0), ("EMAIL", 2), ("WEBHOOK", 2)]
    await fails(replace(short, email=MAIL.email))
    assert [row[:2] for row in await rows(world)] == [("WEBHOOK", 0), ("EMAIL", 3), ("WEBHOOK", 3)]


async def test_a_deleted_job_leaves_no_counts_and_its_last_run_is_notified(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    run = await running(me, job)
    assert await me.store.users.delete_job(job.definition.job_id, ok("delete"))
    await me.store.results.accept([report(run, notices=Notices(failure=MAIL), **FAILED)])
    assert await notified(world) == [("run.failed", "EMAIL", 1, 0)]
    assert await world.sql("SELECT count(*) FROM notices") == [(0,)]


async def test_two_members_that_end_runs_of_the_same_jobs_lock_them_in_one_order(
    world: World,
) -> None:
    """P1.6: of one job a failure and of the other a success, and the other way round."""
    me = await world.member()
    runs = [await running(me, await world.job()) for _ in range(2)]
    runs.sort(key=lambda run: run.job_id)

    def ended(run: LiveRun, state: State) -> NotifiableEvent:
        key = run.key
        return NotifiableEvent(key.scheduled_at, key.run_id, run.job_id, run.shard, ALL, state)

    await me.store.database.call(
        lambda c: noticing.write_notifications(c, [ended(run, State.FAILED) for run in runs])
    )
    first, second = runs
    locked = threading.Event()

    def one_by_one(connection: Connection) -> int:
        done = {first.job_id: [ended(first, State.SUCCEEDED)]}
        found = len(noticing._memories(connection, done))
        locked.set()
        waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
        wait_until(
            lambda: connection.exec_driver_sql(waits).scalar_one(), WAIT_TIMEOUT, "the other"
        )
        connection.exec_driver_sql("SET LOCAL lock_timeout = '500 ms'")
        failed = {second.job_id: [ended(second, State.FAILED)]}
        return found + len(noticing._memories(connection, failed))

    def both(connection: Connection) -> int:
        assert locked.wait(WAIT_TIMEOUT)
        ends = {
            first.job_id: [ended(first, State.SUCCEEDED)],
            second.job_id: [ended(second, State.FAILED)],
        }
        return len(noticing._memories(connection, ends))

    calls = (me.store.database.call(each) for each in (one_by_one, both))
    assert await asyncio.gather(*calls) == [2, 2]


async def test_notifications_untried_for_a_day_are_ended_in_bulk_with_a_line_per_job(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    run = await running(me, job)
    key = run.key
    happened = NotifiableEvent(
        key.scheduled_at, key.run_id, run.job_id, run.shard, Notices(failure=MAIL), State.FAILED
    )
    for _ in range(5):
        await me.store.database.call(lambda c: noticing.write_notifications(c, [happened]))
    outbox = me.store.notifications
    assert await outbox.overdue([ShardId(0)]) == []
    await world.sql(
        "UPDATE notifications SET ready_at = now() - interval '25 h', next_at = ready_at"
    )
    await world.sql(
        "UPDATE notifications SET next_at = now() - interval '25 h'"
        " WHERE notification_id <> (SELECT min(notification_id::text)::uuid FROM notifications)"
    )
    assert await outbox.overdue([ShardId(0), ShardId(1)]) == [Overdue(ShardId(0))]
    assert await outbox.expire(me.claim(0), [Overdue(ShardId(0))]) == [
        (NotificationChannel.EMAIL, 4)
    ]
    assert len(await notified(world)) == 1
    [(reason,)] = await world.sql("SELECT reason FROM audit WHERE action = 'notify'")
    assert reason.startswith("4 of run.failed by email, from ")


async def test_a_run_is_notified_as_late_once_while_it_waits_or_by_its_result(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire(firing(job))).runs
    late = NotifiableEvent(run.key.scheduled_at, run.key.run_id, run.job_id, run.shard, ALL)
    outbox = me.store.notifications
    assert await outbox.tell_late(me.claim(0), [late]) == [run.key.run_id]
    assert await outbox.tell_late(me.claim(0), [late]) == []
    [assigned] = await me.assigned(draft(run))
    await me.store.results.accept([report(assigned, notices=ALL, late=True)])
    assert await notified(world) == [("run.late", "EMAIL", 0, 0), ("run.late", "WEBHOOK", 0, 0)]
    other = await next_run(world, me, job)
    await me.store.results.accept([report(other, notices=ALL, late=True)])
    assert len(await notified(world)) == 4


async def test_a_missed_run_is_notified_as_late_and_an_expired_one_as_failed(world: World) -> None:
    me = await world.member()
    for state, reason, kinds in (
        (State.MISSED, Reason.START_DEADLINE, {"run.late"}),
        (State.FAILED, Reason.RUN_TIMEOUT, {"run.failed", "run.dead_lettered"}),
    ):
        job = await world.job()
        [run] = (await me.fire(firing(job))).runs
        fingerprint = "x" if state is State.FAILED else ""
        end = DeadlineExpiry(
            run.key, run.job_id, run.shard, state, reason, fingerprint, notices=ALL
        )
        assert await me.store.owner.end_waiting(me.claim(0), [end]) == [run.key]
        assert {kind for kind, *_ in await notified(world)} == kinds
        await world.sql("DELETE FROM notifications")


async def test_only_the_owner_claims_notifications_and_those_of_an_ended_tenure_are_free(
    world: World,
) -> None:
    me = await world.member()
    await me.store.results.accept(
        [report(await running(me, await world.job()), notices=Notices(failure=HOOK), **FAILED)]
    )
    outbox, shards = me.store.notifications, [ShardId(0)]
    waiting = await outbox.waiting(me.tenure, shards, [])
    assert {one.way for one in waiting} == {NotificationChannel.EMAIL, NotificationChannel.WEBHOOK}
    claimed = await outbox.claim(me.claim(0), waiting)
    assert {(one.kind, one.state, one.reason, one.tries) for one in claimed} == {
        (NotificationKind.FAILURE, "FAILED", "EXIT_CODE", 1)
    }
    assert await outbox.waiting(me.tenure, shards, []) == []
    assert await outbox.claim(me.claim(0), waiting) == []

    other = await world.member()
    await me.store.membership.fence_own(me.tenure)
    await other.take(0)
    assert await outbox.claim(me.claim(0), waiting) == []
    found = await outbox.waiting(
        other.tenure, shards, [(waiting[0].job_id, NotificationChannel.EMAIL)]
    )
    assert [one.way for one in found] == [NotificationChannel.WEBHOOK]
    [taken] = await outbox.claim(other.claim(0), found)
    assert taken.tries == 2
    # A member that lost the shard records nothing any more.
    old = next(one for one in claimed if one.way is NotificationChannel.WEBHOOK)
    assert await outbox.record_outcomes(me.claim(0), [DeliveryOutcome(old)]) == []
    await outbox.record_outcomes(
        other.claim(0), [DeliveryOutcome(taken, "HTTP 500", timedelta(seconds=60))]
    )
    assert (
        await outbox.waiting(other.tenure, shards, [(waiting[0].job_id, NotificationChannel.EMAIL)])
        == []
    )
    await outbox.record_outcomes(other.claim(0), [DeliveryOutcome(taken, "HTTP 500")])
    assert await world.sql("SELECT way FROM notifications") == [("EMAIL",)]
    audit = "SELECT action, object, outcome, reason FROM audit WHERE action = 'notify'"
    [(_, name, outcome, reason)] = await world.sql(audit)
    assert (name.startswith("job/default/"), outcome) == (True, "failed")
    assert reason == "run.failed by webhook, 2 tries: HTTP 500"


async def test_instants_that_catch_up_leaves_out_are_notified_as_late(world: World) -> None:
    me = await world.member()
    job = await world.job()
    assert job.due_at is not None
    missed = new_run(job, job.due_at, state=State.MISSED, reason=Reason.CATCH_UP_NONE, count=7)
    for _ in range(2):
        await me.fire(firing(job, runs=(missed,), notices=ALL))
    assert await notified(world) == [("run.late", "EMAIL", 0, 0), ("run.late", "WEBHOOK", 0, 0)]
    waiting = await me.store.notifications.waiting(me.tenure, [ShardId(0)], [])
    claimed = await me.store.notifications.claim(me.claim(0), waiting)
    assert {(one.state, one.instants) for one in claimed} == {("MISSED", 7)}
