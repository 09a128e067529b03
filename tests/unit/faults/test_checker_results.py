"""S1, S2, S3, S12: what was accepted, in which order, and that it stays."""

from __future__ import annotations

from typing import Any

import pytest

from faults.checker import check
from support.story import broken, delete, insert, leader_killed, no_faults, update

NONE: frozenset[str] = frozenset()


# -- S1


def test_a_run_that_takes_a_second_result_breaks_s1() -> None:
    story = leader_killed(without={150})
    run = story.play(story.fire(150), 150.05)
    story.accept(run, 150.3, 1)
    assert "S1" in broken(story)


def test_two_results_under_one_token_break_s1_though_the_state_stays() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.play(run, 150.05, 3, state="RETRYING")
    story.accept(run, 150.16, 3, state="RETRYING", reason="EXIT_CODE", digest="\\x00")
    story.play(run, 150.3)
    assert "S1" in broken(story)


def test_a_result_whose_attempt_never_ended_breaks_s1() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.accept(run, 150.15)
    assert broken(story) == {"S1"}


def test_a_result_accepted_before_its_attempt_ended_breaks_s1() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.accept(run, 150.15)
    story.write("end", run, 150.4, 0)
    assert broken(story) == {"S1"}


def test_a_digest_that_no_worker_sent_breaks_s1() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 0)
    story.accept(run, 150.15, digest="\\xabcd")
    assert broken(story) == {"S1"}


def test_a_retry_takes_two_results_and_breaks_nothing() -> None:
    story = leader_killed(without={150}, attempts=2)
    run = story.fire(150)
    story.play(run, 150.05, 3, state="RETRYING")
    story.play(run, 150.3)
    assert broken(story) == NONE
    assert check(story.history()).figures.explained == 1


def test_a_result_spooled_across_a_restart_of_its_worker_breaks_nothing() -> None:
    story = leader_killed()
    slow = story.job("slow", every=225.0, overlap="allow")
    run = story.fire(225, slow)
    story.assign(run, 225.05, "w2")
    story.write("start", run, 225.1)
    story.write("end", run, 228.0, 0)
    story.lose(story.incarnations["w2"], 229.0)
    story.attach("w2", 229.0)
    story.accept(run, 229.5)
    assert broken(story) == NONE


def test_submitted_work_that_succeeded_without_a_line_breaks_s1() -> None:
    story = no_faults()
    for at, runs in ((200.0, True), (210.0, False)):
        story.call("submit", at)
        submit = story.new(at + 0.01, story.jobs["tick"], trigger="SUBMIT")
        submit.row["job_id"] = f"once at {at}"
        story.commit(at + 0.05, insert("runs", dict(submit.row)))
        if runs:
            story.play(submit, at + 0.3)
        else:
            story.assign(submit, at + 0.3)
            story.accept(submit, at + 0.5)
    verdict = check(story.history())
    assert verdict.broken == {"S1"}
    assert "never ended" in verdict.violations[0].what


def test_a_state_that_contradicts_what_was_sent_breaks_s1() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 0)
    story.accept(run, 150.15, state="FAILED", reason="EXIT_CODE")
    assert broken(story) == {"S1"}


# -- S2


@pytest.mark.parametrize(("sent", "stored"), [(3, 0), (0, 3), (3, 4)])
def test_another_exit_code_than_was_sent_breaks_s1(sent: int, stored: int) -> None:
    story = no_faults(without={200})
    run = story.fire(200)
    story.assign(run, 200.05)
    story.write("start", run, 200.07)
    story.write("end", run, 200.09, sent)
    story.accept(run, 200.13, stored)
    assert broken(story) == {"S1"}


@pytest.mark.parametrize(
    "cut", [{"reason": "SIGNAL", "exit_code": "-15"}, {"state": "PENDING", "exit_code": None}]
)
def test_a_program_that_is_ended_after_its_last_line_breaks_no_s1(cut: dict[str, Any]) -> None:
    story = no_faults(without={200})
    story.play(story.fire(200), 200.05, **cut)
    assert "S1" not in broken(story)


def test_a_result_of_an_older_token_breaks_s2() -> None:
    story = leader_killed(without={150, 151})
    run = story.fire(150)
    first = story.assign(run, 150.05, "w2")
    story.write("start", run, 150.07)
    story.rescue(run, 150.2)
    story.assign(run, 150.3, "w1")
    story.write("start", run, 150.32)
    story.write("end", run, 150.4, 0, token=first, worker="w2")
    story.accept(run, 150.45, made_under=first)
    story.write("end", run, 150.6, 0)
    story.tick([151])
    assert "S2" in broken(story)


def test_a_row_that_goes_back_to_an_older_token_breaks_s2() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    first = story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 3)
    story.accept(run, 150.15, 3, state="RETRYING", reason="EXIT_CODE")
    story.assign(run, 150.3)
    story.write("start", run, 150.32)
    story.write("end", run, 150.34, 0)
    story.accept(run, 150.4, token=str(first))
    assert {"S2", "S3"} <= broken(story)


def test_a_late_result_that_is_refused_breaks_nothing() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    first = story.assign(run, 150.05, "w2")
    story.write("start", run, 150.07)
    story.rescue(run, 150.2)
    story.assign(run, 150.3, "w1")
    story.write("start", run, 150.32)
    story.write("end", run, 150.4, 0, token=first, worker="w2")
    story.refuse(run, first, 150.45, "w2/0.1")
    story.write("end", run, 150.6, 0)
    story.accept(run, 150.65)
    assert broken(story) == NONE
    figures = check(story.history()).figures
    assert (figures.stale, figures.explained, figures.doubled) == (1, 1, 0)


