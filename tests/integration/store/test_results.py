"""Results (P5.2): the token decides, a repetition is recognised, a stale one is audited."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from schedd.core.ids import IncarnationId, RunId, Token, new_id
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, Loss, RunKey, Verdict
from schedd.core.runs.redrive import LetterFilter
from schedd.core.runs.run_records import RunFilter
from schedd.store.connection.errors import SchemaMismatch
from schedd.store.results import accept
from support.store import (
    MINUTE,
    START,
    Member,
    World,
    draft,
    firing,
    incarnation,
    new_run,
    ok,
    report,
    wait_for_waiter,
)

ACCEPTED, REPEATED, STALE = Verdict.ACCEPTED, Verdict.REPEATED, Verdict.STALE


async def running(world: World, me: Member, **changes) -> LiveRun:
    """Return a dispatched run of a job of its own."""
    [run] = (await me.fire(firing(await world.job()))).runs
    [assigned] = await me.assigned(draft(run, **changes))
    return assigned


async def test_a_result_ends_its_run(world: World) -> None:
    me = await world.member()
    run = await running(world, me)

    assert await me.store.results.accept([report(run, result=b"42", output=b"log")]) == [ACCEPTED]

    stored = await me.store.users.get_run(run.key.run_id)
    assert stored is not None
    assert (stored.run.state, stored.exit_code, stored.run.started_at) == (
        State.SUCCEEDED,
        0,
        START,
    )
    assert not await world.is_live(run.key.run_id)
    assert await me.store.users.result(run.key.run_id) == b"42"
    assert await me.store.users.output(run.key.run_id, None) == (run.token, b"log")
    assert await me.store.users.output(run.key.run_id, run.token) == (run.token, b"log")
    assert await me.store.users.output(run.key.run_id, Token(run.token + 1)) is None


async def test_a_fenced_member_accepts_results_too(world: World) -> None:
    """M9: the token alone protects the row."""
    me = await world.member()
    other = await world.member(take=False)
    run = await running(world, me)
    await other.store.membership.fence_own(other.tenure)

    assert await other.store.results.accept([report(run)]) == [ACCEPTED]


async def test_a_stale_token_is_refused_and_audited(world: World) -> None:
    """P5.2: the run was dispatched again; its first worker's result changes the audit alone."""
    me = await world.member()
    first = await running(world, me)
    await me.store.results.accept([report(first, state=State.RETRYING, retry_at=START)])
    [waiting] = await me.store.owner.live_runs([first.shard], [State.RETRYING])
    [second] = await me.assigned(draft(waiting, worker="worker-2"))
    before = await world.run_row(first.key.run_id)
    late = report(first, digest=b"another outcome")

    assert await me.store.results.accept([late]) == [STALE]

    assert await world.run_row(first.key.run_id) == before
    [(_, line)] = await me.store.users.list_audit("result", None, first.key.run_id, None, 10)
    assert (line.outcome, line.reason, line.token, line.worker) == (
        "refused",
        "STALE",
        first.token,
        "worker-1",
    )
    assert str(first.incarnation) in line.source
    assert await me.store.results.accept([report(second)]) == [ACCEPTED]


async def test_stale_results_under_assigned_tokens_are_always_audited(
    world: World,
) -> None:
    """A worker makes up any number of tokens; a fencing rejection keeps its row."""
    me = await world.member()
    first = await running(world, me)
    await me.store.results.accept([report(first, state=State.RETRYING, retry_at=START)])
    [waiting] = await me.store.owner.live_runs([first.shard], [State.RETRYING])
    [second] = await me.assigned(draft(waiting, worker="worker-2"))
    made_up = [report(second, token=Token(second.token + n), audited=False) for n in range(1, 200)]
    late = report(first, digest=b"another outcome", audited=False)
    forged = report(second, sender=IncarnationId(new_id()), audited=False)

    assert set(await me.store.results.accept([*made_up, late, forged])) == {STALE}

    lines = await me.store.users.list_audit("result", None, first.key.run_id, None, 500)
    assert {line.token for _, line in lines} == {first.token, second.token}


