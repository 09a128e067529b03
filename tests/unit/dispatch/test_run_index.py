"""The runs that an owner has in memory."""

from dataclasses import replace
from datetime import timedelta

from schedd.core.dispatch.deferred_runs import FAR
from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.ready_bucket_ids import HURRIED, LineId
from schedd.core.ids import Epoch, JobId, ShardId, Token
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import DispatchedBatch, LiveRun, Timer
from schedd.core.runs.pools import PoolKey
from schedd.dispatch.held_timers import HERD
from schedd.dispatch.run_index import RunIndex
from support.runs import NOW, owning, run, running, worker

MINUTE = timedelta(minutes=1)
LONG = 2 * FAR


def jobs(*numbers: int) -> list[JobId]:
    return [run(number).job_id for number in numbers]


def remove_ended(run_index: RunIndex, *runs: LiveRun) -> int:
    return run_index.remove_ended(runs, [one.token for one in runs])


def timer(number: int, shard: int = 0, seconds: float = 0) -> Timer:
    at = NOW + timedelta(seconds=seconds)
    return Timer(JobId(run(number).job_id), ShardId(shard), 1, at, at)


def test_a_run_is_in_only_one_list_of_the_run_index():
    run_index = RunIndex(owning(0))
    one = run(1)
    run_index.put_runs([one], NOW)
    assert len(run_index.ready) == 1
    run_index.put_runs(
        [replace(one, state=State.RETRYING, ready_at=NOW + timedelta(minutes=1))], NOW
    )
    assert (len(run_index.ready), len(run_index.waiting)) == (0, 1)
    run_index.put_runs([replace(running(1, worker()), token=Token(3))], NOW)
    assert (len(run_index.ready), len(run_index.waiting), len(run_index.running)) == (0, 0, 1)


def test_a_row_read_before_the_dispatch_does_not_make_its_run_ready_again():
    run_index = RunIndex(owning(0))
    run_index.put_runs([running(1, worker(), token=9)], NOW)
    assert run_index.put_runs([run(1)], NOW) == 0
    assert len(run_index.ready) == 0
    assert len(run_index.running) == 1


def test_a_scan_looks_at_dispatched_runs_one_by_one():
    """Each lookup creates an object: thousands at once would block the event loop."""
    run_index = RunIndex(owning(0))
    dispatched = [running(number, worker()) for number in (1, 2, 3)]
    waiting = [run(number) for number in (1, 2, 3)]
    run_index.dispatched(DispatchedBatch(dispatched[0], waiting, [Token(7)] * 3))
    run_index.put_runs([run(4)], NOW)
    standing = run_index.standing(NOW)
    assert [next(standing), next(standing)] == [run(4), dispatched[0]]
    run_index.running.discard(waiting[1].key.run_id)
    run_index.put_runs([run(5)], NOW)
    assert [*standing] == [dispatched[2]]


def test_a_run_given_back_under_its_token_is_ready_again():
    run_index = RunIndex(owning(0))
    run_index.put_runs([running(1, worker(), token=9)], NOW)
    assert run_index.put_runs([run(1, token=Token(9))], NOW) == 1
    assert run_index.running == {}


def test_a_run_is_ready_in_the_run_index_after_its_backoff():
    run_index = RunIndex(owning(0))
    run_index.put_runs([run(1, state=State.RETRYING, ready_at=NOW + timedelta(seconds=3))], NOW)
    assert run_index.ripen(NOW + timedelta(seconds=2.9)) == 0
    assert run_index.next_ripe() == NOW + timedelta(seconds=3)
    assert run_index.ripen(NOW + timedelta(seconds=3)) == 1
    assert len(run_index.ready) == 1


def test_a_long_backoff_beside_many_waiting_runs_is_not_kept_in_memory():
    run_index, normal, hurried = RunIndex(owning(0)), LineId(0), LineId(HURRIED)
    later = [
        run(n, state=State.RETRYING, ready_at=NOW + LONG, line=normal) for n in range(HERD + 1)
    ]
    run_index.put_runs(later, NOW)
    assert len(run_index.waiting) == HERD

    asked_for = [
        run(HERD + 1, state=State.RETRYING, ready_at=NOW + FAR, line=normal),
        run(HERD + 2, state=State.RETRYING, ready_at=NOW + LONG, line=hurried),
        run(HERD + 3, state=State.RETRYING, ready_at=NOW + LONG),
        run(HERD + 4, state=State.PENDING, ready_at=NOW + LONG, line=normal),
        replace(later[0], key=run(HERD + 5).key, parent=run(1).key.run_id),
    ]
    run_index.put_runs(asked_for, NOW)
    assert all(one.key.run_id in run_index.waiting for one in asked_for)


def test_a_backoff_that_became_long_leaves_the_run_index():
    run_index = RunIndex(owning(0))
    run_index.put_runs(
        [run(n, state=State.RETRYING, ready_at=NOW + LONG, line=LineId(0)) for n in range(HERD)],
        NOW,
    )
    one = run(HERD, state=State.RETRYING, ready_at=NOW + FAR, line=LineId(0))
    run_index.put_runs([one], NOW)
    run_index.put_runs([replace(one, ready_at=NOW + LONG)], NOW)
    assert one.key.run_id not in run_index.waiting
    assert run_index.ripen(NOW + FAR) == 0


