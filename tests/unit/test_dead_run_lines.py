"""Runs that failed for good are named in the log, a flood of them by its size."""

from __future__ import annotations

import json
import logging

import pytest

from schedd.core.events import DeadLettered, DeadRun
from schedd.core.ids import JobId, RunId, new_id
from schedd.core.runs.lifecycle import Reason
from schedd.telemetry.recorder import A_SECOND, DeadRunLines, Telemetry
from schedkit.daemon.logs import JsonLines

DEAD = DeadRun(RunId(new_id()), JobId(new_id()), Reason.EXIT_CODE, 3)


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "schedd.telemetry.recorder")


def test_a_run_that_fails_for_good_is_a_line_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    Telemetry().emit(DeadLettered((DEAD,)))
    [record] = caplog.records
    line = json.loads(JsonLines("schedd").format(record))
    assert (line["level"], line["message"]) == ("info", "run failed for good")
    assert (line["run_id"], line["job"]) == (str(DEAD.run), str(DEAD.job))
    assert (line["reason"], line["attempt"]) == ("EXIT_CODE", 3)


def test_a_flood_names_some_runs_and_counts_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    lines = DeadRunLines(lambda: now)
    lines.log_runs([DEAD] * 1_000)
    lines.flush()
    assert len(caplog.records) == A_SECOND
    now = 101.0
    lines.flush()
    lines.flush()
    assert len(caplog.records) == A_SECOND + 1
    assert caplog.messages[-1].startswith(f"{1_000 - A_SECOND} more runs failed for good")
    lines.log_runs([DEAD])
    assert caplog.messages[-1] == "run failed for good"


def test_the_next_event_reports_the_count(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry()
    telemetry._dead_runs = DeadRunLines(iter([0.0, 0.0, 0.5, 1.5, 1.5]).__next__)
    telemetry.emit(DeadLettered((DEAD,) * (A_SECOND + 2)))
    assert len(caplog.records) == A_SECOND
    telemetry.emit(DeadLettered(()))
    assert caplog.messages[-1].startswith("2 more")