async def test_a_run_that_cant_be_read_leaves_the_others_that_are_reported(world: World) -> None:
    me = await world.member()
    bad, good = [await running(world, me) for _ in range(2)]
    await world.sql("UPDATE runs SET priority = 99 WHERE run_id = %s", bad.key.run_id)
    assert [*await me.store.results.reported_runs([bad.key, good.key])] == [good.key]
    assert await me.store.results.accept([report(bad), report(good)]) == [ACCEPTED, ACCEPTED]


async def test_a_result_is_accepted_whose_run_is_cancelled_for_an_unknown_reason(
    world: World,
) -> None:
    me = await world.member()
    run = await running(world, me)
    await world.sql(
        "UPDATE runs SET cancelling = true, reason = 'WHY' WHERE run_id = %s", run.key.run_id
    )
    assert await me.store.results.accept([report(run)]) == [Verdict.CANCELLED]


async def test_a_late_result_sent_to_every_member_is_audited_once(
    world: World,
) -> None:
    members = [await world.member(), *[await world.member(take=False) for _ in range(2)]]
    me = members[0]
    first = await running(world, me)
    await me.store.results.accept([report(first, state=State.RETRYING, retry_at=START)])
    [waiting] = await me.store.owner.live_runs([first.shard], [State.RETRYING])
    [second] = await me.assigned(draft(waiting, worker="worker-2"))
    late = report(first, digest=b"another outcome")

    async with asyncio.TaskGroup() as group:
        said = [group.create_task(each.store.results.accept([late, late])) for each in members]
    assert [each.result() for each in said] == [[STALE, STALE]] * 3

    audit = me.store.users.list_audit
    assert len(await audit("result", None, first.key.run_id, None, 10)) == 1
    await me.store.results.accept([report(second)])
    forged = report(second, sender=IncarnationId(new_id()))
    assert await me.store.results.accept([forged]) == [STALE]
    assert len(await audit("result", None, first.key.run_id, None, 10)) == 2


async def test_a_result_of_another_sender_is_stale(world: World) -> None:
    """P5.2: who was never given the run ends it by no token."""
    me = await world.member()
    run = await running(world, me)
    forged = report(run, sender=IncarnationId(new_id()))

    assert await me.store.results.accept([forged]) == [STALE]
    assert (await world.run_row(run.key.run_id))["state"] == "RUNNING"


async def test_a_repeated_digest_is_answered_as_before(world: World) -> None:
    """P5.2: the worker didn't hear the acknowledgement, and asks again."""
    me = await world.member()
    run = await running(world, me)
    result = report(run)

    assert await me.store.results.accept([result]) == [ACCEPTED]
    assert await me.store.results.accept([result]) == [REPEATED]
    assert await me.store.users.list_audit("result", None, None, None, 10) == []


async def test_another_digest_under_the_same_token_is_stale(world: World) -> None:
    me = await world.member()
    run = await running(world, me)
    await me.store.results.accept([report(run)])

    other = report(run, digest=b"other", state=State.FAILED)

    assert await me.store.results.accept([other]) == [STALE]
    assert (await world.run_row(run.key.run_id))["state"] == "SUCCEEDED"


async def test_a_repetition_is_recognised_among_earlier_attempts(world: World) -> None:
    """P5.2: a retry has overwritten the row's own digest."""
    me = await world.member()
    first = await running(world, me)
    failed = report(first, state=State.RETRYING, retry_at=START)
    await me.store.results.accept([failed])
    [waiting] = await me.store.owner.live_runs([first.shard], [State.RETRYING])
    await me.assigned(draft(waiting))

    assert await me.store.results.accept([failed]) == [REPEATED]
    assert await me.store.results.accept([replace(failed, sender=IncarnationId(new_id()))]) == [
        STALE
    ]


