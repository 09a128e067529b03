"""The end of broadcasts, and settings that children take from their job's definition."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.dispatch.placement import need_of
from schedd.core.ids import Id, IncarnationId
from schedd.core.jobs.definition import Definition, Placement
from schedd.core.jobs.notifications import Notice, Notices
from schedd.core.runs.broadcast import WORKER_AWAY, Away, BroadcastChild, End, end_of, own, targets
from schedd.core.runs.lifecycle import Reason, State
from support.dispatching import SHELL
from support.runs import NOW, run, worker

DEFINITION = replace(
    SHELL,
    placement=Placement.BROADCAST,
    max_runs=3,
    pause_after_failures=2,
    notices=Notices(failure=Notice(email=("ops@example.org",))),
)
WELL = BroadcastChild("w1", State.SUCCEEDED, None)
FAILED = BroadcastChild("w2", State.FAILED, "EXIT_CODE")
MISSED = BroadcastChild("w3", State.MISSED, "START_DEADLINE")
DELETED = BroadcastChild("w4", State.CANCELLED, "DELETED")


@pytest.mark.parametrize(
    ("children", "cancelled", "deleted", "end"),
    [
        ([WELL, WELL], None, False, End(State.SUCCEEDED)),
        ([WELL, WELL], None, True, End(State.SUCCEEDED)),
        (
            [MISSED, WELL, FAILED],
            None,
            False,
            End(
                State.FAILED,
                Reason.CHILDREN_FAILED,
                "2 of 3 didn't succeed: w2 (EXIT_CODE), w3 (START_DEADLINE)",
            ),
        ),
        (
            [WELL, DELETED],
            None,
            True,
            End(State.CANCELLED, Reason.DELETED, "1 of 2 didn't succeed: w4 (DELETED)"),
        ),
        (
            [FAILED, DELETED],
            None,
            True,
            End(
                State.FAILED,
                Reason.CHILDREN_FAILED,
                "2 of 2 didn't succeed: w2 (EXIT_CODE), w4 (DELETED)",
            ),
        ),
        ([WELL, WELL], Reason.BY_OVERLAP, False, End(State.CANCELLED, Reason.BY_OVERLAP)),
        (
            [FAILED],
            Reason.BY_USER,
            False,
            End(State.CANCELLED, Reason.BY_USER, "1 of 1 didn't succeed: w2 (EXIT_CODE)"),
        ),
    ],
)
def test_the_end_of_a_broadcast_follows_from_its_children(
    children: list[BroadcastChild], cancelled: Reason | None, deleted: bool, end: End
) -> None:
    assert end_of(children, cancelled, deleted=deleted) == end


def test_many_failed_children_are_counted_and_some_named() -> None:
    result = end_of([replace(FAILED, worker=f"w{n:03}") for n in range(500)], None, deleted=False)
    assert result.error.startswith("500 of 500 didn't succeed: w000 (EXIT_CODE), w001")
    assert result.error.endswith("w019 (EXIT_CODE), …")


def test_a_child_counts_for_no_failure_streak_and_sends_no_notification() -> None:
    parent = run(1)
    assert own(parent, DEFINITION) is DEFINITION
    said: Definition = own(run(2, parent=parent.key.run_id), DEFINITION)
    assert (said.notices, said.pause_after_failures, said.max_runs) == (None, 0, 0)
    assert said.retry == DEFINITION.retry


def test_a_broadcast_has_one_child_per_name_of_a_matching_worker() -> None:
    again = replace(worker(1), id=IncarnationId(Id.from_int(7)))
    there = [worker(2), worker(1), again, worker(3, slots=1), replace(worker(4), actions=())]
    assert targets(need_of(replace(DEFINITION, slots=2), run(1)), there) == ("w1", "w2")


def test_a_target_worker_is_missing_too_long_only_after_a_continuous_absence() -> None:
    away = Away()
    need = need_of(DEFINITION, run(1, parent=run(9).key.run_id, target="w1"))
    away.update_waiting([need], [], NOW)
    assert not away.too_long(need, DEFINITION, NOW + WORKER_AWAY - timedelta(seconds=1))
    assert away.too_long(need, DEFINITION, NOW + WORKER_AWAY)
    quick = replace(DEFINITION, start_deadline=timedelta(seconds=30))
    assert away.too_long(need, quick, NOW + timedelta(seconds=30))
    away.update_waiting([need], [worker(1)], NOW + timedelta(seconds=1))
    assert not away.too_long(need, DEFINITION, NOW + 9 * WORKER_AWAY)
    away.update_waiting([need], [worker(2)], NOW + WORKER_AWAY)
    assert not away.too_long(need, DEFINITION, NOW + WORKER_AWAY + timedelta(seconds=9))
