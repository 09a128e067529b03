"""Scheduled times of a range that a backfill runs, by the state of their earlier runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.ids import BackfillId, Id, JobId, RunId, backfilled_run_id, scheduled_run_id
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.timers.backfill import ExistingRuns, Ran, Rerun, plan

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
INSTANTS = tuple(NOON + timedelta(minutes=n) for n in range(6))
RUN = RunId(Id.from_int(7))


def ran(at: int, state: State, *, dispatched: bool = True) -> Ran:
    return Ran(INSTANTS[at], RUN, state, dispatched)


def existing_runs(*rows: Ran) -> ExistingRuns:
    return ExistingRuns(rows, set(), None)


@pytest.mark.parametrize(
    ("row", "again"),
    [
        (ran(0, State.SUCCEEDED), "ALL"),
        (ran(0, State.FAILED), "ALL FAILED"),
        (ran(0, State.CANCELLED), "ALL FAILED"),
        (ran(0, State.CANCELLED, dispatched=False), "ALL FAILED NONE"),
        (ran(0, State.FAILED, dispatched=False), "ALL FAILED NONE"),
        (ran(0, State.SKIPPED, dispatched=False), "ALL FAILED NONE"),
        (ran(0, State.MISSED, dispatched=False), "ALL FAILED NONE"),
        (ran(0, State.COALESCED, dispatched=False), "ALL FAILED NONE"),
        *((ran(0, state), "") for state in sorted(LIVE)),
        (ran(0, State.PENDING, dispatched=False), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.state} {value.dispatched}",
)
def test_an_ended_run_runs_again_only_on_request(row: Ran, again: str) -> None:
    for rerun in Rerun:
        chosen = plan(INSTANTS[:1], existing_runs(row), rerun)
        assert bool(chosen.instants) is (rerun in again.split())
        assert bool(chosen.omitted) is (rerun not in again.split())


def test_a_success_counts_among_several_runs_of_a_scheduled_time() -> None:
    both = existing_runs(ran(0, State.FAILED), ran(0, State.SUCCEEDED))

    assert plan(INSTANTS[:1], both, Rerun.FAILED).instants == ()


ROWS = st.lists(
    st.builds(Ran, st.sampled_from(INSTANTS), st.just(RUN), st.sampled_from(State), st.booleans())
)
SOME = st.sets(st.sampled_from(INSTANTS))


@pytest.mark.slow
@given(ROWS, SOME, st.none() | st.sampled_from(INSTANTS), st.sampled_from(Rerun))
def test_each_scheduled_time_is_either_run_or_left_out_in_order(
    rows: list[Ran], queued: set[datetime], ahead: datetime | None, rerun: Rerun
) -> None:
    chosen = plan(INSTANTS, ExistingRuns(rows, queued, ahead), rerun)

    omitted = tuple(one.at for one in chosen.omitted)
    assert sorted((*chosen.instants, *omitted)) == list(INSTANTS)
    assert list(chosen.instants) == sorted(chosen.instants)
    assert not queued & set(chosen.instants)
    assert ahead is None or all(at < ahead for at in chosen.instants)
    live = {row.at for row in rows if row.state in LIVE}
    assert not live & set(chosen.instants)


@pytest.mark.slow
@given(ROWS, SOME, st.none() | st.sampled_from(INSTANTS))
def test_a_wider_rerun_policy_never_runs_less(
    rows: list[Ran], queued: set[datetime], ahead: datetime | None
) -> None:
    there = ExistingRuns(rows, queued, ahead)
    none, failed, all_ = (set(plan(INSTANTS, there, rerun).instants) for rerun in Rerun)

    assert none <= failed <= all_


def test_a_backfill_run_has_another_id_than_the_run_of_the_schedule() -> None:
    job, backfill = JobId(Id.from_int(1)), BackfillId(Id.from_int(2))

    assert backfilled_run_id(backfill, NOON) == backfilled_run_id(backfill, NOON)
    ids = {backfilled_run_id(backfill, at) for at in INSTANTS}
    assert len(ids | {scheduled_run_id(job, at) for at in INSTANTS}) == 12