async def test_a_batch_has_a_verdict_each_in_order(world: World) -> None:
    me = await world.member()
    runs = [await running(world, me) for _ in range(4)]
    unknown = replace(report(runs[0]), key=RunKey(START, RunId(new_id())))
    await me.store.results.accept([report(runs[3])])
    batch = [
        report(runs[2]),
        replace(report(runs[0]), token=Token(1)),
        report(runs[3]),
        unknown,
        report(runs[1]),
        report(runs[1]),
        report(runs[1], digest=b"other"),
    ]

    assert await me.store.results.accept(batch) == [
        ACCEPTED,
        STALE,
        REPEATED,
        STALE,
        ACCEPTED,
        REPEATED,
        STALE,
    ]


async def test_the_same_results_to_two_members_in_opposite_orders_are_accepted_once(
    world: World,
) -> None:
    me = await world.member()
    other = await world.member(take=False)
    reports = [report(await running(world, me)) for _ in range(40)]

    one, two = await asyncio.gather(
        me.store.results.accept(reports), other.store.results.accept(reports[::-1])
    )

    for mine, theirs in zip(one, two[::-1], strict=True):
        assert {mine, theirs} == {ACCEPTED, REPEATED}


async def test_a_failed_attempt_waits_for_its_retry_time_as_a_row(world: World) -> None:
    me = await world.member()
    run = await running(world, me)
    later = START + 3 * MINUTE

    await me.store.results.accept(
        [report(run, state=State.RETRYING, reason=Reason.EXIT_CODE, exit_code=1, retry_at=later)]
    )

    stored = await me.store.users.get_run(run.key.run_id)
    assert stored is not None
    assert (stored.run.state, stored.retry_at, stored.run.attempt) == (State.RETRYING, later, 1)
    assert await world.is_live(run.key.run_id)


async def test_a_run_that_fails_for_good_becomes_a_dead_letter(world: World) -> None:
    me = await world.member()
    job = await world.job(name="doomed")
    [run] = (await me.fire(firing(job))).runs
    [assigned] = await me.assigned(draft(run))

    await me.store.results.accept(
        [
            report(
                assigned,
                state=State.FAILED,
                reason=Reason.EXIT_CODE,
                dead=True,
                fingerprint="exit 1",
            )
        ]
    )

    of = LetterFilter("default", "doomed")
    [letter] = await me.store.dead_letters.listed(of, None, None, 10, resolved=False)
    assert (letter.run.run.key, letter.fingerprint) == (run.key, "exit 1")
    other = LetterFilter("default", "other")
    assert await me.store.dead_letters.listed(other, None, None, 10, resolved=False) == []
    assert (await me.store.users.counts()).dead_letters == 1


@pytest.mark.parametrize("table", ["dead_letters", "results", "outputs"])
async def test_a_result_and_its_consequences_are_stored_together_or_not_at_all(
    world: World, table: str
) -> None:
    """P5.1: were they two transactions, one that was lost in between would be missing for ever."""
    me = await world.member()
    run = await running(world, me)
    failed = report(run, state=State.FAILED, dead=True, result=b"42", output=b"log")
    await world.sql(f"ALTER TABLE {table} RENAME TO elsewhere")
    with pytest.raises(SchemaMismatch):
        await me.store.results.accept([failed])
    await world.sql(f"ALTER TABLE elsewhere RENAME TO {table}")

    for untouched in ("dead_letters", "results", "outputs"):
        assert await world.sql(f"SELECT count(*) FROM {untouched}") == [(0,)]
    assert (await world.run_row(run.key.run_id))["state"] == "RUNNING"
    assert await world.is_live(run.key.run_id)
    assert await me.store.results.accept([failed]) == [ACCEPTED]


async def test_a_returned_attempt_costs_nothing(world: World) -> None:
    me = await world.member()
    run = await running(world, me)

    await me.store.results.accept([report(run, state=State.PENDING, counts=False)])

    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["attempt"], row["assignments"]) == ("PENDING", 0, 1)


async def test_a_shutdown_in_the_middle_is_written_down_as_a_loss(world: World) -> None:
    me = await world.member()
    run = await running(world, me)

    await me.store.results.accept([report(run, state=State.PENDING, counts=False, lost=True)])

    row = await world.run_row(run.key.run_id)
    assert (row["losses"], row["attempt"]) == (1, 0)


