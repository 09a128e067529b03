"""What `ok` of a change of a job asks for (PROTOCOL 3)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

from schedd.api.services import Caller, Services
from schedd.api.settling import settle
from schedd.core.ids import JobId
from schedd.core.model import LiveRun
from support.runs import NOW, SetClock, running, worker
from support.store import job_record

OUT = running(1, worker())


class Told:
    """The store, the nudges and the lines, as far as settling needs them."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.store = self.nudges = self.lines = self
        self.revoked: list[LiveRun] = []

    def jobs_changed(self, changed: Any) -> None: ...

    async def unstarted_attempts(self, job: JobId, now: datetime) -> list[LiveRun]:
        return [OUT] if OUT.start_by is not None and OUT.start_by > now else []

    async def revoke(self, runs: list[LiveRun]) -> None:
        self.revoked += runs


async def settled(past_start_by: float) -> list[LiveRun]:
    told = Told()
    assert OUT.start_by is not None
    told.clock.time = OUT.start_by + timedelta(seconds=past_start_by)
    await settle(
        cast("Services", told), Caller("tester", "test", deadline=1.0), job_record(due=NOW)
    )
    return told.revoked


async def test_an_attempt_that_expired_a_moment_ago_by_our_clock_is_still_asked_back() -> None:
    """P3.8: its worker judges by a clock of its own, which may be a little behind."""
    assert await settled(past_start_by=0.1) == [OUT]


async def test_an_attempt_that_expired_for_sure_is_not_waited_for() -> None:
    assert await settled(past_start_by=2.0) == []