def test_a_long_back_off_stays_while_a_run_of_its_job_is_held():
    run_index = RunIndex(owning(0))
    run_index.put_runs(
        [run(n, state=State.RETRYING, ready_at=NOW + LONG, line=LineId(0)) for n in range(HERD)],
        NOW,
    )
    one = run(HERD, state=State.RETRYING, ready_at=NOW + LONG, line=LineId(0))
    run_index.hold(replace(run(HERD + 1), job_id=one.job_id))
    run_index.put_runs([one], NOW)
    assert remove_ended(run_index, one) == 1, "what was held goes when it has ended"


def test_a_lost_or_retaken_shard_removes_its_timers_and_runs():
    ownership = owning(0, 1)
    run_index = RunIndex(ownership)
    run_index.timers.come_up([timer(1, 0), timer(2, 1)])
    run_index.put_runs([run(3, shard=0), run(4, shard=1), running(5, worker(), shard=1)], NOW)
    ownership.drop([ShardId(1)])
    assert (len(run_index.timers), len(run_index.ready), len(run_index.running)) == (1, 1, 0)
    ownership.gain({ShardId(0): Epoch(9)})
    assert (len(run_index.timers), len(run_index.ready)) == (0, 0)


def test_the_index_of_an_ended_tenure_is_empty():
    run_index = RunIndex(owning(0))
    run_index.timers.come_up([timer(1)])
    run_index.put_runs([run(2), run(3), running(4, worker())], NOW)
    run_index.put_runs([run(5, ready_at=NOW + timedelta(minutes=1))], NOW)
    run_index.hold(run(3))
    run_index.clear()
    assert (len(run_index.timers), len(run_index.waiting), len(run_index.ready)) == (0, 0, 0)
    assert (run_index.running, run_index.held) == ({}, [])


def test_runs_of_other_owners_are_not_added():
    run_index = RunIndex(owning(0))
    run_index.timers.come_up([timer(1, shard=7)])
    run_index.put_runs([run(2, shard=7)], NOW)
    assert (len(run_index.timers), len(run_index.ready)) == (0, 0)


def test_a_paused_or_ended_timer_is_removed():
    run_index = RunIndex(owning(0))
    run_index.timers.come_up([timer(1), timer(2)])
    run_index.timers.come_up([timer(1)._replace(paused=True), timer(2)._replace(due_at=None)])
    assert len(run_index.timers) == 0


def test_a_late_timer_is_ordered_behind_timers_due_now():
    """After an outage all that is overdue is older than what falls due meanwhile."""
    run_index = RunIndex(owning(0))
    run_index.timers.come_up([timer(1, seconds=-600), timer(2, seconds=-1), timer(3)], now=NOW)
    later = NOW + timedelta(seconds=40)
    run_index.timers.come_up([timer(4, seconds=40)], now=later)

    assert [one.job_id for one in run_index.timers.pop_due(later, 9)] == jobs(2, 3, 4)
    assert [one.job_id for one in run_index.timers.pop_due(later, 9)] == jobs(1)


def test_a_late_timer_that_is_loaded_repeatedly_waits_a_bounded_time():
    run_index = RunIndex(owning(0))
    for second in range(90):
        run_index.timers.come_up([timer(1, seconds=-600)], now=NOW + timedelta(seconds=second))
    run_index.timers.come_up([timer(2, seconds=91)])

    assert [one.job_id for one in run_index.timers.pop_due(NOW + MINUTE * 2, 1)] == jobs(1)


def test_a_late_timer_whose_priority_is_learned_stays_behind():
    priorities = {run(1).job_id: Priority.MEDIUM}
    run_index = RunIndex(owning(0), lambda job: priorities.get(job, Priority.LOW))
    run_index.timers.come_up([timer(1, seconds=-600), timer(2)], now=NOW)
    priorities[run(2).job_id] = Priority.MEDIUM
    for number in (1, 2):
        run_index.timers.sort([run(number).job_id])

    assert [one.job_id for one in run_index.timers.pop_due(NOW, 1)] == jobs(2)


def test_a_late_timer_that_began_to_catch_up_continues_before_others():
    """But not before what is due now, nor for ever."""
    run_index, now = RunIndex(owning(0)), NOW
    run_index.timers.come_up([timer(1, seconds=-600), timer(2, seconds=-600)], now=now)
    [mine] = run_index.timers.pop_due(now, 1)
    run_index.timers.has_begun = {mine.job_id}.__contains__
    turns = 0
    while mine.job_id != run(2).job_id:
        turns += 1
        now += timedelta(seconds=1)
        due = now - timedelta(seconds=300)
        run_index.timers.come_up([mine._replace(due_at=due)], now=now)
        run_index.timers.come_up([timer(3 + turns, seconds=turns)], now=now)
        assert [one.job_id for one in run_index.timers.pop_due(now, 9)] == jobs(3 + turns)
        [mine] = run_index.timers.pop_due(now, 1)

    assert turns == 30


