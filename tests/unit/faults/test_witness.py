"""The figures of a row are measured from the lines of its own probes only."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from faults.probes import DatabaseProbe
from faults.witness import behind, latest

if TYPE_CHECKING:
    from faults.scenario import Run

DUE = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


def start(late: float, *, due: float = DUE, job: str = "r1-tick", attempt: int = 1) -> Any:
    nominal = datetime.fromtimestamp(due, UTC).isoformat().replace("+00:00", "Z")
    return {"job": job, "nominal": nominal, "at": due + late, "attempt": attempt}


def run(*starts: Any) -> Run:
    mix = [
        DatabaseProbe("r1-tick"),
        DatabaseProbe("r1-tock"),
        DatabaseProbe("r1-slow", cron="*/2 * * * * *"),
    ]
    return cast("Run", SimpleNamespace(mix=mix, starts=lambda: [*starts]))


def test_the_latest_start_is_of_runs_due_in_the_given_period() -> None:
    lines = run(start(0.25), start(0.75, due=DUE + 1), start(9, due=DUE + 2), start(9, due=DUE - 1))
    assert latest(lines, DUE, DUE + 2) == pytest.approx(0.75)


def test_a_second_try_and_a_users_job_are_no_lateness() -> None:
    lines = run(start(0.25), start(5, attempt=2), start(5, job="r1-victim-1"))
    assert latest(lines, DUE, DUE + 2) == pytest.approx(0.25)


def test_a_latest_start_without_any_probe_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no probe started"):
        latest(run(start(0.1)), DUE + 1, DUE + 2)


def test_a_start_after_others_due_at_the_same_time_is_behind() -> None:
    all_late = (start(1.5), start(1.75, job="r1-tock"), start(9, job="r1-slow"))
    one_late = (start(0.25, due=DUE + 1), start(1.5, due=DUE + 1, job="r1-tock"))
    assert behind(run(*all_late), DUE, DUE + 2) == pytest.approx(0.25)
    assert behind(run(*all_late, *one_late), DUE, DUE + 2) == pytest.approx(1.25)
    assert behind(run(*all_late, *one_late), DUE, DUE + 1) == pytest.approx(0.25)
