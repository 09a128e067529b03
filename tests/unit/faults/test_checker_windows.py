"""By when a due run must have started: one second in quiet, F and G of work around faults."""

from __future__ import annotations

import pytest

from faults.checker.windows import Windows, windows_of
from faults.history import Meta, Nemesis

F, G = 6.0, 5.0


def world(
    *faults: tuple[float, float],
    quiet: tuple[tuple[float, float], ...] = (),
    target: str = "pg",
) -> Windows:
    """A run of 1,000 s with faults that last from a to b; m1 is a member, w1 a worker."""
    meta = Meta("rows", 1, 0.0, 1000.0, 3.0, 3.0, F, G, quiet)
    begun = [Nemesis(begin, n, "cut", target, "begin") for n, (begin, _) in enumerate(faults)]
    healed = [Nemesis(end, n, "cut", target, "healed") for n, (_, end) in enumerate(faults)]
    return windows_of(meta, begun + healed, {"m1", "w1"})


def test_in_quiet_a_run_starts_within_a_second() -> None:
    windows = world(quiet=((0.0, 100.0),))
    assert windows.deadline(50.0) == 51.0
    assert windows.deadline(99.5) == 99.5 + F + G, "its second isn't quiet to the end"


def test_a_run_due_in_a_fault_has_f_and_g_after_its_healing() -> None:
    windows = world((100.0, 120.0))
    assert windows.deadline(110.0) == 120.0 + F + G
    assert windows.deadline(99.5) == 120.0 + F + G - 0.5, "half a second before it could work"


def test_a_run_due_after_a_fault_has_only_f_and_g() -> None:
    windows = world((100.0, 120.0))
    assert windows.deadline(121.0) == 121.0 + F + G
    assert windows.deadline(200.0) == 200.0 + F + G


def test_a_fault_before_the_system_could_work_extends_the_deadline() -> None:
    assert world((100.0, 120.0), (124.0, 140.0)).deadline(110.0) == 140.0 + F + G


def test_time_to_work_between_faults_counts() -> None:
    windows = world((100.0, 120.0), (129.0, 140.0))
    assert windows.deadline(110.0) == 140.0 + F + G - 3.0, "from 126 to 129 it could work"


def test_a_row_of_faults_never_ends_the_demand() -> None:
    windows = world(*((float(at), at + 6.0) for at in range(100, 900, 20)))
    assert windows.deadline(101.0) == 106.0 + F + G
    assert windows.deadline(501.0) == 506.0 + F + G


def test_a_fault_that_never_heals_demands_nothing_before_the_end() -> None:
    meta = Meta("rows", 1, 0.0, 1000.0, 3.0, 3.0, F, G)
    windows = windows_of(meta, [Nemesis(100.0, 1, "cut", "m1", "begin")])
    assert windows.deadline(110.0) > 1000.0


@pytest.mark.parametrize("target", ["m1", "w1", "a member", "e1,e2,e3 -> m1", "w1 <-> m1,m2,m3"])
def test_a_fault_of_one_member_doesnt_extend_the_deadline_to_its_end(target: str) -> None:
    windows = world((100.0, 160.0), target=target)
    assert windows.deadline(101.0) == 106.0 + F + G
    assert windows.deadline(130.0) == 130.0 + F + G


@pytest.mark.parametrize("target", ["pg", "m1,m2", "m1,m2,m3 -> pg:5432", "runs"])
def test_a_fault_of_all_members_extends_the_deadline_to_its_end(target: str) -> None:
    assert world((100.0, 160.0), target=target).deadline(101.0) == 160.0 + F + G


def test_two_faults_at_once_extend_the_deadline_to_their_end() -> None:
    windows = world((100.0, 160.0), (110.0, 120.0), target="m1")
    assert windows.deadline(101.0) == 160.0 + F + G


def test_a_fault_that_heals_sooner_ends_then() -> None:
    assert world((100.0, 103.0), target="m1").deadline(101.0) == 103.0 + F + G


@pytest.mark.parametrize(("back", "counts_from"), [(123.0, 123.0), (150.0, 135.0)])
def test_a_service_that_is_back_late_counts_as_healed(back: float, counts_from: float) -> None:
    phases = ((100.0, "begin"), (120.0, "end"), (back, "healed"))
    events = [Nemesis(at, 1, "kill", "pg", phase) for at, phase in phases]
    windows = windows_of(Meta("rows", 1, 0.0, 1000.0, 3.0, 3.0, F, G), events)
    assert windows.deadline(110.0) == counts_from + F + G
