"""What an owner has before it."""

from dataclasses import replace
from datetime import timedelta

from schedd.core.ids import Epoch, JobId, ShardId, Token
from schedd.core.lifecycle import State
from schedd.core.model import Timer
from schedd.owner.board import Board
from support.runs import NOW, owning, run, running, worker


def timer(number: int, shard: int = 0, seconds: float = 0) -> Timer:
    at = NOW + timedelta(seconds=seconds)
    return Timer(JobId(run(number).job_id), ShardId(shard), 1, at, at)


def test_a_run_stands_in_one_place_alone():
    board = Board(owning(0))
    one = run(1)
    board.put_runs([one], NOW)
    assert len(board.ready) == 1
    board.put_runs([replace(one, state=State.RETRYING, ready_at=NOW + timedelta(minutes=1))], NOW)
    assert (len(board.ready), len(board.waiting)) == (0, 1)
    board.put_runs([replace(running(1, worker()), token=Token(3))], NOW)
    assert (len(board.ready), len(board.waiting), len(board.running)) == (0, 0, 1)


def test_a_row_read_before_its_run_was_handed_out_brings_nothing_back():
    board = Board(owning(0))
    board.put_runs([running(1, worker(), token=9)], NOW)
    assert board.put_runs([run(1)], NOW) == 0
    assert len(board.ready) == 0
    assert len(board.running) == 1


def test_a_run_given_back_under_its_token_is_ready_again():
    board = Board(owning(0))
    board.put_runs([running(1, worker(), token=9)], NOW)
    assert board.put_runs([run(1, token=Token(9))], NOW) == 1
    assert board.running == {}


def test_a_back_off_ends_on_the_board():
    board = Board(owning(0))
    board.put_runs([run(1, state=State.RETRYING, ready_at=NOW + timedelta(seconds=3))], NOW)
    assert board.ripen(NOW + timedelta(seconds=2.9)) == 0
    assert board.next_ripe() == NOW + timedelta(seconds=3)
    assert board.ripen(NOW + timedelta(seconds=3)) == 1
    assert len(board.ready) == 1


def test_nothing_of_a_shard_stays_when_it_is_lost_or_taken_anew():
    ownership = owning(0, 1)
    board = Board(ownership)
    board.put_timers([timer(1, 0), timer(2, 1)])
    board.put_runs([run(3, shard=0), run(4, shard=1), running(5, worker(), shard=1)], NOW)
    ownership.drop([ShardId(1)])
    assert (len(board.timers), len(board.ready), len(board.running)) == (1, 1, 0)
    ownership.gain({ShardId(0): Epoch(9)})
    assert (len(board.timers), len(board.ready)) == (0, 0)


def test_a_board_whose_tenure_is_over_holds_nothing():
    board = Board(owning(0))
    board.put_timers([timer(1)])
    board.put_runs([run(2), run(3), running(4, worker())], NOW)
    board.put_runs([run(5, ready_at=NOW + timedelta(minutes=1))], NOW)
    board.hold(run(3))
    board.clear()
    assert (len(board.timers), len(board.waiting), len(board.ready)) == (0, 0, 0)
    assert (board.running, board.held) == ({}, [])


def test_what_belongs_to_others_is_not_taken_in():
    board = Board(owning(0))
    board.put_timers([timer(1, shard=7)])
    board.put_runs([run(2, shard=7)], NOW)
    assert (len(board.timers), len(board.ready)) == (0, 0)


def test_a_paused_or_ended_timer_goes():
    board = Board(owning(0))
    board.put_timers([timer(1), timer(2)])
    board.put_timers([replace(timer(1), paused=True), replace(timer(2), due_at=None)])
    assert len(board.timers) == 0
