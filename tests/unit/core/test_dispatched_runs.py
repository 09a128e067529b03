"""Dispatched runs of an owner, and the late ones that dispatch checks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from schedd.core.dispatch.dispatched_runs import DispatchedRuns
from schedd.core.ids import ShardId, Token
from schedd.core.runs.model import LiveRun
from support.runs import NOW, running, worker


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
    assert runs.report(ids, [Token(7), Token(7)]) == [late(1)]
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
    assert runs.pop(late(1).key.run_id) == late(1)
    assert runs.pop(late(1).key.run_id) is None
    assert (list(runs), numbers(runs)) == ([running(2, worker()).key.run_id], [])

    runs.add(late(1))
    assert numbers(runs) == [1], "the result of then says nothing of now"


def test_runs_of_lost_shards_are_removed():
    runs = of(late(1), late(2, shard=3), running(4, worker(), shard=3))
    runs.drop_shards([ShardId(3)])
    assert (list(runs), numbers(runs)) == ([late(1).key.run_id], [1])


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


def test_runs_are_looked_up_in_order():
    runs = of(late(1), late(2))
    ids = [late(n).key.run_id for n in (2, 3, 1)]
    assert runs.of_ids(ids) == [late(2), None, late(1)]
