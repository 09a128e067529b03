"""The pure parts of shapes: when submits arrive, which half they are of, which cells there are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bench.openloop import arrivals, halves
from bench.scale import cells, together


def test_so_many_arrive_a_second_on_average_in_order_and_within_the_time() -> None:
    moments = [*arrivals(100, 60, seed=1)]
    assert len(moments) == pytest.approx(6_000, rel=0.05)
    assert all(earlier < later for earlier, later in pairwise(moments))
    assert 0 < moments[0] < moments[-1] < 60


def test_the_same_seed_has_them_arrive_at_the_same_moments() -> None:
    assert [*arrivals(10, 5, seed=7)] == [*arrivals(10, 5, seed=7)]
    assert [*arrivals(10, 5, seed=7)] != [*arrivals(10, 5, seed=8)]


def test_waits_are_of_the_half_that_they_were_meant_for() -> None:
    assert halves([(0.0, 3.0), (9.9, 1.0), (10.0, 2.0)], 10.0) == ([3.0, 1.0], [2.0])


def test_workers_never_have_more_slots_than_all_may_have_together() -> None:
    assert [*cells([1, 2, 3], 1_000)] == [(1, 1_000), (2, 500), (3, 333)]


def test_what_is_spent_is_added_up_by_kind() -> None:
    spent = {"m1": 1, "m2": 2, "w1": 4, "w10": 8, "etcd": 16, "postgres": 32}
    assert together(spent) == {"members": 3, "workers": 12, "stores": 48, "all": 63}
