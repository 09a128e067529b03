"""A database put back to an older state: two histories, judged as any, and what lies between."""

from __future__ import annotations

from dataclasses import replace

from faults.checker import check
from faults.checker.restored import hole_of, split
from faults.history import History
from support.story import Restored, restored

NOTHING: frozenset[str] = frozenset()


def broken(story: Restored) -> frozenset[str]:
    return check(story.history()).broken


def test_a_correct_restore_breaks_nothing() -> None:
    verdict = check(restored().history())
    assert verdict.violations == verdict.doubts == ()
    assert verdict.figures.lost == verdict.figures.doubled == 0
    assert verdict.figures.judged > 400


def test_undone_commits_are_counted() -> None:
    hole = hole_of(restored().history())
    assert (hole.seconds, hole.runs, hole.again) == (40.0, 39, 1)


def test_an_instant_lost_before_the_restore_is_not_excused_by_it() -> None:
    story = restored()
    lost = {run.run for run in story.lost.probes if run.nominal.endswith("04:00+00:00")}
    assert lost, "no probe of that second"
    story.lost.transactions = [
        (at, tuple(c for c in changes if c.row.get("run_id") not in lost))
        for at, changes in story.lost.transactions
    ]
    story.lost.probes = [each for each in story.lost.probes if each.run not in lost]
    assert {"L1"} <= broken(story)


def test_an_epoch_taken_after_the_restore_that_was_there_before_breaks_s3() -> None:
    assert broken(restored(lost_epoch=500)) == {"S3"}


def test_a_term_that_repeats_a_lost_one_breaks_s3() -> None:
    story = restored()
    story.lost.term(7, "m1", 230.5)
    assert broken(story) == {"S3"}


def test_a_restored_cluster_that_wasnt_paused_breaks_s8() -> None:
    assert "S8" in broken(restored(paused=False))


def test_a_run_fired_before_a_resume_breaks_s8() -> None:
    story = restored(recorded=False)
    story.kept.merge(211, 244, "SKIPPED", 260.2, reason="PAUSED")
    story.kept.play(story.kept.fire(245, on=253.8), 260.25)
    story.kept.merge(246, 259, "COALESCED", 260.3)
    story.kept.play(story.kept.fire(260, on=260.3), 260.45)
    assert broken(story) == {"S8"}


def test_a_second_run_of_a_time_before_the_horizon_breaks_s10() -> None:
    story = restored(recorded=False)
    story.kept.merge(211, 239, "SKIPPED", 260.2, reason="PAUSED")
    story.kept.play(story.kept.fire(240, on=260.21), 260.25)
    story.kept.merge(241, 244, "SKIPPED", 260.22, reason="PAUSED")
    story.kept.merge(245, 259, "COALESCED", 260.3)
    story.kept.play(story.kept.fire(260, on=260.31), 260.45)
    assert broken(story) == {"S10"}


def test_runs_that_catch_up_covers_may_run_again() -> None:
    story = restored(recorded=False, catch_up="all", overlap="allow")
    story.kept.merge(211, 244, "SKIPPED", 260.2, reason="PAUSED")
    for number, at in enumerate(range(245, 261)):
        story.kept.play(story.kept.fire(at, on=260.21), 260.25 + number / 100)
    assert broken(story) == NOTHING


def test_an_at_most_once_run_repeated_by_catch_up_breaks_s10() -> None:
    once = {"delivery": "at_most_once", "catch_up": "all", "overlap": "allow"}
    story = restored(recorded=False, rerun=False, **once)
    story.kept.merge(211, 244, "SKIPPED", 260.2, reason="PAUSED")
    for number, at in enumerate(range(245, 261)):
        story.kept.play(story.kept.fire(at, on=260.21), 260.25 + number / 100)
    assert "S10" in broken(story)


def test_a_time_after_the_horizon_without_a_row_breaks_l1() -> None:
    story = restored(recorded=False)
    story.kept.merge(211, 244, "SKIPPED", 260.2, reason="PAUSED")
    story.kept.merge(245, 257, "COALESCED", 260.3)
    story.kept.play(story.kept.fire(258, on=260.31), 260.4)
    story.kept.play(story.kept.fire(260, on=260.5), 260.6)
    assert "L1" in broken(story)


def test_a_history_is_split_where_the_database_was_stopped() -> None:
    history: History = restored().history()
    assert history.restore is not None
    first, second = split(history)
    assert first.commits + second.commits == history.commits
    assert (first.meta.ended, second.meta.began) == (
        history.restore.stopped,
        history.restore.horizon,
    )
    assert all(each.at <= history.restore.stopped for each in first.commits)
    assert replace(first, commits=()).nemesis == ()
