"""The two clocks."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest

from schedkit.clock import boottime, utcnow
from support.repository import ROOT


def test_boot_time_never_goes_back() -> None:
    readings = [boottime() for _ in range(1000)]
    assert readings == sorted(readings)


def test_boot_time_runs_through_a_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    """P6.7: CLOCK_MONOTONIC stops in one, and a lease judged by it would be trusted after it."""
    asked: list[int] = []
    monkeypatch.setattr(time, "clock_gettime", lambda clock: asked.append(clock) or 1.0)
    boottime()
    assert asked == [time.CLOCK_BOOTTIME]


def test_no_daemon_measures_time_by_another_clock() -> None:
    """P6.7. A worker's keeper sweeps for a second and a half, and stands on nothing of ours."""
    keepers = {"workerd/process/proc_files.py", "workerd/process/cgroups.py"}
    elsewhere = {
        str(file.relative_to(ROOT))
        for folder in ("schedd", "workerd", "client/schedkit")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"time\.(monotonic|time|perf_counter)\(", file.read_text("utf-8"))
    }
    assert elsewhere == keepers


def test_the_instant_shown_to_people_is_in_utc() -> None:
    assert utcnow().utcoffset() == timedelta(0)
