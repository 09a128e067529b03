"""What `ok` of a change of a job asks for (P3.8)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from schedd.api.errors import OutcomeUnknownError
from schedd.api.jobs.quiesce import failover_check, settle
from schedd.api.services import Caller, Services
from schedd.core.ids import JobId, Timeline
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import DatabaseProbe
from schedkit.errors import Unavailable
from support.callers import TESTER
from support.runs import NOW, SetClock, running, worker
from support.store import job_record

OUT = running(1, worker())


class Told:
    """The store, the nudges and the lines, as far as settling needs them."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.store = self.nudges = self.lines = self.membership = self
        self.revoked: list[LiveRun] = []
        self.away = False

    def jobs_changed(self, changed: Any) -> None: ...

    async def probe(self) -> DatabaseProbe:
        if self.away:
            raise Unavailable("PostgreSQL: no answer")
        return DatabaseProbe(NOW, Timeline(1), in_recovery=False)

    async def unstarted_attempts(
        self, job: JobId, now: datetime, pool: tuple[str, str] | None = None
    ) -> list[LiveRun]:
        del pool
        if self.away:
            raise Unavailable("PostgreSQL: no answer")
        return [OUT] if OUT.start_by is not None and OUT.start_by > now else []

    async def revoke(self, runs: list[LiveRun]) -> None:
        self.revoked += runs


async def settled(past_start_by: float) -> list[LiveRun]:
    told = Told()
    assert OUT.start_by is not None
    told.clock.time = OUT.start_by + timedelta(seconds=past_start_by)
    await settle(cast("Services", told), Caller(TESTER, "test", deadline=1.0), job_record(due=NOW))
    return told.revoked


async def test_an_attempt_that_expired_a_moment_ago_by_our_clock_is_still_asked_back() -> None:
    """P3.8: its worker judges by a clock of its own, which may be a little behind."""
    assert await settled(past_start_by=0.1) == [OUT]


async def test_an_attempt_that_expired_for_sure_is_not_waited_for() -> None:
    assert await settled(past_start_by=2.0) == []


async def test_a_change_is_never_told_as_not_made_because_the_database_went_away_after_it() -> None:
    told = Told()
    told.away = True
    with pytest.raises(OutcomeUnknownError) as unknown:
        await settle(cast("Services", told), Caller(TESTER, "test"), job_record(due=NOW))
    assert unknown.value.reason == "ATTEMPTS_OUT"
    assert unknown.value.remedy.startswith("no run can start later than 36 s from now"), "at most"


async def test_who_cant_wait_so_long_is_told_when_the_last_of_them_has_expired() -> None:
    """One that was armed half a minute ahead may start as much later."""

    async def for_ever(_runs: list[LiveRun]) -> None:
        await asyncio.sleep(3600)

    told = Told()
    assert OUT.start_by is not None
    told.clock.time = OUT.start_by - timedelta(seconds=29.2)
    told.revoke = for_ever  # type: ignore[method-assign]
    caller = Caller(TESTER, "test", deadline=0.01)
    with pytest.raises(OutcomeUnknownError) as unknown:
        await settle(cast("Services", told), caller, job_record(due=NOW))
    assert unknown.value.remedy.startswith("no run can start later than 30 s from now")


async def test_nobody_says_ok_who_cant_tell_whether_the_database_failed_over() -> None:
    told = Told()
    with pytest.raises(OutcomeUnknownError) as unknown:
        async with failover_check(cast("Services", told), "it"):
            told.away = True
    assert unknown.value.reason == "FAILED_OVER"


async def test_a_change_that_never_was_is_told_so() -> None:
    told = Told()
    told.away = True
    with pytest.raises(Unavailable):
        async with failover_check(cast("Services", told), "it"):
            raise AssertionError("nothing is changed")
