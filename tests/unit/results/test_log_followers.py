"""Followers of logs: the workers that are notified, the pieces, and the duration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedd.core.ids import Id, IncarnationId, Token
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.results.log_followers import MOST_WAITING, LogFollowers
from schedproto.v1 import run_pb2
from support.runs import RecordingLine, SetClock, running, worker

ONE = worker()
RUN = running(1, ONE)


class World:
    def __init__(self) -> None:
        self.workers, self.line = WorkerRegistry(SetClock(), lambda _event: None), RecordingLine()
        self.workers.attach(ONE, self.line)
        self.log_followers = LogFollowers(self.workers)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def came(
        self, text: bytes, *, sender: IncarnationId = ONE.id, token: Token = RUN.token
    ) -> None:
        self.log_followers.came(sender, RUN.key.run_id, token, run_pb2.LogPiece(data=text))


@pytest.fixture
def world() -> World:
    return World()


def follow_message(on: bool) -> tuple[object, ...]:
    return (RUN.key.run_id, RUN.token, on)


def test_a_worker_is_notified_of_the_first_reader_and_of_the_last_that_leaves(world: World) -> None:
    with world.log_followers.following(RUN, world.wake) as reader:
        assert world.line.followed == [follow_message(True)]
        with world.log_followers.following(RUN, world.wake) as second:
            world.came(b"x")
            assert [piece.data for piece in (*reader.take_pieces(), *second.take_pieces())] == [
                b"x",
                b"x",
            ]
            assert world.woken == 2
        assert follow_message(False) not in world.line.followed
    assert world.line.followed[-1] == follow_message(False)
    world.came(b"no follower reads this")


def test_output_of_another_attempt_or_worker_isnt_passed_on(world: World) -> None:
    with world.log_followers.following(RUN, world.wake) as reader:
        world.came(b"x", sender=IncarnationId(Id.from_int(77)))
        world.came(b"x", token=Token(RUN.token + 1))
        assert reader.take_pieces() == []


def test_a_worker_that_attaches_again_is_notified_again(world: World) -> None:
    with world.log_followers.following(RUN, world.wake):
        line = RecordingLine()
        world.workers.attach(ONE, line)
        world.log_followers.attached(ONE.id)
        world.log_followers.attached(IncarnationId(Id.from_int(77)))
        assert line.followed == [follow_message(True)]


def test_a_worker_attached_elsewhere_sends_no_output(world: World) -> None:
    elsewhere = replace(RUN, incarnation=IncarnationId(Id.from_int(77)))
    with world.log_followers.following(elsewhere, world.wake) as reader:
        assert reader.take_pieces() == []
    assert world.line.followed == []


def test_output_beyond_the_buffer_of_a_slow_reader_is_left_out(world: World) -> None:
    with world.log_followers.following(RUN, world.wake) as reader:
        third = bytes(MOST_WAITING // 3)
        for _ in range(5):
            world.came(third)
        assert len(reader.take_pieces()) == 2
        world.came(third)
        assert len(reader.take_pieces()) == 1
