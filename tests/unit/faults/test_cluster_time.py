"""A history under a moved cluster clock is judged on that clock, and by nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faults.checker import check
from faults.checker.cluster_time import in_cluster_time
from faults.checker.validity import ENOUGH_INSTANTS
from faults.day import DAYS, FIXED, JOBS, POLICIES, Day, instants
from faults.history import History, Meta, Recorder
from faults.probes import DatabaseProbe
from faults.world.clock import ClusterClock
from support.story import BASE, no_faults

AHEAD = 5_000.0
LEAPT = BASE + 125.25


def test_a_history_whose_clock_didnt_move_is_unchanged() -> None:
    history = no_faults().history()
    assert in_cluster_time(history) is history


def test_host_times_are_converted_by_the_leg_they_fall_in() -> None:
    history = no_faults().history()
    legs = ((history.meta.began, 1_000.0), (LEAPT, 2_000.0))
    converted = in_cluster_time(replace(history, meta=replace(history.meta, legs=legs)))
    for before, after in zip(history.probes, converted.probes, strict=True):
        assert after.at - before.at == pytest.approx(1_000 if before.at < LEAPT else 2_000)
    assert converted.meta.ended == pytest.approx(history.meta.ended + 2_000)
    assert converted.commits == history.commits  # the database's dates are the cluster's already


def one_leg(history: History) -> History:
    """The history as the host dated it, `AHEAD` behind the cluster throughout."""
    meta = history.meta

    def each(records: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(replace(one, at=one.at - AHEAD) for one in records)

    return replace(
        history,
        meta=replace(
            meta,
            began=meta.began - AHEAD,
            ended=meta.ended - AHEAD,
            quiet=tuple((begin - AHEAD, end - AHEAD) for begin, end in meta.quiet),
            legs=((0.0, AHEAD),),
        ),
        jobs=each(history.jobs),
        clients=each(history.clients),
        probes=each(history.probes),
        resources=each(history.resources),
    )


def test_a_history_dated_by_the_host_is_judged_alike_and_an_early_start_is_still_one() -> None:
    history = one_leg(no_faults().history())
    assert check(history).broken == frozenset()
    first = next(one for one in history.probes if one.event == "start")
    hasty = tuple(replace(one, at=one.at - 1.5) if one is first else one for one in history.probes)
    assert "S7" in check(replace(history, probes=hasty)).broken


def test_legs_are_written_to_and_read_from_the_history(tmp_path: Path) -> None:
    legs = ((1.5, 1_000.25), (2.5, 9_000.0))
    Recorder(tmp_path).meta(Meta("a day", 0, 1.0, 9.0, 3.0, 3.0, 5.0, 4.0, legs=legs))
    assert History.read(tmp_path).meta.legs == legs


def test_the_clock_never_goes_back_and_reports_its_leaps(tmp_path: Path) -> None:
    clock = ClusterClock(BASE + 1e6)
    clock.keep_in(tmp_path)
    before = time.time()
    clock.leap_to(BASE + 2e6)
    there = clock.now()
    assert clock.at(before) < BASE + 1e6 + 60 < BASE + 2e6 <= clock.at(time.time())
    clock.leap_to(BASE)
    assert BASE + 2e6 <= there <= clock.now()
    assert [ahead for _, ahead in clock.legs] == sorted(ahead for _, ahead in clock.legs)
    assert float((tmp_path / "cluster.clock").read_text()) == pytest.approx(clock.legs[-1][1])


def owed(day: Day, jobs: Iterable[DatabaseProbe]) -> list[tuple[float, ...]]:
    return [tuple(instants([job], *day.bounds())) for job in jobs]


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_each_day_has_enough_due_times_and_is_after_the_previous_one(day: Day) -> None:
    assert sum(map(len, owed(day, JOBS))) >= ENOUGH_INSTANTS
    days = list(DAYS.values())
    earlier = days[: days.index(day)]
    assert all(before.bounds()[1] < day.bounds()[0] - 3_600 for before in earlier)


def test_berlins_days_have_23_and_25_hours() -> None:
    spans = [DAYS[name].bounds() for name in ("berlin-23-hours", "berlin-25-hours")]
    assert [(until - since) // 3_600 for since, until in spans] == [23, 25]


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_each_day_has_a_job_that_shows_its_clock_change_policy(day: Day) -> None:
    fixed = [job for job in JOBS if job.zone == day.zone and job.cron in FIXED]
    by_cron = {cron: set(owed(day, [job for job in fixed if job.cron == cron])) for cron in FIXED}
    assert max(map(len, by_cron.values())) in (2, 3)  # run or not; first, second or both


def test_each_clock_change_policy_is_used_by_a_job() -> None:
    assert {(job.gap, job.repeated) for job in JOBS} == set(POLICIES)
