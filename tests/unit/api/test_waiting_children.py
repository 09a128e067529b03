"""Reasons why a child of a broadcast waits for its one worker."""

from __future__ import annotations

from dataclasses import replace

from schedd.api.runs.why import REFUSED, waits_for
from schedd.core.dispatch.placement import Need
from schedd.core.runs.records import WorkerView
from support.runs import worker


def test_a_child_reports_that_its_worker_rejected_it() -> None:
    one = worker()
    views = [WorkerView(one, draining=False, free=1, running=0, lease_age=0.0)]
    need = Need("shell", worker=one.worker)
    [check] = waits_for(need, views, {one.id: "no such limits"})
    assert (check.question, check.answer) == (
        REFUSED,
        f"worker {one.worker} has rejected it: no such limits",
    )
    [there] = waits_for(need, views, {worker(9).id: "no such limits"})
    assert (there.answer, there.remedy) == ("yes", "")


def test_a_child_reports_why_its_worker_takes_no_work_and_the_remedy() -> None:
    one, full = worker(), "spool rejects writes: No space left on device"
    views = [WorkerView(one, False, free=1, running=0, lease_age=0.0, refusal_reason=full)]
    [check] = waits_for(Need("shell", worker=one.worker), views, {})
    assert check.answer == (f"worker {one.worker} accepts no runs: {full}")
    assert check.remedy.startswith("free space on the spool's disk")
    blocked = "handlers block all 8 event loops of this worker: export"
    [check] = waits_for(
        Need("shell", worker=one.worker), [replace(views[0], refusal_reason=blocked)], {}
    )
    assert f"`schedctl worker undrain {one.worker}`" in check.remedy
