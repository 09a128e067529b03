"""L1, L2: no instant without a row, no row without its run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from faults.checker import check
from faults.history import Change, Stall
from support.story import BASE, Story, broken, leader_killed, no_faults
from support.story.rows import insert, stamp

NONE: frozenset[str] = frozenset()
GAP = {101, 102, 103}


def outage(state: str, reason: str | None, **wanted: Any) -> Story:
    """The leader is killed, and 101 and 102 are accounted for in this way."""
    story = leader_killed(without=GAP, **wanted)
    story.merge(101, 102, state, 103.7, reason=reason)
    story.play(story.fire(103, on=103.7), 103.8)
    return story


# -- L1


def test_an_instant_without_a_row_breaks_l1() -> None:
    story = leader_killed(without={150})
    verdict = check(story.history())
    assert verdict.broken == {"L1"}
    assert "08:02:30" in verdict.violations[0].what
    assert (verdict.figures.lost, verdict.figures.judged) == (1, 247)


def test_an_instant_lost_in_the_outage_breaks_l1() -> None:
    story = leader_killed(without=GAP)
    story.merge(101, 101, "COALESCED", 103.7)
    story.play(story.fire(103, on=103.7), 103.8)
    assert "L1" in broken(story)


@pytest.mark.parametrize(
    ("state", "reason", "wanted"),
    [
        ("MISSED", "CATCH_UP_NONE", {}),
        ("MISSED", "WINDOW", {}),
        ("MISSED", None, {}),
        ("SKIPPED", "PAUSED", {}),
        ("SKIPPED", "EDITED", {}),
        ("COALESCED", None, {"catch_up": "all"}),
        ("COALESCED", None, {"catch_up": "none"}),
    ],
)
def test_an_account_that_the_policy_lacks_breaks_l1(
    state: str, reason: str | None, wanted: dict[str, Any]
) -> None:
    assert broken(outage(state, reason, **wanted)) == {"L1"}


@pytest.mark.parametrize(
    ("state", "reason", "wanted"),
    [
        ("COALESCED", None, {}),
        ("MISSED", "CATCH_UP_NONE", {"catch_up": "none"}),
        ("MISSED", "WINDOW", {"window": 1.0}),
    ],
)
def test_an_account_by_policy_breaks_nothing(
    state: str, reason: str | None, wanted: dict[str, Any]
) -> None:
    story = outage(state, reason, **wanted)
    assert broken(story) == NONE
    assert check(story.history()).figures.missed == 2


def test_catching_up_all_breaks_nothing() -> None:
    story = leader_killed(without=GAP, catch_up="all")
    for n, at in enumerate((101, 102, 103)):
        story.play(story.fire(at, on=103.7), 103.75 + n * 0.09)
    assert broken(story) == NONE
    assert check(story.history()).figures.late == 2


@pytest.mark.parametrize(("last", "right"), [(163, True), (175, False)])
def test_an_account_long_after_every_fault_breaks_l1(last: int, right: bool) -> None:
    """No owner fired for so long, and nothing was wrong: not only quiet time must be explained."""
    story = leader_killed(without=set(range(160, last + 1)))
    story.meta = replace(story.meta, quiet=((BASE, BASE + 100),))
    story.merge(160, last - 1, "COALESCED", last + 0.3)
    story.play(story.fire(last, on=last + 0.3), last + 0.4)
    assert broken(story) == (NONE if right else {"L1"})


def test_a_merged_row_coalesced_into_nothing_breaks_l1() -> None:
    story = leader_killed(without=GAP)
    story.merge(101, 103, "COALESCED", 103.7)
    story.transactions = [
        one for one in story.transactions if not (one[0] == 104.01 and one[1][0].op == "insert")
    ]
    assert "L1" in broken(story)


def test_a_miss_in_a_quiet_time_breaks_l1() -> None:
    story = leader_killed(without={150}, catch_up="none")
    story.transactions = [one for one in story.transactions if not 101 <= one[0] < 103]
    story.fire(150, on=152, state="MISSED", reason="CATCH_UP_NONE")
    assert "L1" in broken(story)


def test_a_skip_for_overlap_with_nothing_breaks_l1() -> None:
    story = leader_killed(without={150})
    story.update_run(story.fire(150), 150.05, state="SKIPPED", reason="OVERLAP")
    assert broken(story) == {"L1"}


def test_a_skip_for_overlap_under_allow_breaks_l1() -> None:
    story = leader_killed(without={150, 151}, overlap="allow")
    story.play(story.fire(150), 150.05, lasts=1.5)
    story.update_run(story.fire(151), 151.05, state="SKIPPED", reason="OVERLAP")
    assert broken(story) == {"L1"}


def test_a_skip_for_a_run_that_ended_while_it_was_judged_breaks_nothing() -> None:
    story = leader_killed(without={150, 151})
    story.play(story.fire(150), 150.05, lasts=0.9)
    story.update_run(story.fire(151), 151.2, state="SKIPPED", reason="OVERLAP")
    assert broken(story) == NONE


def test_a_skip_for_a_run_whose_end_was_committed_and_not_yet_seen_breaks_nothing() -> None:
    story = leader_killed(without={150, 151})
    story.play(story.fire(150), 150.05, lasts=0.89)
    story.update_run(story.fire(151), 151.2, state="SKIPPED", reason="OVERLAP")
    assert broken(story) == NONE


def test_a_skip_for_a_run_that_had_ended_before_breaks_l1() -> None:
    story = leader_killed(without={150, 151})
    story.play(story.fire(150), 150.05, lasts=0.7)
    story.update_run(story.fire(151), 151.2, state="SKIPPED", reason="OVERLAP")
    assert broken(story) == {"L1"}


@pytest.mark.parametrize(("waited", "breaks"), [(3.2, set()), (2.5, {"L1"})])
def test_a_skip_behind_an_older_run_that_waits_is_for_one_that_waited_long(
    waited: float, breaks: set[str]
) -> None:
    due = range(150, 150 + int(waited) + 1)
    story = leader_killed(without=set(due))
    older, *newer = [story.fire(at) for at in due]
    for number, run in enumerate(newer):
        story.update_run(run, 150 + waited + number / 1000, state="SKIPPED", reason="OVERLAP")
    story.play(older, 150 + waited + 0.1, lasts=0.3)
    assert {one for one in broken(story) if one == "L1"} == breaks


def test_a_run_cancelled_without_a_request_breaks_l1() -> None:
    for reason in ("BY_USER", "DELETED", None):
        story = leader_killed(without={150})
        story.update_run(story.fire(150), 150.05, state="CANCELLED", reason=reason)
        assert broken(story) == {"L1"}, reason


def test_a_run_that_a_user_cancelled_breaks_nothing() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.call("cancel", 150.02, run_id=run.id)
    story.update_run(run, 150.05, state="CANCELLED", reason="BY_USER", cancelling="true")
    assert broken(story) == NONE


def violated(story: Story) -> set[str]:
    """Return the broken invariants, whether or not enough was judged."""
    return {each.invariant for each in check(story.history()).violations}


def deleted_in_the_outage(*account: Change) -> Story:
    """The leader is killed, and no member owns the job when a user deletes it at 104.35."""
    story = leader_killed(without=set(range(101, 250)))
    story.change(story.jobs["tick"], 104.3, "delete", also=account)
    return story


def unfired(state: str, reason: str, last: int = 104) -> Change:
    """The row for 101 to `last`."""
    story = leader_killed()
    span = {"scheduled_until": stamp(last), "count": str(last - 100)}
    run = story.new(101, state=state, reason=reason, **span)
    return insert("runs", dict(run.row))


def test_a_time_unfired_in_an_outage_at_a_deletion_may_be_missed() -> None:
    verdict = check(deleted_in_the_outage(unfired("MISSED", "DELETED")).history())
    assert not verdict.violations
    assert verdict.figures.judged == 100


def test_a_time_unfired_in_an_outage_at_a_deletion_without_a_row_breaks_l1() -> None:
    verdict = check(deleted_in_the_outage().history())
    assert {each.invariant for each in verdict.violations} == {"L1"}
    assert verdict.figures.lost == 4
    assert violated(deleted_in_the_outage(unfired("MISSED", "DELETED", last=103))) == {"L1"}


@pytest.mark.parametrize(
    ("state", "reason"), [("SKIPPED", "PAUSED"), ("MISSED", "WINDOW"), ("SKIPPED", "DELETED")]
)
def test_another_account_by_a_deletion_breaks_l1(state: str, reason: str) -> None:
    assert violated(deleted_in_the_outage(unfired(state, reason))) == {"L1"}


def test_a_time_due_in_a_pause_is_accounted_for_by_the_deletion() -> None:
    story = leader_killed(without=set(range(201, 250)))
    tick = story.jobs["tick"]
    story.change(tick, 200.3, "pause")
    row = story.new(201, state="SKIPPED", reason="PAUSED", scheduled_until=stamp(204), count="4")
    accounted = [insert("runs", dict(row.row))]
    story.change(tick, 204.3, "delete", also=accounted)
    assert violated(story) == NONE


def test_a_time_due_in_a_pause_without_a_row_after_the_deletion_breaks_l1() -> None:
    story = leader_killed(without=set(range(201, 250)))
    tick = story.jobs["tick"]
    story.change(tick, 200.3, "pause")
    story.change(tick, 204.3, "delete")
    assert violated(story) == {"L1"}


def test_an_instant_within_the_clocks_error_of_a_deletion_may_be_either() -> None:
    story = no_faults(without=set(range(200, 250)))
    story.change(story.jobs["tick"], 199.99, "delete")  # committed at 200.04
    assert violated(story) == NONE


def test_an_instant_just_before_a_deletion_in_a_quiet_time_breaks_l1_without_a_row() -> None:
    story = no_faults(without=set(range(200, 250)))
    story.change(story.jobs["tick"], 200.3, "delete")
    assert violated(story) == {"L1"}


# -- L2


def test_a_run_that_never_started_breaks_l2() -> None:
    story = leader_killed(without={150})
    run = story.fire(150)
    story.assign(run, 150.05)
    story.accept(run, 150.1, 1, digest="\\x00")
    verdict = check(story.history())
    assert verdict.broken == {"L2"}
    assert verdict.figures.lost == 1


def test_a_late_start_in_a_quiet_time_breaks_l2() -> None:
    story = leader_killed(without={150})
    story.play(story.fire(150), 151.5)
    verdict = check(story.history())
    assert "L2" in verdict.broken
    assert verdict.figures.late == 1


def test_lateness_during_a_stall_of_the_machine_names_the_stall() -> None:
    story = leader_killed(without={150})
    story.play(story.fire(150), 151.5)
    stalls = (Stall(BASE + 149.0, 0.5), Stall(BASE + 150.9, 0.8), Stall(BASE + 160.0, 0.5))
    verdict = check(replace(story.history(), stalls=stalls))
    evidence = [line for violation in verdict.violations for line in violation.evidence]
    assert [line for line in evidence if "stood still" in line] == [
        "the machine stood still for 0.8 s until 2027-01-15T08:02:30.900Z"
    ]


def test_a_start_past_the_window_of_the_fault_breaks_l2() -> None:
    story = leader_killed(without=GAP, overlap="allow")
    story.merge(101, 102, "COALESCED", 103.7)
    story.play(story.fire(103, on=103.7), 118.5)
    assert broken(story) == {"L2"}


def test_an_owner_that_is_down_for_long_excuses_no_run_for_long() -> None:
    story = no_faults(without=set(range(100, 150)), overlap="allow", catch_up="all")
    story.fault("SIGSTOP", "m1", 99.5, 170)
    for at in range(100, 150):
        story.play(story.fire(at, on=150.01), 150.05 + at / 1000)
    verdict = check(story.history())
    assert verdict.broken == {"L2"}
    assert verdict.figures.late == 50


def test_a_start_within_the_window_of_the_fault_is_late_and_no_more() -> None:
    story = leader_killed(without=GAP, overlap="allow")
    story.merge(101, 102, "COALESCED", 103.7)
    story.play(story.fire(103, on=103.7), 116.0)
    verdict = check(story.history())
    assert verdict.broken == NONE
    assert verdict.figures.late == 1
    assert verdict.figures.max_lateness == pytest.approx(13.02, abs=0.001)


def test_a_run_that_ended_and_was_never_written_down_breaks_l2() -> None:
    story = leader_killed(without={150}, overlap="allow")
    run = story.fire(150)
    story.assign(run, 150.05)
    story.write("start", run, 150.07)
    story.write("end", run, 150.1, 0)
    assert broken(story) == {"L2", "L4"}


def test_time_alone_finds_a_start_that_belongs_to_another_job() -> None:
    story = leader_killed()
    story.probes = [
        replace(probe, job="other") if probe.instant == BASE + 150 else probe
        for probe in story.probes
    ]
    verdict = check(story.history())
    assert verdict.broken == {"L2"}
    (violation,) = verdict.violations
    assert "by time alone 1 of" in violation.what


def test_starts_are_matched_to_the_time_that_expires_first() -> None:
    story = leader_killed(without={101, 102, 103, 104}, overlap="allow", catch_up="all")
    for at, on in ((101, 105.2), (102, 105.1), (103, 104.6), (104, 104.1)):
        story.play(story.fire(at, on=104.02), on)
    assert broken(story) == NONE


def test_a_run_lost_with_its_worker_is_not_owed_twice() -> None:
    story = leader_killed(without={150}, delivery="at_most_once")
    run = story.fire(150)
    story.assign(run, 150.05, "w2")
    story.rescue(run, 150.4, state="FAILED")
    verdict = check(story.history())
    assert verdict.broken == NONE
    assert verdict.figures.missed == 3


def test_a_run_that_waits_for_a_pause_to_end_breaks_nothing() -> None:
    story = no_faults(without=set(range(150, 250)))
    tick = story.jobs["tick"]
    run = story.fire(150)
    story.change(tick, 150.02, "pause")
    story.merge(151, 160, "SKIPPED", 160.34, reason="PAUSED", fired_by=None)
    story.change(tick, 160.3, "resume")
    story.play(run, 160.5)
    story.tick(range(161, 250))
    assert broken(story) == NONE


def test_a_buffered_run_waits_for_the_one_before() -> None:
    story = no_faults(without={150, 151, 152, 153}, overlap="buffer_one")
    story.play(story.fire(150), 150.05, lasts=3)
    story.play(story.fire(151), 153.15)
    for at in (152, 153):
        story.update_run(story.fire(at), at + 0.05, state="SKIPPED", reason="BUFFER_FULL")
    assert broken(story) == NONE