async def test_a_run_cancelled_while_running_ends_cancelled(world: World) -> None:
    me = await world.member()
    run = await running(world, me)
    marked = await me.store.users.cancel_run(run.key.run_id, ok("cancel"))
    assert marked is not None
    assert (marked.run.state, marked.run.cancelling) == (State.RUNNING, True)

    verdicts = await me.store.results.accept(
        [report(run, state=State.RETRYING, retry_at=START, dead=True)]
    )

    assert verdicts == [Verdict.CANCELLED]
    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["reason"]) == ("CANCELLED", "BY_USER")
    assert not await world.is_live(run.key.run_id)
    assert await world.sql("SELECT count(*) FROM dead_letters") == [(0,)]


async def test_a_failed_attempt_of_a_deleted_job_isnt_retried(world: World) -> None:
    me = await world.member()
    run = await running(world, me)
    await me.store.users.delete_job(run.job_id, ok("delete"))

    await me.store.results.accept([report(run, state=State.RETRYING, retry_at=START)])

    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["reason"]) == ("CANCELLED", "DELETED")
    assert not await world.is_live(run.key.run_id)


async def test_a_delete_that_meets_a_result_in_flight_leaves_no_retry_behind(
    world: World,
) -> None:
    me = await world.member()
    run = await running(world, me)
    accepted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def accept_slowly(connection: Connection) -> None:
        accept.accept(connection, [report(run, state=State.RETRYING, retry_at=START)])
        loop.call_soon_threadsafe(accepted.set)
        wait_for_waiter(connection)

    accepting = asyncio.create_task(me.store.database.call(accept_slowly), name="accept")
    await accepted.wait()
    await me.store.users.delete_job(run.job_id, ok("delete"))
    await accepting

    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["reason"]) == ("CANCELLED", "DELETED")


async def test_a_batch_locks_its_rows_by_their_keys_in_any_given_order(
    world: World,
) -> None:
    """P1.6: a transaction that waits for one row has no lock on the rows behind it."""
    me = await world.member()
    runs = [await running(world, me) for _ in range(4)]
    runs.sort(key=lambda run: (run.key.scheduled_at, run.key.run_id))
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def lock(connection: Connection, run: LiveRun) -> None:
        connection.exec_driver_sql(
            "SELECT 1 FROM runs WHERE scheduled_at = %s AND run_id = %s FOR UPDATE NOWAIT",
            (run.key.scheduled_at, run.key.run_id),
        ).one()

    def hold_the_first(connection: Connection) -> None:
        lock(connection, runs[0])
        loop.call_soon_threadsafe(held.set)
        wait_for_waiter(connection)
        for behind in runs[1:]:
            lock(connection, behind)

    holding = asyncio.create_task(me.store.database.call(hold_the_first), name="hold")
    await held.wait()
    reports = [report(run) for run in (runs[2], runs[3], runs[1], runs[0])]
    assert await me.store.results.accept(reports) == [ACCEPTED] * 4
    await holding


async def test_a_result_is_stored_without_values_that_postgresql_rejects(world: World) -> None:
    me = await world.member()
    runs = [await running(world, me) for _ in range(3)]
    reports = [report(run, error="a\0b\ud800") for run in runs]
    reports[1] = replace(reports[1], exit_code=2**40, result=b"lost")

    assert await me.store.results.accept(reports) == [ACCEPTED] * 3

    rows = [await world.run_row(run.key.run_id) for run in runs]
    assert [row["state"] for row in rows] == ["SUCCEEDED"] * 3
    assert rows[0]["error"] == "a␀b?"
    assert "can't be stored" in rows[1]["error"]


async def test_a_start_is_written_down_for_the_token_that_runs(world: World) -> None:
    me = await world.member()
    run = await running(world, me)

    await me.store.results.started([(run.key, Token(run.token - 1), START)])
    assert (await world.run_row(run.key.run_id))["started_at"] is None
    await me.store.results.started([(run.key, run.token, START)])

    assert (await world.run_row(run.key.run_id))["started_at"] == START


