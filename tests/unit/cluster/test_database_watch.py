"""When a member without a database gives up, and when it waits with the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedd.cluster.member import DatabaseWatch
from schedd.cluster.tenure import TenureOver
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView, MemberView
from schedd.core.ids import Id, TenureId

ME, OTHER, THIRD = (TenureId(Id.from_int(n)) for n in (1, 2, 3))


class World:
    """A watch, and the time, silence and view that it sees."""

    def __init__(self) -> None:
        self.now = 0.0
        self.silent = 0.0
        self.other_answers = True
        self.third_answers = False
        self.watch = DatabaseWatch(ME, self.view, lambda: self.silent, lambda: self.now)

    def view(self) -> ClusterView:
        members = (
            _member(ME, answers=True),
            _member(OTHER, answers=self.other_answers),
            _member(THIRD, answers=self.third_answers),
        )
        return replace(EMPTY_VIEW, members=members)

    def silence(self, seconds: float) -> None:
        """Let time pass, with a look each second, without an answer of the database."""
        for _ in range(round(seconds)):
            self.now += 1
            self.silent += 1
            self.watch.check()


def _member(tenure: TenureId, *, answers: bool) -> MemberView:
    return MemberView("m", tenure, "", "", 1, "", "", draining=False, database=answers)


def test_a_member_that_is_cut_off_alone_gives_up_after_seven_seconds() -> None:
    """M10: others could fire what it can't."""
    world = World()
    world.silence(6)
    assert not world.watch.answers
    with pytest.raises(TenureOver):
        world.silence(1)


def test_no_member_gives_up_while_the_database_is_unavailable_for_all() -> None:
    """M10: giving up would help no member, and cost a takeover each."""
    world = World()
    world.other_answers = False
    world.silence(100)
    assert not world.watch.answers


def test_a_member_that_sees_the_end_of_an_outage_last_has_three_more_seconds() -> None:
    world = World()
    world.other_answers = False
    world.silence(30)
    world.other_answers = True
    world.silence(2)
    world.silent = 0
    world.silence(4)
    assert not world.watch.answers


def test_a_member_that_stays_cut_off_after_an_outage_gives_up() -> None:
    world = World()
    world.other_answers = False
    world.silence(30)
    world.other_answers = True
    with pytest.raises(TenureOver):
        world.silence(5)


def test_single_answers_that_others_got_amid_an_outage_make_no_member_give_up() -> None:
    """M10: each is reported for 2.5 s, and then that member is as badly off as all."""
    world = World()
    world.other_answers = False
    world.silence(30)
    for _ in range(5):
        world.other_answers = True
        world.silence(3)
        world.other_answers, world.third_answers = False, True
        world.silence(3)
        world.third_answers = False
    assert not world.watch.answers
