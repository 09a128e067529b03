"""A change of a job is confirmed when no unstarted attempt can start under it (P3.8)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from schedd.api.errors import OutcomeUnknownError
from schedd.api.jobs.quiesce import failover_check, quiesce_job
from schedd.api.services import Caller, Services
from schedd.core.ids import JobId, Timeline
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import DatabaseProbe
from schedkit.errors import Unavailable
from support.callers import TESTER
from support.runs import NOW, SetClock, running, worker
from support.store import job_record

OUT = running(1, worker())


class Ports:
    """The store, the wake-ups and the lines, as far as quiescing needs them."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.store = self.wake_ups = self.lines = self.membership = self
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


async def revoked_attempts(past_start_by: float) -> list[LiveRun]:
    ports = Ports()
    assert OUT.start_by is not None
    ports.clock.time = OUT.start_by + timedelta(seconds=past_start_by)
    await quiesce_job(
        cast("Services", ports), Caller(TESTER, "test", deadline=1.0), job_record(due=NOW)
    )
    return ports.revoked


async def test_an_attempt_that_expired_a_moment_ago_by_our_clock_is_still_revoked() -> None:
    """P3.8: the worker compares with its own clock, which may be a little behind."""
    assert await revoked_attempts(past_start_by=0.1) == [OUT]


async def test_an_attempt_that_expired_for_sure_is_not_waited_for() -> None:
    assert await revoked_attempts(past_start_by=2.0) == []


async def test_a_change_has_an_unknown_outcome_if_the_database_fails_after_it() -> None:
    ports = Ports()
    ports.away = True
    with pytest.raises(OutcomeUnknownError) as unknown:
        await quiesce_job(cast("Services", ports), Caller(TESTER, "test"), job_record(due=NOW))
    assert unknown.value.reason == "ATTEMPTS_OUT"
    assert unknown.value.remedy.startswith("no run can start later than 36 s from now"), "at most"


async def test_a_caller_with_a_short_deadline_learns_when_the_last_attempt_expires() -> None:
    """An attempt dispatched half a minute early may start up to half a minute later."""

    async def for_ever(_runs: list[LiveRun]) -> None:
        await asyncio.sleep(3600)

    ports = Ports()
    assert OUT.start_by is not None
    ports.clock.time = OUT.start_by - timedelta(seconds=29.2)
    ports.revoke = for_ever  # type: ignore[method-assign]
    caller = Caller(TESTER, "test", deadline=0.01)
    with pytest.raises(OutcomeUnknownError) as unknown:
        await quiesce_job(cast("Services", ports), caller, job_record(due=NOW))
    assert unknown.value.remedy.startswith("no run can start later than 30 s from now")


async def test_a_change_is_not_confirmed_if_the_database_may_have_failed_over() -> None:
    ports = Ports()
    with pytest.raises(OutcomeUnknownError) as unknown:
        async with failover_check(cast("Services", ports), "it"):
            ports.away = True
    assert unknown.value.reason == "FAILED_OVER"


async def test_a_change_that_was_not_made_is_reported_as_such() -> None:
    ports = Ports()
    ports.away = True
    with pytest.raises(Unavailable):
        async with failover_check(cast("Services", ports), "it"):
            raise AssertionError("nothing is changed")