async def test_reported_runs_are_read_whatever_their_state(world: World) -> None:
    me = await world.member()
    run, ended = await running(world, me), await running(world, me)
    await me.store.results.accept([report(ended)])

    found = await me.store.results.reported_runs([run.key, ended.key])

    assert found[run.key] == run
    assert found[ended.key].state is State.SUCCEEDED


async def test_a_lost_workers_runs_move_on_in_the_transaction_that_says_so(world: World) -> None:
    """P6.2: a run that moved on while its worker isn't lost would be given to it again."""
    me = await world.member()
    gone = await me.store.workers.register(incarnation())
    again, failed = [await running(world, me, incarnation=gone.id) for _ in range(2)]
    losses = [
        Loss(again.key, again.shard, again.token, gone.id, State.RETRYING, Reason.WORKER_LOST),
        Loss(
            failed.key,
            failed.shard,
            failed.token,
            gone.id,
            State.FAILED,
            Reason.WORKER_LOST,
            dead=True,
            fingerprint="worker lost",
        ),
    ]

    await world.sql("ALTER TABLE incarnations RENAME TO elsewhere")
    with pytest.raises(SchemaMismatch):
        await me.store.owner.rescue(me.claim(0), losses)
    await world.sql("ALTER TABLE elsewhere RENAME TO incarnations")
    assert await world.sql("SELECT DISTINCT state FROM runs") == [("RUNNING",)]

    moved = await me.store.owner.rescue(me.claim(0), losses)

    assert set(moved) == {again.key, failed.key}
    rows = [await world.run_row(run.key.run_id) for run in (again, failed)]
    assert [(row["state"], row["reason"], row["losses"], row["attempt"]) for row in rows] == [
        ("RETRYING", "WORKER_LOST", 1, 0),
        ("FAILED", "WORKER_LOST", 1, 0),
    ]
    [lost] = await me.store.workers.incarnations([gone.id])
    assert lost.lost_at is not None
    assert (await me.store.users.counts()).dead_letters == 1
    assert await me.store.results.accept([report(again)]) == [STALE]


async def test_a_worker_whose_run_ended_before_its_loss_was_written_isnt_lost(world: World) -> None:
    """Its owner goes by the runs that were moved on: it would give the lost one work again."""
    me = await world.member()
    back = await me.store.workers.register(incarnation())
    ended = await running(world, me, incarnation=back.id)
    await me.store.results.accept([report(ended)])

    loss = Loss(ended.key, ended.shard, ended.token, back.id, State.RETRYING, Reason.WORKER_LOST)
    assert await me.store.owner.rescue(me.claim(0), [loss]) == []

    [stored] = await me.store.workers.incarnations([back.id])
    assert stored.lost_at is None


async def test_a_loss_of_another_owners_shard_marks_nothing(world: World) -> None:
    me = await world.member()
    gone = await me.store.workers.register(incarnation())
    run = await running(world, me, incarnation=gone.id)
    claim = me.claim(0)
    await me.store.membership.release(claim)

    moved = await me.store.owner.rescue(
        claim,
        [Loss(run.key, run.shard, run.token, gone.id, State.RETRYING, Reason.WORKER_LOST)],
    )

    assert moved == []
    assert (await me.store.workers.incarnations([gone.id]))[0].lost_at is None
    assert (await world.run_row(run.key.run_id))["state"] == "RUNNING"


async def test_one_broken_loss_is_set_aside_and_the_other_runs_move_on(world: World) -> None:
    """P3.10: what the database refuses must not hold up what came with it."""
    me = await world.member()
    gone = await me.store.workers.register(incarnation())
    runs = [await running(world, me, incarnation=gone.id) for _ in range(3)]
    losses = [
        Loss(run.key, run.shard, run.token, gone.id, State.RETRYING, Reason.WORKER_LOST)
        for run in runs
    ]
    losses[1] = replace(losses[1], token=Token(2**70))

    moved = await me.store.owner.rescue(me.claim(0), losses)

    assert set(moved) == {runs[0].key, runs[2].key}


