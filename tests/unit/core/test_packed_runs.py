"""The runs that a worker holds: looked up one by one, counted as a whole."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as some

from schedd.core.dispatch.packed_runs import Holdings, pack_key, pack_start
from schedd.core.ids import Id, RunId, Token, new_id

At: TypeAlias = tuple[RunId, Token]
RUNS, TOKENS = (
    some.binary(min_size=16, max_size=16).map(lambda raw: RunId(Id(raw))),
    some.integers(0, 2**63 - 1).map(Token),
)
ASSIGNMENTS = some.sets(some.tuples(RUNS, TOKENS), max_size=9)


@pytest.mark.slow
@given(ASSIGNMENTS, ASSIGNMENTS, ASSIGNMENTS)
def test_holdings_contain_exactly_the_packed_runs(
    waiting: set[At], running: set[At], spooled: set[At]
) -> None:
    held = Holdings(
        b"".join(pack_key(run, token) for run, token in waiting),
        b"".join(pack_start(run, token, 17) for run, token in running),
        b"".join(pack_key(run, token) for run, token in spooled),
    )
    listed = waiting | running | spooled
    assert {*held} == listed
    assert all(at in held for at in listed)
    assert (held.unended, held.spooled) == (len(waiting) + len(running), len(spooled))
    assert {*held.starts()} == {(run, token, 17) for run, token in running}


def test_the_same_run_under_another_token_isnt_contained() -> None:
    run = RunId(new_id())
    held = Holdings.from_keys([(run, Token(7))])
    assert (run, Token(7)) in held
    assert (run, Token(8)) not in held
    assert (RunId(new_id()), Token(7)) not in held


def test_holdings_are_equal_for_any_order_and_state_of_their_runs() -> None:
    run, other = RunId(new_id()), RunId(new_id())
    listed = [(run, Token(7)), (other, Token(8))]
    assert Holdings.from_keys(listed) == Holdings.from_keys(reversed(listed))
    assert Holdings.from_keys(listed) != Holdings.from_keys(listed[:1])
    assert Holdings(running=pack_start(run, Token(7), 1)) == Holdings.from_keys(listed[:1])


@pytest.mark.parametrize("part", ["waiting", "running", "spooled"])
def test_bytes_that_arent_whole_keys_are_rejected(part: str) -> None:
    with pytest.raises(ValueError, match="has 25 bytes"):
        Holdings(**{part: bytes(25)})
