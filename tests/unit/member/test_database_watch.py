"""When a member without a database gives up, and when it waits with the others."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from schedd.core.ids import TenureId
from schedd.core.membership import EMPTY_VIEW, ClusterView, MemberView
from schedd.database_watch import DatabaseWatch
from schedd.tenure import TenureOver

ME, OTHER = TenureId(UUID(int=1)), TenureId(UUID(int=2))


class World:
    """A watch, and the time, silence and view that it sees."""

    def __init__(self) -> None:
        self.now = 0.0
        self.silent = 0.0
        self.other_answers = True
        self.watch = DatabaseWatch(ME, self.view, lambda: self.silent, lambda: self.now)

    def view(self) -> ClusterView:
        members = (
            _member(ME, answers=True),
            _member(OTHER, answers=self.other_answers),
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


def test_a_member_that_is_cut_off_alone_gives_up_after_six_seconds() -> None:
    """M10: others could fire what it can't."""
    world = World()
    world.silence(5)
    assert not world.watch.answers
    with pytest.raises(TenureOver):
        world.silence(1)


def test_nobody_gives_up_while_the_database_is_away_for_all() -> None:
    """M10: giving up would help nobody, and cost a takeover each."""
    world = World()
    world.other_answers = False
    world.silence(100)
    assert not world.watch.answers


def test_the_last_to_see_the_end_of_an_outage_has_three_more_seconds() -> None:
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
        world.silence(4)


def test_one_answer_that_another_got_amid_an_outage_makes_nobody_give_up() -> None:
    """M10: it is told of for 2.5 s, and then that member is as badly off as all."""
    world = World()
    world.other_answers = False
    world.silence(30)
    world.other_answers = True
    world.silence(3)
    world.other_answers = False
    world.silence(30)
    assert not world.watch.answers
