"""Dispatched runs of an owner, and the late ones that dispatch checks."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta

from schedd.core.dispatch.dispatched_runs import DispatchedRuns
from schedd.core.ids import NO_TOKEN, ShardId, Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import DispatchedBatch, LiveRun
from support.runs import NOW, run, running, worker


def late(number: int, *, token: int = 7, shard: int = 0) -> LiveRun:
    """Return a run of catch-up, ten minutes after it was due."""
    one = running(number, worker(), token=token, shard=shard)
    found = replace(one, due_at=NOW - timedelta(minutes=10))
    assert found.late
    return found


def numbers(runs: DispatchedRuns) -> list[int]:
    """Return the numbers of the late runs that are dispatched."""
    return [one.key.run_id.number for one in runs.late]


def of(*them: LiveRun) -> DispatchedRuns:
    """Return dispatched runs with these."""
    runs = DispatchedRuns()
    for one in them:
        runs.add(one)
    return runs


def test_a_run_on_time_isnt_among_the_late_ones():
    runs = of(running(1, worker()), late(2))
    assert (len(runs), numbers(runs)) == (2, [2])
    assert runs.keys() == {running(1, worker()).key.run_id, late(2).key.run_id}


def test_a_run_with_a_received_result_takes_no_slot_before_it_is_stored():
    runs = of(late(1), late(2))
    ids = [late(1).key.run_id, late(3).key.run_id]
    runs.report(ids, [Token(7), Token(7)])
    assert (len(runs), numbers(runs)) == (2, [2])

    runs.add(late(1))
    assert numbers(runs) == [2], (
        "it is written down when it started: the result has come all the same"
    )

    runs.add(late(1, token=9))
    assert numbers(runs) == [2, 1], "it was dispatched again"


def test_a_result_of_an_earlier_dispatch_leaves_its_slot_taken():
    runs = of(late(1, token=9))
    runs.report([late(1).key.run_id], [Token(7)])
    assert numbers(runs) == [1]


def test_a_run_that_isnt_paced_isnt_checked_again():
    """Each scan reads the run again."""
    runs = of(late(1), late(2))
    runs.unpaced([late(1)])
    assert (len(runs), numbers(runs)) == (2, [2])
    runs.add(replace(late(1), started_at=NOW))
    assert numbers(runs) == [2]

    runs.add(late(1, token=9))
    assert numbers(runs) == [2, 1], "it was dispatched again, by another definition perhaps"


def test_a_run_that_is_no_longer_late_leaves_the_late_runs():
    runs = of(late(1))
    runs.add(replace(late(1), due_at=late(1).ready_at))
    assert (len(runs), numbers(runs)) == (1, [])


def test_no_state_of_a_removed_run_is_kept():
    runs = of(late(1), running(2, worker()))
    runs.report([late(1).key.run_id], [Token(7)])
    runs.unpaced([late(1)])
    assert runs.discard(late(1).key.run_id)
    assert not runs.discard(late(1).key.run_id)
    assert (list(runs), numbers(runs)) == ([running(2, worker()).key.run_id], [])

    runs.add(late(1))
    assert numbers(runs) == [1], "the result of then says nothing of now"


def test_runs_of_lost_shards_are_removed():
    runs = of(late(1), late(2, shard=3), running(4, worker(), shard=3))
    runs.drop_shards([ShardId(3)])
    assert (list(runs), numbers(runs)) == ([late(1).key.run_id], [1])


def test_runs_of_a_batch_are_removed_with_their_shards():
    runs, waiting = DispatchedRuns(), [run(1), run(2, shard=3)]
    runs.add_batch(DispatchedBatch(running(1, worker()), waiting, [Token(7), Token(8)]))
    runs.drop_shards([ShardId(3)])
    assert [*runs.values()] == [running(1, worker())]


def test_payloads_of_a_batch_arent_kept_until_its_runs_end():
    runs, payload = DispatchedRuns(), bytes(256 * 1024)
    before = sys.getrefcount(payload)
    runs.add_batch(DispatchedBatch(running(1, worker()), [run(1)], [Token(7)], [payload]))
    assert sys.getrefcount(payload) == before
    assert [*runs.values()] == [running(1, worker())]


def test_runs_are_removed_at_once_with_all_that_is_known_of_them():
    runs = of(late(1), late(2), running(3, worker()))
    runs.report([late(1).key.run_id], [Token(7)])
    runs.unpaced([late(2)])
    gone = [late(n).key.run_id for n in (1, 2, 4)]
    assert runs.pop_all(gone) == set(gone[:2])
    assert (list(runs), numbers(runs)) == ([running(3, worker()).key.run_id], [])
    runs.add(late(1))
    runs.add(late(2))
    assert sorted(numbers(runs)) == [1, 2]


def test_runs_of_a_batch_are_found_by_their_assignments_and_as_dispatched():
    waiting, dispatched = [run(1), run(2)], [running(1, worker()), running(2, worker(), token=8)]
    runs = of(running(3, worker()))
    runs.add_batch(DispatchedBatch(dispatched[0], waiting, [Token(7), Token(8)]))
    one = worker().id
    ats = [(run(n).key.run_id, Token(token), one) for n, token in ((2, 8), (1, 7), (3, 7))]
    wrong = [(run(1).key.run_id, Token(8), one), (run(1).key.run_id, Token(7), worker(2).id)]
    unknown = (run(4).key.run_id, Token(7), one)
    found = runs.of_senders([*ats, *wrong, unknown])
    expected = [waiting[1], waiting[0], running(3, worker())]
    assert found == [*((each, running(3, worker()).generation) for each in expected), *[None] * 3]
    assert {*runs} == {running(n, worker()).key.run_id for n in (1, 2, 3)}
    assert [runs[one.key.run_id] for one in dispatched] == dispatched
    assert runs.of_senders(ats[:1]) == [(dispatched[1], dispatched[1].generation)]


def test_a_late_run_of_a_batch_takes_a_slot():
    waiting = replace(late(1), state=State.PENDING, token=NO_TOKEN, attempt=0)
    runs = DispatchedRuns()
    runs.add_batch(DispatchedBatch(late(1), [waiting], [Token(7)]))
    assert numbers(runs) == [1]
    runs.report([late(1).key.run_id], [Token(7)])
    assert numbers(runs) == []
