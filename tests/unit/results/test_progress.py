"""How far runs are, as workers tell."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.ids import IncarnationId, Token, new_id
from schedd.core.runs.lifecycle import State
from schedd.results.progress import MOST_BEFORE, MemberProgress
from schedd.rpc.workers import frames
from schedproto.v1 import run_pb2
from schedproto.v1 import worker_service_pb2 as wire
from support.runs import running, worker

KEY = wire.AssignmentKey(run_id=str(uuid4()), fencing_token=7)
QUARTER = run_pb2.RunProgress(fraction=0.25)


@pytest.fixture
def run():
    return running(1, worker(), token=7)


def test_the_progress_of_the_present_token_from_its_own_worker_is_shown(run):
    advances = MemberProgress()
    assert advances.progress_of(run) is None
    advances.record_progress(run.incarnation, run.key.run_id, run.token, QUARTER)
    assert advances.progress_of(run) == QUARTER


def test_the_progress_of_another_worker_or_token_isnt_shown(run):
    advances = MemberProgress()
    advances.record_progress(IncarnationId(new_id()), run.key.run_id, run.token, QUARTER)
    advances.record_progress(run.incarnation, run.key.run_id, Token(6), QUARTER)
    assert advances.progress_of(run) is None


def test_a_run_that_is_not_running_shows_no_progress(run):
    advances = MemberProgress()
    advances.record_progress(run.incarnation, run.key.run_id, run.token, QUARTER)
    assert advances.progress_of(replace(run, state=State.SUCCEEDED)) is None
    assert advances.progress_of(replace(run, incarnation=None)) is None


def test_the_progress_of_a_run_no_longer_held_is_dropped(run):
    advances, at = MemberProgress(), (run.key.run_id, run.token)
    advances.record_progress(run.incarnation, *at, QUARTER)
    advances.held(run.incarnation, Holdings.from_keys([at]))
    assert advances.progress_of(run) == QUARTER
    advances.held(run.incarnation, Holdings())
    assert advances.progress_of(run) is None
    advances.record_progress(run.incarnation, *at, QUARTER)
    advances.remove_worker(run.incarnation)
    assert advances.progress_of(run) is None


def test_few_entries_are_kept_for_runs_that_a_worker_does_not_run(run):
    advances = MemberProgress()
    for token in range(10_000):
        advances.record_progress(run.incarnation, run.key.run_id, Token(token), QUARTER)
    assert len(advances._progress[run.incarnation]) == MOST_BEFORE
    advances.held(run.incarnation, Holdings.from_keys([(run.key.run_id, run.token)]))
    assert len(advances._progress[run.incarnation]) <= 1
    advances.record_progress(run.incarnation, run.key.run_id, run.token, QUARTER)
    assert advances.progress_of(run) == QUARTER


@pytest.mark.parametrize(
    "said",
    [{"fraction": 1.5}, {"fraction": -0.1}, {"fraction": float("nan")}, {"done": float("inf")}],
)
def test_a_progress_out_of_its_bounds_is_a_bad_frame(said):
    with pytest.raises(frames.BadFrame, match=r"^progress\."):
        frames.progress(wire.Progress(key=KEY, **said))


def test_a_note_is_cut():
    assert len(frames.progress(wire.Progress(key=KEY, note="x" * 1000)).note) == frames.MOST_NOTE
