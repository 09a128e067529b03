"""Overlap on rows: each policy, triggers with their own, and owners one after the other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, Loss, OverlapCandidates, Trigger
from schedd.core.runs.overlap import BUFFERS
from schedd.core.runs.records import Assignments, JobRecord, OverlapOutcome, TimerEdit, Unstarted
from schedd.core.runs.run_records import RunRecord
from support.store import MINUTE, START, Member, World, draft, firing, manual_run, ok, report

pytestmark = pytest.mark.usefixtures("partition")

REPLACING = [Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER]


async def fired(me: Member, job: JobRecord, count: int, since: int = 0) -> list[LiveRun]:
    """Runs of the job, a minute apart."""
    runs = []
    for n in range(since, since + count):
        runs += (await me.fire(firing(job, at=START + n * MINUTE))).runs
    return runs


async def assign_runs(me: Member, policy: Overlap, *runs: LiveRun) -> Assignments:
    """Return the answer for these runs when there are slots for all of them."""
    limit = 0 if policy is Overlap.ALLOW else 1
    return await me.assign(*(draft(run, overlap=policy, overlap_limit=limit) for run in runs))


async def under_way(me: Member, run: LiveRun) -> LiveRun:
    """Return the run, dispatched before any later run exists."""
    [assigned] = (await assign_runs(me, Overlap.ALLOW, run)).assigned
    return assigned.run


async def judge_overlap(
    me: Member, policy: Overlap, run: LiveRun, *, generation: int = 1
) -> OverlapOutcome:
    crowd = OverlapCandidates(run.job_id, run.shard, generation, policy, datetime.now(UTC))
    return await me.store.owner.part(me.claim(run.shard), [crowd])


async def triggered(
    me: Member, job: JobRecord, overlap: Overlap | None = None, at: datetime = START, **more
) -> LiveRun:
    made = await me.store.users.insert_run(
        job.definition.job_id,
        replace(manual_run(at), **more),
        Trigger.MANUAL,
        Priority.MEDIUM,
        None,
        None,
        ok("trigger"),
        overlap,
    )
    assert isinstance(made, RunRecord)
    return made.run


async def states(world: World, *runs: LiveRun) -> list[str]:
    rows = [await world.run_row(run.key.run_id) for run in runs]
    return [
        row["state"] + (f" ({row['reason']})" if row["reason"] is not None else "") for row in rows
    ]


# ── buffers ──────────────────────────────────────────────────────────────────────────────────────


async def test_buffer_one_keeps_the_first_waiting_run_and_skips_later_ones(
    world: World,
) -> None:
    me = await world.member()
    first, second, third, fourth = await fired(me, await world.job(), 4)
    running = await under_way(me, first)

    answer = await assign_runs(me, Overlap.BUFFER_ONE, fourth, second, third)
    done = await judge_overlap(me, Overlap.BUFFER_ONE, second)

    assert (answer.assigned, answer.ended, answer.waiting) == ([], [], [])
    assert set(answer.held) == {second.key, third.key, fourth.key}
    assert ({key for key, _ in done.ended}, done.cancelled) == ({third.key, fourth.key}, [])
    assert done.skipped == 2
    full = "SKIPPED (BUFFER_FULL)"
    assert await states(world, first, second, third, fourth) == ["RUNNING", "PENDING", full, full]
    assert (await world.run_row(third.key.run_id))["fired_by"] == me.tenure
    assert not await world.is_live(third.key.run_id)

    await me.store.results.accept([report(running)])
    assert len((await assign_runs(me, Overlap.BUFFER_ONE, second)).assigned) == 1


async def test_a_buffer_is_emptied_in_its_order_for_any_order_of_drafts(world: World) -> None:
    me = await world.member()
    runs = await fired(me, await world.job(), 3)

    for run in runs:
        answer = await assign_runs(me, Overlap.BUFFER_ALL, *reversed(runs))
        [handed] = answer.assigned
        assert handed.run.key == run.key
        await me.store.results.accept([report(handed.run)])


async def test_buffer_one_keeps_one_run_beside_the_next_to_start_without_a_slot(
    world: World,
) -> None:
    """No run is admitted: the first would start at once, so one more may wait for it."""
    me = await world.member()
    runs = await fired(me, await world.job(), 3)

    await judge_overlap(me, Overlap.BUFFER_ONE, runs[0])

    assert await states(world, *runs) == ["PENDING", "PENDING", "SKIPPED (BUFFER_FULL)"]


async def test_buffer_all_has_a_bound_and_runs_beyond_it_are_skipped_as_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedd.store.dispatch.overlap.ROOMS", '{"BUFFER_ALL": 2, "BUFFER_ONE": 1}')
    me = await world.member()
    runs = await fired(me, await world.job(), 5)
    await assign_runs(me, Overlap.BUFFER_ALL, runs[0])

    await judge_overlap(me, Overlap.BUFFER_ALL, runs[0])

    full = "SKIPPED (BUFFER_FULL)"
    assert await states(world, *runs) == ["RUNNING", "PENDING", "PENDING", full, full]
    assert BUFFERS[Overlap.BUFFER_ALL] == 1000


async def test_a_run_that_retries_keeps_the_buffer_waiting(world: World) -> None:
    """A run that retries is admitted until it ends."""
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    running = await under_way(me, first)
    await me.store.results.accept([report(running, state=State.RETRYING, retry_at=START + MINUTE)])

    answer = await assign_runs(me, Overlap.BUFFER_ONE, second)

    assert (answer.assigned, answer.held) == ([], [second.key])


# ── who comes last replaces the others ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", REPLACING)
async def test_the_newest_ends_the_one_that_runs_and_starts_when_it_has_ended(
    world: World, policy: Overlap
) -> None:
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    running = await under_way(me, first)

    answer = await assign_runs(me, policy, second)
    done = await judge_overlap(me, policy, second)

    assert (answer.assigned, answer.held) == ([], [second.key])
    [marked] = done.cancelled
    kills = policy is Overlap.TERMINATE_OTHER
    assert (marked.key, marked.cancelling, marked.killing) == (first.key, True, kills)
    assert marked.token == running.token
    assert (await assign_runs(me, policy, second)).assigned == [], "it hasn't ended yet"
    again = await judge_overlap(me, policy, second)
    assert again == OverlapOutcome([], []), "it is marked already; the scan tells its worker"
    [scanned] = await me.store.owner.live_runs([first.shard], [State.RUNNING])
    assert (scanned.cancelling, scanned.killing) == (True, kills)

    await me.store.results.accept([report(running)])
    assert await states(world, first) == ["CANCELLED (BY_OVERLAP)"]
    assert len((await assign_runs(me, policy, second)).assigned) == 1


async def test_cancel_other_starts_only_the_newest_run_after_the_first_ends(
    world: World,
) -> None:
    me = await world.member()
    policy = Overlap.CANCEL_OTHER
    first, second, third, fourth = await fired(me, await world.job(), 4)
    running = await under_way(me, first)

    assert (await assign_runs(me, policy, second, third, fourth)).assigned == []
    done = await judge_overlap(me, policy, second)

    by_overlap = "CANCELLED (BY_OVERLAP)"
    assert {key for key, _ in done.ended} == {second.key, third.key}
    assert await states(world, second, third, fourth) == [by_overlap, by_overlap, "PENDING"]
    assert not await world.is_live(second.key.run_id)
    await me.store.results.accept([report(running)])
    assert len((await assign_runs(me, policy, fourth)).assigned) == 1


async def test_cancel_other_cancels_an_older_waiting_run(world: World) -> None:
    """Else it would only be cancelled."""
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)

    answer = await assign_runs(me, Overlap.CANCEL_OTHER, first, second)
    await judge_overlap(me, Overlap.CANCEL_OTHER, first)

    assert answer.assigned == []
    assert await states(world, first, second) == ["CANCELLED (BY_OVERLAP)", "PENDING"]
    assert len((await assign_runs(me, Overlap.CANCEL_OTHER, second)).assigned) == 1


async def test_a_retrying_or_given_back_run_is_cancelled_at_once(world: World) -> None:
    me = await world.member()
    policy = Overlap.CANCEL_OTHER
    retries, back, newest = await fired(me, await world.job(), 3)
    answer = await assign_runs(me, Overlap.ALLOW, retries, back)
    one, two = (each.run for each in answer.assigned)
    await me.store.results.accept([report(one, state=State.RETRYING, retry_at=START + MINUTE)])
    await me.store.owner.give_back(me.claim(0), [Unstarted(two.key, two.shard, two.token)])

    done = await judge_overlap(me, policy, newest)

    assert {key for key, _ in done.ended} == {retries.key, back.key}
    assert await states(world, retries, back) == ["CANCELLED (BY_OVERLAP)"] * 2
    assert len((await assign_runs(me, policy, newest)).assigned) == 1


async def test_cancel_other_replaces_a_run_without_a_free_slot(world: World) -> None:
    """P3.14: the run that will be replaced may have the last one."""
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    await under_way(me, first)

    done = await judge_overlap(me, Overlap.CANCEL_OTHER, second)

    assert [run.key for run in done.cancelled] == [first.key]


async def test_a_run_canceled_by_a_user_first_keeps_that_reason_after_a_kill(
    world: World,
) -> None:
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    running = await under_way(me, first)
    await me.store.users.cancel_run(first.key.run_id, ok("cancel"))

    assert (await judge_overlap(me, Overlap.CANCEL_OTHER, second)).cancelled == []
    [marked] = (await judge_overlap(me, Overlap.TERMINATE_OTHER, second)).cancelled

    assert (marked.cancelling, marked.killing) == (True, True)
    await me.store.results.accept([report(running)])
    assert await states(world, first) == ["CANCELLED (BY_USER)"]


@pytest.mark.parametrize("end", ["refused", "lost", "retries"])
async def test_a_replaced_run_ends_as_canceled_by_overlap_whatever_its_outcome(
    world: World, end: str
) -> None:
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    running = await under_way(me, first)
    await judge_overlap(me, Overlap.CANCEL_OTHER, second)

    if end == "refused":
        await me.store.results.refuse([Unstarted(running.key, running.shard, running.token)])
    elif end == "lost":
        assert running.incarnation is not None
        await me.store.owner.rescue(me.claim(0), [loss(running)])
    else:
        await me.store.results.accept([report(running, state=State.RETRYING, retry_at=START)])

    assert await states(world, first) == ["CANCELLED (BY_OVERLAP)"]
    assert len((await assign_runs(me, Overlap.CANCEL_OTHER, second)).assigned) == 1


# ── triggers with a policy of their own ──────────────────────────────────────────────────────────


async def test_the_policy_of_a_trigger_applies_only_to_its_run(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [first] = await fired(me, job, 1)
    await under_way(me, first)
    beside = await triggered(me, job, Overlap.ALLOW)
    skipped = await triggered(me, job)

    assert beside.overlap is Overlap.ALLOW
    assert len((await assign_runs(me, Overlap.SKIP, beside)).assigned) == 1
    assert (await assign_runs(me, Overlap.SKIP, skipped)).ended == [skipped.key]


async def test_runs_of_two_policies_are_never_judged_in_one_statement(world: World) -> None:
    """P3.6: a dispatched run is in progress for the others only in the next one."""
    me = await world.member()
    job = await world.job()
    [first] = await fired(me, job, 1)
    beside, another = [await triggered(me, job, Overlap.ALLOW) for _ in range(2)]

    answer = await assign_runs(me, Overlap.SKIP, first, beside)
    assert [each.run.key for each in answer.assigned] == [first.key]
    assert (answer.ended, answer.held, answer.waiting) == ([], [], [beside.key])

    [second] = await fired(me, job, 1, since=1)
    answer = await assign_runs(me, Overlap.SKIP, another, second, beside)
    assert {each.run.key for each in answer.assigned} == {another.key, beside.key}
    assert (answer.ended, answer.held, answer.waiting) == ([], [], [second.key])


async def test_a_trigger_that_replaces_ends_the_runs_of_a_job_that_skips(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [first] = await fired(me, job, 1)
    await under_way(me, first)
    newest = await triggered(me, job, Overlap.TERMINATE_OTHER, at=START + MINUTE)

    assert (await assign_runs(me, Overlap.SKIP, newest)).held == [newest.key]
    [marked] = (await judge_overlap(me, Overlap.SKIP, newest)).cancelled

    assert (marked.key, marked.killing) == (first.key, True)


async def judge_waiting_runs(
    me: Member, *runs: LiveRun, ending: tuple[LiveRun, ...] | None = ()
) -> OverlapOutcome:
    """Judge a job that skips, of which these runs wait for long."""
    ends = None if ending is None else tuple(run.key.run_id for run in ending)
    run = runs[0]
    crowd = OverlapCandidates(
        run.job_id, run.shard, 1, Overlap.SKIP, datetime.now(UTC), ending=ends
    )
    return await me.store.owner.part(me.claim(run.shard), [crowd])


async def test_newer_runs_are_skipped_behind_a_run_that_waits_long(world: World) -> None:
    me = await world.member()
    runs = await fired(me, await world.job(), 3)

    await judge_waiting_runs(me, *runs, ending=None)
    assert await states(world, *runs) == ["PENDING"] * 3, "no scan looked at the line"
    await judge_waiting_runs(me, *runs)
    assert await states(world, *runs) == ["PENDING", "SKIPPED (OVERLAP)", "SKIPPED (OVERLAP)"]


async def test_no_run_is_skipped_behind_one_that_ends_by_its_definition(world: World) -> None:
    """An edit removed it, or it is overdue: the next run is dispatched."""
    me = await world.member()
    runs = await fired(me, await world.job(), 3)

    await judge_waiting_runs(me, *runs, ending=(runs[0],))

    assert await states(world, *runs) == ["PENDING", "PENDING", "SKIPPED (OVERLAP)"]


async def test_no_run_is_skipped_behind_a_run_that_a_trigger_replaces(world: World) -> None:
    me = await world.member()
    job = await world.job()
    first, second = await fired(me, job, 2)
    between = await triggered(me, job, Overlap.CANCEL_OTHER, at=START + MINUTE / 2)

    await judge_waiting_runs(me, first, second)

    assert await states(world, first, between, second) == [
        "CANCELLED (BY_OVERLAP)",
        "PENDING",
        "PENDING",
    ]


async def test_a_trigger_with_a_delay_neither_waits_nor_replaces_before_its_time(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    [first] = await fired(me, job, 1)
    soon = datetime.now(UTC) + timedelta(hours=1)
    await triggered(me, job, at=datetime.now(UTC), due_at=soon)

    assert await judge_overlap(me, Overlap.CANCEL_OTHER, first) == OverlapOutcome([], [])
    assert len((await assign_runs(me, Overlap.CANCEL_OTHER, first)).assigned) == 1


# ── pause, edit ──────────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_waits_for_a_resume_replaces_no_run_and_blocks_no_trigger(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    first, paused = await fired(me, job, 2)
    await under_way(me, first)
    await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"))

    now = {"generation": (await world.sql("SELECT generation FROM timers"))[0][0]}
    assert await judge_overlap(me, Overlap.CANCEL_OTHER, first, **now) == OverlapOutcome([], [])

    newest = await triggered(me, job, at=START + 9 * MINUTE)
    done = await judge_overlap(me, Overlap.CANCEL_OTHER, newest, **now)
    assert [key for key, _ in done.ended] == [paused.key]
    assert [run.key for run in done.cancelled] == [first.key]


async def test_a_trigger_of_a_paused_job_doesnt_wait_behind_runs_that_wait_for_the_resume(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    await fired(me, job, 1)
    await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"))
    asks = await triggered(me, job, at=START + 9 * MINUTE)

    assert len((await assign_runs(me, Overlap.BUFFER_ALL, asks)).assigned) == 1


@pytest.mark.parametrize("change", ["edited", "cluster paused"])
async def test_overlap_is_not_decided_by_an_old_definition_or_in_a_cluster_pause(
    world: World, change: str
) -> None:
    """P3.14: as with everything that starts."""
    me = await world.member()
    job = await world.job()
    first, second = await fired(me, job, 2)
    await under_way(me, first)
    if change == "edited":
        await me.store.users.update_job(
            job.definition.job_id, 1, job.definition, TimerEdit(), ok("update")
        )
    else:
        await world.sql("UPDATE cluster SET paused = true")

    assert await judge_overlap(me, Overlap.CANCEL_OTHER, second) == OverlapOutcome([], [])


# ── owners one after the other ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", [*REPLACING, *BUFFERS])
async def test_the_next_owner_continues_from_the_rows_of_the_previous_one(
    world: World, policy: Overlap
) -> None:
    """P3.14: the first owner dies in the middle: it had decided, and sent no message."""
    one = await world.member()
    first, second, third = await fired(one, await world.job(), 3)
    running = await under_way(one, first)
    await assign_runs(one, policy, second)
    await judge_overlap(one, policy, second)
    await one.store.membership.release(one.claim(0))
    two = await world.member()

    assert (
        await judge_overlap(one, policy, second),
        (await assign_runs(one, policy, second)).assigned,
    ) == (
        OverlapOutcome([], []),
        [],
    ), "the one before has nothing to say"
    await judge_overlap(two, policy, third)
    [scanned] = await two.store.owner.live_runs([first.shard], [State.RUNNING])
    assert scanned.cancelling == (policy in REPLACING)
    assert (await assign_runs(two, policy, second, third)).assigned == []
    await two.store.results.accept([report(running)])
    [after] = (await assign_runs(two, policy, second, third)).assigned
    assert after.run.key == (third.key if policy in REPLACING else second.key)
    assert after.run.token > running.token


async def test_a_released_owner_ends_and_cancels_no_runs(world: World) -> None:
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    await under_way(me, first)
    crowd = OverlapCandidates(first.job_id, first.shard, 1, Overlap.CANCEL_OTHER, datetime.now(UTC))
    claim = me.claim(0)
    await me.store.membership.release(claim)

    assert await me.store.owner.part(claim, [crowd]) == OverlapOutcome([], [])
    assert await states(world, first, second) == ["RUNNING", "PENDING"]


def loss(run: LiveRun) -> Loss:
    assert run.incarnation is not None
    return Loss(run.key, run.shard, run.token, run.incarnation, State.RETRYING, Reason.WORKER_LOST)