# -- S3


def test_a_token_that_does_not_grow_breaks_s3() -> None:
    story = no_faults(without={150})
    run = story.fire(150)
    story.assign(run, 150.05, token=str(100 << 32 | 7))
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 0)
    story.accept(run, 150.15)
    assert broken(story) == {"S3"}


def test_a_token_used_twice_breaks_s3() -> None:
    story = no_faults(without={150, 151})
    first = story.play(story.fire(150), 150.05)
    run = story.fire(151)
    story.assign(run, 151.05, token=str(first.token))
    story.write("start", run, 151.07)
    story.write("end", run, 151.1, 0)
    story.accept(run, 151.15)
    assert broken(story) == {"S3"}


def test_an_epoch_that_goes_back_breaks_s3() -> None:
    story = leader_killed()
    story.take(1, "m2", 200, epoch=50)
    assert broken(story) == {"S3"}


def test_a_takeover_that_raises_no_epoch_breaks_s3() -> None:
    story = leader_killed()
    story.take(1, None, 200, epoch=100)
    story.take(1, "m2", 201, epoch=100)
    assert broken(story) == {"S3"}


def test_a_term_that_goes_back_breaks_s3() -> None:
    story = leader_killed()
    story.term(1, "m2", 200)
    assert broken(story) == {"S3"}


def test_tokens_of_one_commit_may_be_reported_in_any_order() -> None:
    story = no_faults()
    wide = story.job("wide", every=1000.0, overlap="allow")
    for _ in range(2):
        story.call("trigger", 200, job_id=wide.id)
    runs = [story.new(200 + n / 1000, wide, trigger="MANUAL") for n in (1, 2)]
    for run in runs:
        story.commit(200.05, insert("runs", dict(run.row)))
    tokens = (100 << 32 | 200_102, 100 << 32 | 200_101)
    rows = [
        run.row | {"state": "RUNNING", "token": str(token)}
        for run, token in zip(runs, tokens, strict=True)
    ]
    story.commit(200.1, *(update("runs", row) for row in rows))
    ended = [row | {"state": "CANCELLED"} for row in rows]
    story.commit(200.2, *(update("runs", row) for row in ended))
    assert broken(story) == NONE


# -- S12


def test_a_terminal_state_that_changes_breaks_s12() -> None:
    story = leader_killed(without={150})
    run = story.play(story.fire(150), 150.05)
    story.update_run(run, 151, state="CANCELLED")
    assert broken(story) == {"S12", "L1"}


def test_a_reason_that_changes_after_the_end_breaks_s12() -> None:
    story = leader_killed(without={150})
    run = story.play(story.fire(150), 150.05)
    story.update_run(run, 151, reason="BY_USER")
    assert broken(story) == {"S12"}


def test_a_step_that_the_table_lacks_breaks_s12() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.play(run, 150.05, 3, state="RETRYING")
    story.update_run(run, 150.2, state="SKIPPED")
    assert broken(story) == {"S12", "L1"}


def test_a_run_that_begins_running_with_its_token_breaks_nothing() -> None:
    story = leader_killed(without={150})
    run = story.fire_running(150)
    story.write("start", run, 150.03)
    story.write("end", run, 150.05, 0)
    story.accept(run, 150.1)
    assert broken(story) == NONE


@pytest.mark.parametrize(("trigger", "expected"), [("SUBMIT", False), ("MANUAL", True)])
def test_of_a_persons_runs_only_a_submitted_one_may_begin_running(
    trigger: str, expected: bool
) -> None:
    story = no_faults()
    call = "submit" if trigger == "SUBMIT" else "trigger"
    story.call(call, 200.4, job_id=story.jobs["tick"].id)
    run = story.create_running(200.5, trigger)
    story.write("start", run, 200.52)
    story.write("end", run, 200.54, 0)
    story.accept(run, 200.6)
    assert broken(story) == ({"S12"} if expected else NONE)


def test_a_run_that_begins_running_without_a_token_breaks_s12() -> None:
    story = leader_killed(without={150})
    story.play(story.fire(150, state="RUNNING"), 150.05)
    assert "S12" in broken(story)


def test_running_without_a_new_token_breaks_s12() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.give_back(run, 150.06)
    story.update_run(run, 150.065, state="RUNNING")
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 0)
    story.accept(run, 150.15)
    assert "S12" in broken(story)


def test_a_run_that_is_deleted_breaks_s12() -> None:
    story = leader_killed(without={150})
    run = story.play(story.fire(150), 150.05)
    story.commit(151, delete("runs", {"run_id": run.id, "scheduled_at": run.row["scheduled_at"]}))
    assert "S12" in broken(story)


def test_a_refused_report_that_changes_the_row_breaks_s12() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    token = story.assign(run, 150.05)
    run.row |= {"state": "RETRYING", "attempt": "0"}
    story.refuse(run, token, 150.1, "w2/0.1", update("runs", dict(run.row)))
    story.play(run, 150.2)
    assert broken(story) == {"S12"}


def test_an_end_that_is_reported_again_breaks_nothing() -> None:
    story = leader_killed(without={150})
    run = story.play(story.fire(150), 150.05)
    story.commit(151, update("runs", dict(run.row)))
    assert broken(story) == NONE
