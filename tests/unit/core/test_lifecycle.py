"""The table of transitions."""

import itertools

import pytest

from schedd.core.runs.lifecycle import LIVE, TERMINAL, TRANSITIONS, IllegalTransition, State, check


def test_every_state_has_a_row():
    assert set(TRANSITIONS) == set(State)


def test_terminal_states_never_change():
    for before, after in itertools.product(TERMINAL, State):
        with pytest.raises(IllegalTransition):
            check(before, after)


def test_a_pair_outside_the_table_is_a_bug():
    with pytest.raises(IllegalTransition):
        check(State.PENDING, State.SUCCEEDED)
    assert check(State.RUNNING, State.SUCCEEDED) is State.SUCCEEDED


def test_every_live_state_can_end():
    assert {State.PENDING, State.RUNNING, State.RETRYING} == LIVE
    for state in LIVE:
        assert TRANSITIONS[state] & TERMINAL
