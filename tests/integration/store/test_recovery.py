"""A database that went back, on rows: what holds it, who is written off, who may come near it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine

from schedd.cluster.leader.recovery import recover
from schedd.core.cluster.data_loss_check import DOUBT, gap
from schedd.core.ids import BackfillId, RedriveId, Term, child_run_id, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.runs.broadcast import Closing
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import AuditRecord, LiveRun, Verdict
from schedd.core.runs.records import JobRecord, Unstarted
from schedd.core.runs.redrive import LetterFilter
from schedd.core.runs.redrive import RedriveRequest as RedriveWish
from schedd.core.timers.backfill import BackfillRequest, Rerun
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pause, Pauses
from schedd.store.cluster import recovery
from schedd.store.connection.database import url_of
from schedd.store.reconcile import rescue
from schedkit.clock import utcnow
from schedkit.errors import Unavailable
from schedproto.v1 import job_pb2
from support.store import START, Member, World, draft, firing, incarnation, new_run, report
from support.wait import WAIT_TIMEOUT, wait_until_async

HOUR = timedelta(hours=1)


def audited(before: Pauses, after: Pauses) -> AuditRecord:
    return AuditRecord("ann", "resume", "cluster", "ok", before=str(before), after=str(after))


async def marked(world: World, ago: timedelta) -> datetime:
    """The newest mark is so old."""
    at = utcnow() - ago
    await world.sql("UPDATE cluster SET marked_at = %s", at)
    return at


async def paused(world: World) -> Pause | None:
    return await world.store.pauses.present()


async def a_job(world: World, *, once: bool, **changes: Any) -> JobRecord:
    """Return a job with a definition that can be read."""
    job = await world.job(**changes)
    delivery = job_pb2.DELIVERY_AT_MOST_ONCE if once else job_pb2.DELIVERY_AT_LEAST_ONCE
    spec = job_pb2.Job(delivery=delivery, shell=job_pb2.ShellAction(argv=["true"]))
    spec.cron.append("* * * * *")
    stored = (spec.SerializeToString(), job.definition.job_id)
    await world.sql("UPDATE jobs SET spec = %s WHERE job_id = %s RETURNING 1", *stored)
    return job


async def test_recovery_pauses_from_the_mark_on_and_records_all_workers_as_lost(
    world: World,
) -> None:
    """P2.9: and may be begun again by a successor."""
    me = await world.member()
    worker = await me.store.workers.register(incarnation())
    mark = await marked(world, HOUR)
    until = mark + timedelta(minutes=5)

    first = await recover(me.store.recovery, None, until)
    again = await recover(me.store.recovery, None, until)

    assert (first.began, first.lost_until, first.by) == (mark, until, "schedd")
    assert again == first == await paused(world)
    [stored] = await me.store.workers.incarnations([worker.id])
    assert stored.lost_at is not None
    assert await world.sql("SELECT paused, switched FROM cluster") == [(True, 2)]
    assert await world.sql("SELECT count(*) FROM audit WHERE action = 'recover'") == [(2,)]


async def test_without_a_mark_recovery_covers_all_that_isnt_accounted_for(world: World) -> None:
    me = await world.member()
    [(opened,)] = await world.sql("SELECT min(opened_at) FROM tenures")
    assert (await recover(me.store.recovery, None, None)).began == opened


async def test_a_pause_that_lasts_already_becomes_recovery_and_is_named(world: World) -> None:
    me = await world.member()
    mark = await marked(world, HOUR)
    await me.store.pauses.pause("ann", "new disks", audited)
    held = await recover(me.store.recovery, None, None)
    assert (held.began, held.recovering) == (mark, True)
    assert "The cluster was already paused by ann: new disks." in held.note
    assert await world.sql("SELECT count(*) FROM pauses") == [(1,)]


async def test_an_ended_term_writes_no_mark_and_no_pause(world: World) -> None:
    """P2.2"""
    me = await world.member()
    old = Term(7)
    store = me.store.recovery
    assert await store.mark(old) is None
    assert await store.begin(old, None, lambda *_: "", audited) is None
    assert await store.end(old, [new_run(await world.job(), START).key], "", "") is None
    assert not await store.tell(old, AuditRecord("schedd", "lose-tail", "cluster", "ok"))
    assert await world.sql("SELECT marked_at, paused FROM cluster") == [(None, False)]


async def test_marks_grow_though_the_databases_clock_went_back(world: World) -> None:
    me = await world.member()
    term = await me.store.membership.raise_term(Term(0), me.tenure)
    assert term is not None
    near = await marked(world, timedelta(seconds=-2))
    made = await me.store.recovery.mark(term)
    assert made is not None
    assert made.at == near + timedelta(microseconds=1)

    ahead = await marked(world, -HOUR)
    for _ in range(20):  # of a minute and 40 seconds
        made = await me.store.recovery.mark(term)
    assert made is not None
    lost = gap(made, replace(made, at=ahead))
    assert lost is not None
    assert not lost.tolerated, "more than a tail is for a person behind such a clock too"


async def test_waiting_runs_that_may_have_run_end_as_lost_if_they_run_at_most_once(
    world: World,
) -> None:
    """P2.9: what waited in the rows may have run and ended in what was lost."""
    me = await world.member()
    once, often = await a_job(world, once=True), await a_job(world, once=False, shard=200)
    [waits], [other] = (await me.fire(firing(once))).runs, (await me.fire(firing(often))).runs
    await marked(world, timedelta(0))
    [(until,)] = await world.sql("SELECT clock_timestamp()")
    later = firing(once, at=START + timedelta(minutes=1))
    [fresh] = (await me.fire(later)).runs  # by a member that started after the restore

    await recover(me.store.recovery, None, until)

    row = await world.run_row(waits.key.run_id)
    assert (row["state"], row["reason"]) == ("FAILED", "WORKER_LOST")
    assert "may have run" in row["error"]
    assert not await world.is_live(waits.key.run_id)
    assert await world.sql("SELECT run_id FROM dead_letters") == [(waits.key.run_id,)]
    for run in (other, fresh):
        assert (await world.run_row(run.key.run_id))["state"] == "PENDING"


@pytest.mark.parametrize("once", [True, False])
async def test_a_broadcast_that_had_begun_ends_with_its_remaining_children(
    world: World, once: bool
) -> None:
    """P2.9: a child that waits may have run in what was lost; its parent never ran itself."""
    me = await world.member()
    [run] = (await me.fire(firing(await a_job(world, once=once)))).runs
    request = draft(run, worker="", incarnation=None, targets=("w1", "w2"))
    begun = {one.target: one for one in (await me.assign(request)).begun}
    parent, done, left = begun[None], begun["w1"], begun["w2"]
    [assigned] = await me.assigned(draft(done, worker="w1"))
    await me.store.results.accept([report(assigned)])

    await recover(me.store.recovery, None, None)

    assert (await world.run_row(parent.key.run_id))["state"] == "RUNNING"
    assert await world.is_live(parent.key.run_id)
    row = await world.run_row(left.key.run_id)
    if once:
        assert (row["state"], row["reason"]) == ("FAILED", "WORKER_LOST")
    else:
        assert row["state"] == "PENDING"
        assert await me.store.pauses.resume(False, None, audited) is not None
        [assigned] = await me.assigned(draft(left, worker="w2"))
        await me.store.results.accept([report(assigned)])
    [ended] = (
        await me.store.owner.close(
            me.claim(run.shard), [Closing(parent.key, parent.job_id, parent.shard)]
        )
    ).ended
    assert ended.state is (State.FAILED if once else State.SUCCEEDED)
    dead = await world.sql("SELECT run_id FROM dead_letters")
    assert dead == ([(parent.key.run_id,)] if once else []), "of a child there is none"


async def test_a_broadcast_whose_beginning_was_lost_begins_again_unless_it_runs_at_most_once(
    world: World,
) -> None:
    """P2.9: its children have the ids that they had in what was lost."""
    me = await world.member()
    once, often = await a_job(world, once=True), await a_job(world, once=False)
    [waits], [other] = (await me.fire(firing(once))).runs, (await me.fire(firing(often))).runs

    await recover(me.store.recovery, None, None)

    row = await world.run_row(waits.key.run_id)
    assert (row["state"], row["reason"]) == ("FAILED", "WORKER_LOST")
    assert await me.store.pauses.resume(False, None, audited) is not None
    request = draft(other, worker="", incarnation=None, targets=("w1",))
    begun = (await me.assign(request)).begun
    assert {one.key.run_id for one in begun} == {
        other.key.run_id, child_run_id(other.key.run_id, "w1"),
    }  # fmt: skip


async def test_an_at_most_once_run_of_a_worker_lost_in_recovery_is_not_returned(
    world: World,
) -> None:
    """P4.3: "never started" would be a lie of the rows; it goes by the rule of a loss."""
    me = await world.member()
    worker = await me.store.workers.register(incarnation())
    [run] = (await me.fire(firing(await a_job(world, once=True)))).runs
    [out] = await me.assigned(draft(run, incarnation=worker.id))
    await recover(me.store.recovery, None, None)

    unstarted = Unstarted(out.key, out.shard, out.token)
    assert await me.store.owner.give_back(me.claim(out.shard), [unstarted]) == []
    assert (await world.run_row(out.key.run_id))["state"] == "RUNNING"


async def dispatched(world: World, me: Member, *, once: bool) -> LiveRun:
    """A run that a worker has, as the restored rows say."""
    worker = await me.store.workers.register(incarnation())
    due = firing(await a_job(world, once=once))
    switched = (await me.store.pauses.read()).switched
    [run] = (await me.store.owner.fire(me.claim(due.shard), [due], switched)).runs
    [out] = await me.assigned(draft(run, incarnation=worker.id))
    return out


async def test_a_refusal_that_may_have_been_resolved_in_the_lost_data_returns_nothing(
    world: World,
) -> None:
    """P2.9: the refusal is sent again; another worker may have got the run there, and begun."""
    me = await world.member()
    out = await dispatched(world, me, once=True)
    refusal = Unstarted(out.key, out.shard, out.token, out.incarnation)
    await recover(me.store.recovery, None, None)

    assert await me.store.results.refuse([refusal]) == []
    assert (await world.run_row(out.key.run_id))["state"] == "RUNNING", "a loss, for the scan"


async def test_a_refusal_of_a_worker_that_is_merely_lost_gives_back(world: World) -> None:
    me = await world.member()
    await recover(me.store.recovery, None, None)
    assert await me.store.pauses.resume(False, None, audited) is not None
    out = await dispatched(world, me, once=True)
    assert out.incarnation is not None
    await me.store.workers.lose([out.incarnation], None)

    refusal = Unstarted(out.key, out.shard, out.token, out.incarnation)
    assert await me.store.results.refuse([refusal]) == [out.key]


@pytest.mark.parametrize(
    ("once", "counts", "state", "reason"),
    [
        (True, True, "FAILED", "EXIT_CODE"),
        (True, False, "FAILED", "WORKER_LOST"),
        (False, True, "RETRYING", "EXIT_CODE"),
    ],
)
async def test_a_failure_that_may_be_stored_in_the_lost_data_isnt_retried(
    world: World, once: bool, counts: bool, state: str, reason: str
) -> None:
    """P2.9: the same report may have been stored there, and the run begun again."""
    me = await world.member()
    out = await dispatched(world, me, once=once)
    await recover(me.store.recovery, None, None)

    failed = report(
        out,
        state=State.RETRYING,
        reason=Reason.EXIT_CODE if counts else None,
        retry_at=utcnow(),
        counts=counts,
        at_most_once=once,
    )
    assert await me.store.results.accept([failed]) == [Verdict.ACCEPTED]
    row = await world.run_row(out.key.run_id)
    assert (row["state"], row["reason"]) == (state, reason)
    assert await world.is_live(out.key.run_id) is (state == "RETRYING")
    dead = await world.sql("SELECT run_id FROM dead_letters")
    assert dead == ([(out.key.run_id,)] if state == "FAILED" else [])


async def test_a_failure_of_a_run_dispatched_after_a_recovery_is_tried_again(
    world: World,
) -> None:
    me = await world.member()
    await recover(me.store.recovery, None, utcnow() + DOUBT)
    assert await me.store.pauses.resume(False, None, audited) is not None
    out = await dispatched(world, me, once=True)
    failed = report(out, state=State.RETRYING, retry_at=utcnow(), at_most_once=True)
    assert await me.store.results.accept([failed]) == [Verdict.ACCEPTED]
    assert (await world.run_row(out.key.run_id))["state"] == "RETRYING"


async def test_recovery_waits_for_a_report_that_is_being_stored(world: World) -> None:
    """P2.9: what that lets wait again is seen, and ended."""
    me = await world.member()
    out = await dispatched(world, me, once=True)
    assert out.incarnation is not None
    refusal = Unstarted(out.key, out.shard, out.token, out.incarnation)
    with create_engine(url_of(world.dsn)).connect() as connection:
        assert rescue.give_back(connection, [refusal], None)
        beginning = asyncio.create_task(recover(me.store.recovery, None, None))
        await wait_until_async(
            lambda: blocked(world), WAIT_TIMEOUT, "the recovery to wait for its commit"
        )
        connection.commit()
    await beginning
    assert (await world.run_row(out.key.run_id))["state"] == "FAILED"


async def blocked(world: World) -> bool:
    """Whether anybody waits for the lock of a table."""
    return bool(
        await world.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'relation'")
    )


async def test_recovery_ends_backfills_that_may_have_progressed_and_no_later_ones(
    world: World,
) -> None:
    me = await world.member()
    job = (await world.job()).definition.job_id

    async def asked() -> BackfillId:
        id_ = BackfillId(new_id())
        past = (START - HOUR,)
        request = BackfillRequest(id_, *past, *past, past, Rerun.ALL, None, 1, Priority.LOW, "ann")
        await me.store.backfills.create(job, 1, request, None, audited(NO_PAUSES, NO_PAUSES))
        return id_

    before = await asked()
    until = await _now(world)
    await recover(me.store.recovery, None, until)
    since = await asked()
    await recover(me.store.recovery, None, until)

    ended, stays = [await me.store.backfills.get(one) for one in (before, since)]
    assert ended is not None
    assert stays is not None
    assert (ended.open, ended.cancelled_by) == (False, "schedd")
    assert (stays.open, stays.cancelled_at) == (True, None)


async def test_recovery_stops_redrives_that_may_have_progressed_and_no_later_ones(
    world: World,
) -> None:
    me = await world.member()
    letters = me.store.dead_letters

    async def asked() -> RedriveId:
        job = await world.job()
        await world.sql(
            "INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)"
            " VALUES (%s, %s, %s, 'f')",
            *(new_id(), START, job.definition.job_id),
        )
        chosen = LetterFilter("default", str(job.definition.job_id))
        request = RedriveWish(RedriveId(new_id()), job.shard, chosen, 10.0, None, "ann")
        assert await letters.create(request, None, audited(NO_PAUSES, NO_PAUSES), str)
        return request.redrive_id

    before = await asked()
    until = await _now(world)
    await recover(me.store.recovery, None, until)
    since = await asked()
    await recover(me.store.recovery, None, until)

    stopped, stays = [await letters.redrive(one) for one in (before, since)]
    assert stopped is not None
    assert stays is not None
    assert (stopped.open, stopped.stopped_by, stopped.waiting) == (False, "schedd", 1)
    assert (stays.open, stays.stopped_at) == (True, None)


async def _now(world: World) -> datetime:
    [(now,)] = await world.sql("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


async def test_recovery_reads_live_runs_in_pages(world: World) -> None:
    me = await world.member()
    jobs = [await a_job(world, once=True, shard=shard) for shard in (3, 9, 9, 250)]
    runs = [run for job in jobs for run in (await me.fire(firing(job))).runs]
    seen: list[object] = []
    after = None
    while page := await me.store.recovery.waiting(after, utcnow() + DOUBT, 3):
        assert len(page) <= 3
        seen += [run.key for run in page if run.doubtful]
        after = page[-1]
    assert set(seen) == {run.key for run in runs}
    assert len(seen) == 4


async def test_a_recovery_is_resumed_by_a_choice_alone(world: World) -> None:
    """P2.9"""
    me = await world.member()
    await marked(world, HOUR)
    held = await recover(me.store.recovery, None, None)
    assert await me.store.pauses.resume(None, None, audited) is None
    assert await paused(world) == held
    since = utcnow() - timedelta(minutes=10)
    resumed = await me.store.pauses.resume(None, since, audited)
    assert resumed is not None
    assert resumed.all[-1].skipped_until() == since - timedelta(microseconds=1)
    assert await me.store.pauses.read() == resumed


async def test_at_resume_runs_that_were_inserted_early_are_skipped_up_to_the_horizon(
    world: World,
) -> None:
    me = await world.member()
    before, after = utcnow() - timedelta(minutes=30), utcnow() - timedelta(minutes=5)
    first = await a_job(world, once=False, due=before)
    second = await a_job(world, once=False, due=after)
    await me.fire(firing(first), firing(second))
    await marked(world, HOUR)
    await recover(me.store.recovery, None, None)
    await me.store.pauses.resume(None, utcnow() - timedelta(minutes=10), audited)
    states = await world.sql("SELECT job_id, state FROM runs")
    ids = first.definition.job_id, second.definition.job_id
    assert dict(states) == {ids[0]: "SKIPPED", ids[1]: "PENDING"}


async def test_no_call_uses_a_connection_to_a_database_that_lost_data(
    world: World,
) -> None:
    """P2.9: looked at before its first use, so not even one statement of ours goes there."""
    me = await world.member()
    database = me.store.database
    await marked(world, timedelta(0))
    await me.store.membership.probe()
    await world.sql("UPDATE cluster SET marked_at = marked_at - interval '1 hour'")
    database.reconnect()
    used: list[object] = []

    def body(connection: Connection) -> None:
        used.append(connection)

    for _ in range(2):
        with pytest.raises(Unavailable, match="went back"):
            await database.call(body)
    assert used == []
    database.follow()
    await database.call(body)
    assert len(used) == 1


async def test_the_probe_detects_a_restore_where_a_pooler_keeps_the_connections(
    world: World,
) -> None:
    me = await world.member()
    await marked(world, timedelta(0))
    await me.store.membership.probe()
    await marked(world, HOUR)
    with pytest.raises(Unavailable, match="went back"):
        await me.store.membership.probe()


async def test_a_connection_is_probed_once_and_outside_of_other_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hot path has no statement more."""
    me = await world.member()
    looks: list[object] = []
    look = recovery.database_identity.probe_server

    def counted(connection: Connection) -> object:
        looks.append(connection)
        return look(connection)

    monkeypatch.setattr(recovery.database_identity, "probe_server", counted)
    me.store.database.reconnect()
    for _ in range(5):
        await me.store.database.on_lane([0], lambda c: c.exec_driver_sql("SELECT 1").all())
    assert len(looks) == 1


async def test_a_result_under_a_token_of_the_lost_future_is_stale(world: World) -> None:
    """P2.7: the row went back to before that token, and epochs have jumped past it."""
    me = await world.member()
    [run] = (await me.fire(firing(await a_job(world, once=False)))).runs
    [out] = await me.assigned(draft(run))
    await world.sql(
        "UPDATE runs SET state = 'PENDING', token = 0, attempt = 0, worker = NULL,"
        " incarnation = NULL, start_by = NULL WHERE run_id = %s",
        run.key.run_id,
    )
    [verdict] = await me.store.results.accept([report(out)])
    assert verdict.value == "STALE"
    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["token"]) == (State.PENDING.value, 0)
    assert row["due_at"].tzinfo == UTC
