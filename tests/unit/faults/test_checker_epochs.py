"""S4, S13: no write of an owner that was followed, and one unfenced owner a shard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.checker import check
from faults.history import Schedule
from support.story import broken, insert, leader_killed, no_faults, update

NONE: frozenset[str] = frozenset()


def test_a_run_fired_by_a_past_owner_breaks_s4() -> None:
    story = leader_killed(without={150})
    story.play(story.fire(150, fired_by="m1"), 150.05)
    assert broken(story) == {"S4"}


def test_a_run_skipped_by_a_past_owner_breaks_s4() -> None:
    story = leader_killed(without={150, 151})
    story.play(story.fire(150), 150.05, lasts=1.5)
    run = story.fire(151)
    story.update_run(run, 151.05, state="SKIPPED", reason="OVERLAP", fired_by="m1")
    assert broken(story) == {"S4"}


def test_a_token_of_an_older_epoch_breaks_s4() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05, token=str(100 << 32 | 150_050))
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 0)
    story.accept(run, 150.15)
    assert broken(story) == {"S3", "S4"}


def test_a_result_refused_under_the_token_that_runs_breaks_s4() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    token = story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 0)
    story.refuse(run, token, 150.15, "w1/0.1")
    story.accept(run, 150.2)
    assert broken(story) == {"S4"}


def test_the_evidence_names_the_member_that_wrote() -> None:
    story = leader_killed(without={150})
    story.play(story.fire(150, fired_by="m1"), 150.05)
    (violation,) = check(story.history()).violations
    assert "fired by tenure m1 of m1, which did not own shard 0" in violation.what
    assert "the owner was tenure m2 of m2" in violation.evidence[1]


def test_a_write_just_before_the_takeover_breaks_nothing() -> None:
    story = leader_killed()
    late = story.job("late", schedule=Schedule(every=1000, phase=103.5))
    story.play(story.fire(103.5, late, on=103.59, fired_by="m1"), 103.8)
    assert broken(story) == NONE


def test_a_shard_taken_from_an_unfenced_owner_breaks_s13() -> None:
    story = no_faults()
    story.take(1, "m1", 200)
    assert broken(story) == {"S13"}


def test_a_shard_taken_by_a_fenced_tenure_breaks_s13() -> None:
    story = leader_killed()
    story.take(1, None, 200, epoch=100)
    story.take(1, "m1", 201)
    assert broken(story) == {"S13"}


def test_a_shard_handed_over_breaks_nothing() -> None:
    story = no_faults()
    story.take(1, None, 200, epoch=100)
    story.take(1, "m1", 200.1)
    story.take(1, "m1", 201)
    assert broken(story) == NONE


def test_a_shard_taken_by_an_unopened_tenure_breaks_s13() -> None:
    story = leader_killed()
    story.take(1, None, 200.0)
    story.take(1, "m9", 200.1)
    assert broken(story) == {"S13"}


@pytest.mark.parametrize("tenure", ["m1", "m2"])
def test_a_tenure_that_the_history_lacks_breaks_s13(tenure: str) -> None:
    history = leader_killed().history()
    opened = {"id": tenure, "member": tenure, "fenced_at": None}
    kept = tuple(one for one in history.commits if one.changes != (insert("tenures", opened),))
    assert len(kept) == len(history.commits) - 1
    assert check(replace(history, commits=kept)).broken == {"S13"}


def test_a_fenced_tenure_that_returns_breaks_s13() -> None:
    story = leader_killed()
    story.commit(200.0, update("tenures", {"id": "m1", "member": "m1", "fenced_at": None}))
    assert broken(story) == {"S13"}


def test_an_owner_from_before_the_first_commit_may_be_unknown() -> None:
    history = leader_killed().history()
    shard = {"id": "7", "owner": "m0", "epoch": "9", "timeline": "1"}
    assert check(replace(history, initial={"shards": (shard,)})).broken == NONE
