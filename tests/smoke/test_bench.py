"""Each shape of `tests/bench` at its smallest, for whether it works; how fast it is says nothing.

A shape is run as its user runs it, in a process of its own: it ends well, and its lines tell of as
many runs as it was asked for, none lost. (`bench.peers` has its own: smoke/test_bench_peers.)
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.pages import PAGES
from support.repository import ROOT

WITHIN = 150
"""Seconds for one shape on a machine as busy as can be."""

pytestmark = pytest.mark.timeout(WITHIN + 20)


def run_bench(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *map(str, words)],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )


def bench(name: str, *words: object) -> list[dict[str, Any]]:
    """The lines of `python -m bench.NAME WORDS…`, which must end well."""
    done = run_bench(name, *words)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_fault_leaves_gaps_that_close() -> None:
    lines = bench("failover", "--rounds", 1, "--jobs", 6, "--member-ttl", 3, "--worker-ttl", 3)
    assert [line["fault"] for line in lines] == ["kill", "handover", "worker"]
    assert all(line["lost"] == line["doubled"] == 0 for line in lines)


def test_a_cell_for_each_number_of_members_and_workers() -> None:
    lines = bench("scale", "--members", 1, 2, "--workers", 1, 2, "--runs", 60, "--slots", 40)
    cells = [(line["members"], line["workers"], line["succeeded"]) for line in lines]
    assert cells == [(1, 1, 60), (1, 2, 60), (2, 1, 60), (2, 2, 60)]
    assert all(line["cpu_us_together"]["all"] > 0 for line in lines)


def test_each_page_answers_over_stored_jobs_and_runs() -> None:
    small = ("--idle", 200, "--hot", 60, "--requests", 10, "--warm-up", 1, "--quiet", 2)
    *pages, stored = bench("pages", *small, "--within", 10_000)
    assert [line["page"] for line in pages] == list(PAGES)
    assert all(line["wrong"] == 0 and line["p95_ms"] > 0 for line in pages)
    assert stored["over"] == []
    assert stored["asked"]["runs"] > 0
    assert stored["jobs"] == 200 + 60 + 61
    assert stored["runs"] > 200


def test_a_herd_of_jobs_is_due_at_one_time() -> None:
    [line] = bench("herd", "--jobs", 100, "--ahead", 5)
    assert (line["succeeded"], line["doubled"], line["early"]) == (100, 0, 0)
    assert line["late_ms"]["p50"] > 0


def test_a_soak_reports_each_window_the_drift_and_the_total() -> None:
    lines = bench(
        "soak", "--hot", 120, "--idle", 100, "--seconds", 9, "--window", 3, "--warm-up", 5
    )
    *windows, drift, whole = lines
    assert [line["instants"] for line in windows] == [9, 9, 9], "two copies a second, and one that"
    assert {"rate", "late_ms", "wal_bytes", "memory_mib", "dead", "mib"} <= windows[0].keys()
    assert windows[0]["late_ms"].keys() == {"p50", "p99", "max"}
    assert drift["drift"]["memory_mib.m1"]["ratio"] > 0
    assert (whole["instants"], whole["expected"], whole["dispatched_again"]) == (27, 27, 0)
    assert (whole["lost"], whole["doubled"], whole["early"]) == (0, 0, 0)


def test_a_steady_rate_beside_idle_schedules_fires_each_time_once() -> None:
    small = ("--hot", 120, "--idle", 100, "--seconds", 5, "--warm-up", 5, "--jitter", 0.5)
    [line] = bench("spread", *small)
    assert line["instants"] == line["succeeded"] == line["expected"] == 15
    assert line["early"] == 0


def test_a_starting_member_catches_up_on_missed_runs() -> None:
    small = ("--jobs", 50, "--ticks", 6, "--away", 5, "--seconds", 3, "--rounds", "overdue")
    [line] = bench("start", *small)
    assert (line["made_up_before"], line["lost"], line["doubled"]) == (50, 0, 0)
    assert 0 < line["first_s"] <= line["on_time_again_s"]


def test_simulated_workers_are_streams_only() -> None:
    lines = bench("simulated", "--workers", 20, "--slots", 2, "--rate", 5, "--seconds", 3)
    assert [(line["workers"], line["attached"]) for line in lines] == [(10, [10]), (20, [20])]
    assert all(line["succeeded"] == line["expected"] == 15 for line in lines)


def test_submits_at_parts_of_a_rate_are_answered_and_stored() -> None:
    lines = bench("openloop", "--peak", 20, "--parts", 50, 100, "--seconds", 3, "--connections", 2)
    assert [line["part"] for line in lines] == [50, 100]
    for line in lines:
        assert line["answered"] == line["wanted"] == line["stored"] > 0
        assert (line["lost"], line["refused"]) == (0, {})


def test_a_backlog_drains_and_is_drawn(tmp_path: Path) -> None:
    [line] = bench("drain", "--runs", 60, "--set", "postgres.work_mem=8MB")
    assert (line["succeeded"], line["assigned_again"], line["settings"]) == (
        60,
        0,
        ["postgres.work_mem=8MB"],
    )
    kept, picture = tmp_path / "drain.jsonl", tmp_path / "drain.svg"
    kept.write_text(json.dumps(line), encoding="utf-8")
    bench("plot", kept, picture, "--value", "cpu_us_per_run", "--by", "runs")
    assert "60 runs" in picture.read_text(encoding="utf-8")


def test_a_thousand_submits_at_once_by_one_client_are_stored_and_counted() -> None:
    [line] = bench("submit", "--calls", 1_000, "--callers", 1_000, "--connections", 1)
    assert line["calls"] == line["stored"] == 1_000
    assert line["rate"] > 0


def test_jobs_that_are_created_are_stored_and_counted() -> None:
    [line] = bench("submit", "--create", "--calls", 60, "--callers", 8, "--connections", 2)
    assert (line["bench"], line["calls"], line["stored"]) == ("create", 60, 60)


def test_a_cluster_that_fails_to_start_prints_only_the_reason() -> None:
    done = run_bench("drain", "--runs", 9, "--set", "nonsense")
    assert done.returncode == 1
    assert "--set 'nonsense' isn't a valid TARGET.KEY=VALUE" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    [kept] = [line for line in done.stderr.splitlines() if "folder is kept" in line]
    shutil.rmtree(kept.rpartition(" ")[2])
