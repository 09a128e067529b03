"""The two clocks: boot time and UTC."""

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


def test_boot_time_includes_suspends(monkeypatch: pytest.MonkeyPatch) -> None:
    """P6.7: CLOCK_MONOTONIC stops during a suspend: a lease would be trusted after its end."""
    asked: list[int] = []
    monkeypatch.setattr(time, "clock_gettime", lambda clock: asked.append(clock) or 1.0)
    boottime()
    assert asked == [time.CLOCK_BOOTTIME]


def test_no_daemon_measures_time_by_another_clock() -> None:
    """P6.7. A worker's keeper polls for a second and a half, and imports no module of schedd."""
    keepers = {"workerd/process/proc_files.py", "workerd/process/cgroups.py"}
    elsewhere = {
        str(file.relative_to(ROOT))
        for folder in ("schedd", "workerd", "client/schedkit")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"time\.(monotonic|time|perf_counter)\(", file.read_text("utf-8"))
    }
    assert elsewhere == keepers


def test_times_for_people_are_in_utc() -> None:
    assert utcnow().utcoffset() == timedelta(0)