def test_a_late_timer_that_began_to_catch_up_continues_first_once_its_priority_is_known():
    run_index = RunIndex(owning(0))
    run_index.timers.come_up([timer(1, seconds=-600), timer(2, seconds=-600)], now=NOW)
    run_index.timers.has_begun = {*jobs(2)}.__contains__
    run_index.timers.sort([run(2).job_id])

    assert [one.job_id for one in run_index.timers.pop_due(NOW, 1)] == jobs(2)


def test_a_timer_due_now_has_priority_over_an_urgent_one_that_catches_up():
    """Of the class below it, for that is how what is late counts."""
    run_index = RunIndex(
        owning(0), lambda job: Priority.HIGH if job == run(1).job_id else Priority.MEDIUM
    )
    later = NOW + timedelta(seconds=5)
    run_index.timers.come_up([timer(2, seconds=4)], now=later)
    run_index.timers.has_begun = {*jobs(1)}.__contains__
    run_index.timers.come_up([timer(1, seconds=-600)], now=later)

    assert [one.job_id for one in run_index.timers.pop_due(later, 1)] == jobs(2)


def test_a_second_read_doesnt_end_a_running_run():
    run_index = RunIndex(owning(0))
    notified: list[int] = []
    run_index.on_room = lambda: notified.append(run_index.ended)
    for _ in range(3):
        run_index.put_runs([running(1, worker(), token=7)], NOW)
    assert (run_index.ended, len(run_index.running)) == (0, 1)

    run_index.put_runs([running(1, worker(), token=9)], NOW)
    assert (run_index.ended, len(run_index.running)) == (1, 1), "its first dispatch is"


def test_the_report_of_a_late_run_wakes_waiting_late_runs():
    """Their share of the slots is full, and no grant tells that it isn't any more."""
    run_index = RunIndex(owning(0))
    before = NOW - timedelta(minutes=10)
    run_index.put_runs([replace(running(1, worker()), due_at=before), running(2, worker())], NOW)
    assert not run_index.report([run(1).key.run_id], [Token(7)]), "no run waits"
    run_index.put_runs([run(3, due_at=before)], NOW)
    assert run_index.report([run(1).key.run_id], [Token(7)])
    assert not run_index.report([run(2).key.run_id], [Token(7)])


def test_a_run_that_ends_during_a_read_isnt_added_by_its_row() -> None:
    """Else it took a late run's slot until the next scan, which may be ten seconds."""
    run_index = RunIndex(owning(0))
    ended = running(1, worker(), token=9)
    run_index.put_runs([ended], NOW)

    with run_index.reading():
        remove_ended(run_index, ended)
        run_index.put_runs([ended], NOW)
        assert run_index.running == {}
        again = replace(ended, token=Token(10))
        run_index.put_runs([again], NOW)
        assert list(run_index.running.values()) == [again], "it was dispatched again since"
        remove_ended(run_index, again)

    run_index.put_runs([ended], NOW)
    assert list(run_index.running.values()) == [ended], "what is read now is as it stands"


def test_runs_that_end_at_once_let_one_blocked_run_of_each_job_go() -> None:
    """Whether the ended run is in progress here or waits, as far as its owner knows."""
    run_index = RunIndex(owning(0))
    ended = [running(1, worker()), running(2, worker()), run(3)]
    run_index.put_runs(ended, NOW)
    for number, one in enumerate(ended[1:], 10):
        run_index.hold(replace(run(number), job_id=one.job_id))
        run_index.hold(replace(run(number + 10), job_id=one.job_id))

    assert remove_ended(run_index, *ended) == 2
    assert run_index.running == {}
    assert run_index.ended == 2
    assert len(run_index.ready) == 2, "the first blocked one of each job"
    assert run_index.held == jobs(2, 3)


def test_an_ended_run_of_a_shard_that_was_dropped_counts_for_no_run() -> None:
    run_index = RunIndex(owning(0))
    elsewhere = running(1, worker(), shard=1)
    run_index.hold(replace(run(10), job_id=elsewhere.job_id))
    assert remove_ended(run_index, elsewhere) == 0
    assert run_index.held == [elsewhere.job_id]


def test_room_in_pools_is_reported_once_for_runs_that_end_at_once() -> None:
    run_index = RunIndex(owning(0))
    ended = [running(1, worker()), running(2, worker())]
    run_index.put_runs(ended, NOW)
    rooms: list[int] = []
    run_index.on_room = lambda: rooms.append(run_index.ended)
    remove_ended(run_index, *ended[:1])
    assert rooms == [], "no run waits for a pool"
    need = Need("shell", pool=PoolKey("default/p"))
    run_index.ready.add([run(3)], need)
    run_index.put_runs([running(4, worker())], NOW)
    remove_ended(run_index, ended[1], running(4, worker()))
    assert rooms == [3]
