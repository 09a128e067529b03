"""What a row measures itself: of the probes' own lines, and of no other's."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from faults.probes import Probe
from faults.witness import latest

if TYPE_CHECKING:
    from faults.scenario import Run

DUE = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


def start(late: float, *, due: float = DUE, job: str = "r1-tick", attempt: int = 1) -> Any:
    nominal = datetime.fromtimestamp(due, UTC).isoformat().replace("+00:00", "Z")
    return {"job": job, "nominal": nominal, "at": due + late, "attempt": attempt}


def run(*starts: Any) -> Run:
    return cast("Run", SimpleNamespace(mix=[Probe("r1-tick")], starts=lambda: [*starts]))


def test_the_latest_is_of_those_that_were_due_in_the_time_asked_about() -> None:
    told = run(start(0.25), start(0.75, due=DUE + 1), start(9, due=DUE + 2), start(9, due=DUE - 1))
    assert latest(told, DUE, DUE + 2) == pytest.approx(0.75)


def test_a_second_try_and_a_users_job_are_no_lateness() -> None:
    told = run(start(0.25), start(5, attempt=2), start(5, job="r1-victim-1"))
    assert latest(told, DUE, DUE + 2) == pytest.approx(0.25)


def test_nothing_that_started_is_not_on_time() -> None:
    with pytest.raises(AssertionError, match="no probe started"):
        latest(run(start(0.1)), DUE + 1, DUE + 2)
