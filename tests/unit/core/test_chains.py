"""Joins of chains: run, skip or wait, by the parents that ended or may still run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.ids import Id, JobId, RunId
from schedd.core.jobs.chains import (
    LONGEST_WAIT,
    LOOK_LATEST,
    LOOK_SOONEST,
    JoinStep,
    ParentEnded,
    When,
    judge,
    look_after,
)
from schedd.core.runs.lifecycle import TERMINAL, State

A, B, C = (JobId(Id.from_int(n)) for n in (1, 2, 3))
NAMES = {A: "a", B: "b", C: "c"}
SOON = timedelta(seconds=1)
S, F, X = State.SUCCEEDED, State.FAILED, State.SKIPPED


def arrived(states: Mapping[JobId, State]) -> dict[JobId, ParentEnded]:
    return {job: ParentEnded(NAMES[job], RunId(job), state) for job, state in states.items()}


@pytest.mark.parametrize(
    ("when", "states", "step"),
    [
        (When.SUCCESS, {A: S, B: S, C: S}, JoinStep.RUN),
        (When.SUCCESS, {A: S, B: F, C: S}, JoinStep.SKIP),
        (When.SUCCESS, {A: S, B: X, C: S}, JoinStep.SKIP),
        (When.FAILURE, {A: S, B: S, C: S}, JoinStep.SKIP),
        (When.FAILURE, {A: S, B: F, C: S}, JoinStep.RUN),
        (When.FAILURE, {A: F, B: F, C: F}, JoinStep.RUN),
        (When.FAILURE, {A: S, B: X, C: S}, JoinStep.SKIP),
        (When.FAILURE, {A: S, B: State.CANCELLED, C: S}, JoinStep.SKIP),
        (When.ANY, {A: S, B: F, C: X}, JoinStep.RUN),
        (When.ANY, {A: State.MISSED, B: State.CANCELLED, C: State.COALESCED}, JoinStep.RUN),
    ],
)
def test_a_join_runs_or_is_skipped_when_all_parents_have_ended(
    when: When, states: Mapping[JobId, State], step: JoinStep
) -> None:
    judged = judge(when, NAMES, arrived(states), (), SOON)
    assert judged.step is step
    assert bool(judged.why) == (step is JoinStep.SKIP)


@given(
    when=st.sampled_from(When),
    states=st.dictionaries(st.sampled_from([A, B, C]), st.sampled_from(sorted(TERMINAL))),
    coming=st.sets(st.sampled_from([A, B, C])),
    waited=st.timedeltas(timedelta(0), 2 * LONGEST_WAIT),
)
def test_a_join_waits_only_for_possible_parents_and_at_most_a_week(
    when: When, states: dict[JobId, State], coming: set[JobId], waited: timedelta
) -> None:
    judged = judge(when, NAMES, arrived(states), coming, waited)
    missing = NAMES.keys() - states.keys()
    assert (judged.step is JoinStep.WAIT) == (bool(missing & coming) and waited < LONGEST_WAIT)
    if missing and judged.step is not JoinStep.WAIT:
        assert judged.step is JoinStep.SKIP


def test_a_skipped_join_names_the_runs_that_caused_it() -> None:
    judged = judge(When.SUCCESS, NAMES, arrived({A: S, B: F, C: X}), (), SOON)
    parents = f"run {RunId(B)} of b is FAILED, run {RunId(C)} of c is SKIPPED"
    assert judged.why == f"{parents}, and after.when is success"
    assert judge(When.ANY, NAMES, arrived({A: S}), (), SOON).why == "b, c had no run in this cycle"


def test_a_waiting_join_is_checked_less_and_less_often() -> None:
    waits = [look_after(timedelta(seconds=n)) for n in (0, 60, 3600)]
    assert waits == [LOOK_SOONEST, timedelta(seconds=30), LOOK_LATEST]
