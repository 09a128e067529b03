"""Fair shares of a batch: small needs first, large needs share the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schedd.core.dispatch.fair_share import LEAST, FairShares


def taken(shares: FairShares, needs: list[int]) -> list[int]:
    found = []
    for need in needs:
        found.append(min(need, shares.next()))
        shares.record_use(found[-1])
    return found


def test_a_small_need_leaves_the_rest_to_later_needs() -> None:
    assert taken(FairShares(20, 6, most=100), [1, 1, 1, 1, 50, 50]) == [1, 1, 1, 1, 8, 8]


def test_no_need_takes_more_than_its_limit() -> None:
    assert taken(FairShares(2_000, 1, most=100), [3_600]) == [100]


def test_each_need_may_take_a_minimum_for_any_number_of_needs() -> None:
    assert taken(FairShares(3, 5, most=100), [9] * 5) == [LEAST] * 5


@given(st.integers(1, 500), st.lists(st.integers(1, 50), min_size=1, max_size=50))
def test_the_total_is_limited_except_for_the_minimum_of_each(total: int, needs: list[int]) -> None:
    found = taken(FairShares(total, len(needs), most=1_000), needs)
    assert sum(found) <= max(total, LEAST * len(needs))
    assert min(found) >= LEAST