async def test_the_first_loss_is_final(world: World) -> None:
    """P6.2: neither a second loss nor a new registration changes it."""
    me = await world.member()
    worker = await me.store.workers.register(incarnation())
    await me.store.workers.lose([worker.id], None)
    [first] = await me.store.workers.incarnations([worker.id])
    await me.store.workers.lose([worker.id], None)

    again = await me.store.workers.register(worker)

    assert again == first
    assert again.lost_at is not None
    assert await me.store.workers.of_worker(worker.worker) == []


async def test_a_cancel_of_a_waiting_run_is_immediate_and_idempotent(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire(firing(job))).runs

    first = await me.store.users.cancel_run(run.key.run_id, ok("cancel"))
    again = await me.store.users.cancel_run(run.key.run_id, ok("cancel"))

    assert first is not None
    assert first == again
    assert (first.run.state, first.reason) == (State.CANCELLED, "BY_USER")
    assert not await world.is_live(run.key.run_id)
    assert await me.store.users.cancel_run(RunId(new_id()), ok("cancel")) is None
    assert (await me.assign(draft(run))).assigned == []


async def test_unstarted_attempts_are_what_ok_waits_for(world: World) -> None:
    me = await world.member()
    run = await running(world, me)
    assert run.start_by is not None

    before = await me.store.users.unstarted_attempts(run.job_id, run.start_by - MINUTE)
    after = await me.store.users.unstarted_attempts(run.job_id, run.start_by)
    await me.store.users.delete_job(run.job_id, ok("delete"))
    deleted = await me.store.users.unstarted_attempts(run.job_id, run.start_by - MINUTE)
    await me.store.results.started([(run.key, run.token, START)])
    started = await me.store.users.unstarted_attempts(run.job_id, run.start_by - MINUTE)

    assert [each.key for each in before] == [each.key for each in deleted] == [run.key]
    assert after == started == []


async def test_a_pause_waits_for_attempts_of_runs_that_left_their_worker(
    world: World,
) -> None:
    """P3.8: a worker whose lease was lost may yet start it (in the model: ok-asks-ended)."""
    me = await world.member()
    worker = await me.store.workers.register(incarnation())
    lost, again = [await running(world, me, incarnation=worker.id) for _ in range(2)]
    await me.store.owner.rescue(
        me.claim(0),
        [
            Loss(run.key, run.shard, run.token, worker.id, State.RETRYING, Reason.WORKER_LOST)
            for run in (lost, again)
        ],
    )
    await me.assigned(draft(again))
    assert lost.start_by is not None
    before = lost.start_by - MINUTE

    waiting = await me.store.users.unstarted_attempts(lost.job_id, before)
    twice = await me.store.users.unstarted_attempts(again.job_id, before)

    assert [(each.token, each.incarnation) for each in waiting] == [(lost.token, worker.id)]
    assert again.token in {each.token for each in twice}
    assert len(twice) == 2


async def test_runs_are_listed_newest_first_and_by_what_is_asked(world: World) -> None:
    me = await world.member()
    job, other = await world.job(name="a"), await world.job(name="b")
    instants = [START + n * MINUTE for n in range(5)]
    runs = tuple(new_run(job, at) for at in instants)
    live = (await me.fire(firing(job, runs=runs), firing(other))).runs
    await me.assigned(draft(live[-1]))

    async def listed(job="", after=None, limit=9, **more):
        wanted = RunFilter(job, **more)
        found, _ = await me.store.users.list_runs("default", after, limit, wanted)
        return [record.run.key for record in found]

    mine = [run.key for run in reversed(runs)]
    assert await listed("a") == await listed(str(job.definition.job_id)) == mine
    last = mine[1]
    assert await listed("a", after=(last.scheduled_at, last.run_id)) == mine[2:]
    assert await listed("a", since=instants[3]) == mine[:2]
    assert await listed("a", before=instants[1]) == mine[4:]
    assert len(await listed(states=(State.RUNNING,))) == len(await listed(worker="worker-1")) == 1
    assert len(await listed(limit=2)) == 2
    counted = await me.store.users.counts()
    assert (counted.jobs, counted.pending, counted.running) == (2, 5, 1)
