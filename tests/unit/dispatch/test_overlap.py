"""Overlap: the jobs that are looked up, and the workers that get the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.events import EndedUnreported
from schedd.core.ids import Token
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Claim, LiveRun, OverlapCandidates
from schedd.core.runs.overlap import LINED_UP
from schedd.core.runs.records import OverlapOutcome
from schedd.dispatch.overlap import MOST_OF_LINE, crowded, piled_up
from support.dispatching import SHELL, World, of
from support.runs import NOW, run, running, worker


def busy(policy: Overlap) -> World:
    """A job of which one run has the only slot that is granted; its second one waits."""
    world = World()
    world.definitions.default = replace(SHELL, overlap=policy, overlap_limit=1)
    world.attach(worker(slots=8), grant=4)
    world.rows.limits = {run(1).job_id: 1}
    world.run_index.put_runs([of(1, 1, waited=2), of(1, 2, waited=1)], NOW)
    return world


@pytest.mark.parametrize("policy", sorted(Overlap))
async def test_a_run_behind_another_is_blocked_and_judged_if_its_policy_buffers(
    policy: Overlap,
) -> None:
    world = busy(policy)
    await world.run_until_idle()

    assert world.run_index.held == [run(1).job_id]
    assert world.rows.judged == ([run(1).job_id] if policy in LINED_UP else [])


async def test_a_job_is_judged_by_the_overlap_policy_of_a_trigger() -> None:
    world = busy(Overlap.SKIP)
    world.run_index.put_runs([replace(of(1, 2, waited=1), overlap=Overlap.BUFFER_ONE)], NOW)
    await world.run_until_idle()

    assert world.rows.judged == [run(1).job_id]


@pytest.mark.parametrize("kills", [False, True])
async def test_the_worker_of_a_replaced_run_is_notified_at_once(kills: bool) -> None:
    world = busy(Overlap.CANCEL_OTHER)
    replaced = replace(running(1, worker()), cancelling=True, killing=kills)
    world.rows.parted = OverlapOutcome([], [replaced])
    await world.run_until_idle()

    [line] = world.lines.values()
    assert (line.cancelled, line.killed) == ([replaced.key.run_id], [replaced.key.run_id] * kills)


async def test_an_ended_run_leaves_the_run_index_and_the_next_is_tried() -> None:
    world = busy(Overlap.CANCEL_OTHER)
    await world.run_until_idle()
    job, first, second = run(1).job_id, of(1, 1).key, of(1, 2).key
    world.rows.admitted[job] = 0
    world.rows.parted = OverlapOutcome([(first, job)], [])
    [waiting] = world.run_index._held

    released = await world.overlap.part([waiting], await world.definitions.newest([job]))
    await world.run_until_idle()

    assert released
    assert first.run_id not in world.run_index.running
    assert world.handed() == {1, second.run_id.number}


async def test_replaced_runs_and_runs_over_the_buffer_are_counted_as_ended() -> None:
    world = busy(Overlap.CANCEL_OTHER)
    job, keys = run(1).job_id, [of(1, number).key for number in (1, 2, 3)]
    world.rows.parted = OverlapOutcome([(key, job) for key in keys], [], skipped=1)
    await world.overlap.part([of(1, 1)], await world.definitions.newest([job]))
    world.rows.parted = OverlapOutcome([], [running(1, worker())])
    await world.overlap.part([of(1, 1)], await world.definitions.newest([job]))

    assert [one for one in world.events if isinstance(one, EndedUnreported)] == [
        EndedUnreported(State.CANCELLED, Reason.BY_OVERLAP, 2),
        EndedUnreported(State.SKIPPED, Reason.BUFFER_FULL, 1),
    ]


async def test_a_run_skipped_for_overlap_is_counted_as_ended() -> None:
    world = busy(Overlap.SKIP)
    world.rows.skipped = frozenset({of(1, 2).key})
    await world.run_until_idle()
    await world.run_until_idle()

    assert [one for one in world.events if isinstance(one, EndedUnreported)] == [
        EndedUnreported(State.SKIPPED, Reason.OVERLAP, 1)
    ]


async def test_runs_past_their_start_deadline_are_reported_as_ending_to_skip() -> None:
    world = busy(Overlap.SKIP)
    deadline = replace(SHELL, overlap=Overlap.SKIP, start_deadline=timedelta(seconds=7))
    world.definitions.default = deadline
    line = [replace(of(1, n), due_at=NOW - timedelta(seconds=9 - n)) for n in (1, 2, 3)]
    asked: list[OverlapCandidates] = []

    async def part(_claim: Claim, candidates: Sequence[OverlapCandidates]) -> OverlapOutcome:
        asked.extend(candidates)
        return OverlapOutcome([], [])

    world.rows.part = part  # type: ignore[method-assign]
    late = [replace(run, ready_at=run.due_at) for run in line]
    await world.overlap.judge_blocked(late[:1], piled_up(late, NOW))

    assert [crowd.ending for crowd in asked] == [(late[0].key.run_id, late[1].key.run_id)]


async def test_a_line_whose_head_must_end_first_isnt_judged_yet() -> None:
    world = busy(Overlap.SKIP)
    world.definitions.default = replace(
        SHELL, overlap=Overlap.SKIP, start_deadline=timedelta(seconds=1)
    )
    due = NOW - timedelta(seconds=9)
    late = [replace(of(1, n, waited=9), due_at=due) for n in range(1, MOST_OF_LINE + 3)]

    await world.overlap.judge_blocked(late[:1], piled_up(late, NOW))

    assert world.rows.judged == []


def test_a_job_with_an_undispatched_run_beside_another_is_judged_for_overlap() -> None:
    alone, first, second = of(1, 1), of(2, 2), of(2, 3)
    retries: list[LiveRun] = [
        replace(of(3, number), state=State.RETRYING, token=Token(7)) for number in (4, 5)
    ]

    assert crowded([alone, first, second, *retries]) == [first], "one tells its job"
    assert crowded([alone, *retries]) == []


def test_one_run_per_policy_of_many_is_judged_for_overlap() -> None:
    plain = [of(1, number) for number in range(100)]
    newer = replace(of(1, 100), generation=7)
    asked = [replace(of(1, number), overlap=Overlap.CANCEL_OTHER) for number in range(101, 200)]

    assert crowded([*plain, newer, *asked]) == [newer, asked[0]]


async def test_a_scan_judges_a_limited_number_of_jobs_and_the_next_scan_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("schedd.dispatch.overlap.MOST_LOOKED_AT", 2)
    world = World()
    world.definitions.default = replace(SHELL, overlap=Overlap.BUFFER_ALL)
    runs = [of(job, 10 * job + number) for job in (1, 2, 3) for number in (1, 2)]

    await world.overlap.judge_blocked(runs)
    await world.overlap.judge_blocked(runs)

    one, two, three = (run(number).job_id for number in (1, 2, 3))
    asked = world.rows.judged
    assert (set(asked[:2]), set(asked[2:])) == ({one, two}, {three, one})
