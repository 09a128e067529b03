"""Correct histories pass, whole; the command says so by its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from faults.checker import INVARIANTS, Status, check, table
from faults.checker.__main__ import main
from faults.checker.verdict import Figures, Verdict, Violation
from faults.history import History, Recorder
from support.repository import ROOT
from support.story import Story, leader_killed, no_faults


def record(history: History, directory: Path) -> Path:
    """Write a history down as the harness would."""
    recorder = Recorder(directory)
    recorder.meta(history.meta)
    for definition in history.jobs:
        recorder.job(definition)
    for call in history.clients:
        recorder.client(call)
    for fault in history.nemesis:
        recorder.nemesis(fault)
    for probe in history.probes:
        with recorder.probe_file(probe.worker).open("a") as file:
            file.write(json.dumps(asdict(probe)) + "\n")
    recorder.commits(history.commits)
    for name, rows in history.database.items():
        recorder.final(name, rows)
    for resource in history.resources:
        recorder.resource(resource)
    if history.leftovers is not None:
        recorder.leftovers(history.leftovers)
    return directory


@pytest.mark.parametrize("make", [no_faults, leader_killed])
def test_a_correct_history_breaks_nothing(make: Callable[[], Story]) -> None:
    verdict = check(make().history())
    assert verdict.status is Status.OK, table(verdict)
    assert not verdict.broken


def test_the_figures_of_a_killed_leader_count_its_two_misses() -> None:
    figures = check(leader_killed().history()).figures
    assert figures.judged == figures.on_time + figures.missed == 247
    assert (figures.late, figures.missed, figures.lost, figures.doubled) == (0, 2, 0, 0)
    assert figures.longest_gap == pytest.approx(2.82, abs=0.001)
    assert figures.max_lateness == pytest.approx(0.82, abs=0.001)


def test_a_recorded_history_gets_the_same_verdict(tmp_path: Path) -> None:
    history = leader_killed().history()
    assert History.read(record(history, tmp_path)) == history


def test_the_command_judges_a_kept_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = record(leader_killed().history(), tmp_path)
    assert main([str(directory), "--write"]) == 0
    printed = capsys.readouterr().out
    assert "leader-kill (seed 1): OK" in printed
    assert all(each.sentence in printed for each in INVARIANTS)
    assert json.loads((directory / "verdict.json").read_text())["status"] == "ok"


def test_the_command_runs_from_the_folder_of_the_tests(tmp_path: Path) -> None:
    directory = record(no_faults().history(), tmp_path)
    (directory / "database" / "runs.jsonl").unlink()
    command = [sys.executable, "-m", "faults.checker", str(directory), "--json"]
    ended = subprocess.run(
        command, cwd=ROOT / "tests", capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2, ended.stderr
    verdict = json.loads(ended.stdout)
    assert verdict["status"] == "inconclusive"
    assert [each["invariant"] for each in verdict["violations"]] == ["N1"]


def test_a_violation_counts_more_than_a_doubt() -> None:
    story = no_faults(without={150})
    story.leftovers = None
    verdict = check(story.history())
    assert verdict.broken == {"L1", "N1"}
    assert verdict.status is Status.VIOLATED
    assert verdict.status.exit_code == 1


def test_violations_are_listed_with_the_number_of_those_left_out() -> None:
    found = tuple(Violation("L1", f"{n}") for n in range(3))
    doubts = (Violation("N1", "few"),)
    verdict = Verdict("no faults", 0, Figures(), found, doubts)
    assert verdict.lines(most=4) == ["L1: 0", "L1: 1", "L1: 2", "N1: few"]
    assert verdict.lines(most=2) == ["L1: 0", "L1: 1", "and 2 more"]


def test_the_command_reports_a_missing_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 64
    assert "no meta.json" in capsys.readouterr().err


def test_the_invariants_are_those_of_the_reliability_page() -> None:
    names = [f"S{n}" for n in range(1, 14)] + [f"L{n}" for n in range(1, 7)] + ["N1"]
    assert [each.name for each in INVARIANTS] == names
