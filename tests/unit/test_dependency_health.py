"""A dependency counts as failed by its rejections, with the time of the first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.cluster.dependency import Dependency
from schedd.runtime import dependency_health
from schedd.runtime.dependency_health import (
    LOCK_WAIT_FOR,
    PROBE_REJECTED_EVERY,
    SAME_FOR,
    DependencyHealth,
)
from schedkit.errors import Rejected, Unavailable

START = datetime(2026, 1, 1, tzinfo=UTC)
LOGIN = Rejected("login_rejected", "PostgreSQL rejects the login of role schedd", "Set it")
LOCK = Unavailable("a statement waited for a lock", reason="lock_timeout", remedy="End it")


class Clock:
    """A clock that a test moves, and a dependency that answers as the test says."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.error: Exception | None = None
        self.on_write: Callable[[], None] = lambda: None
        self.health = DependencyHealth(lambda: self.seconds, self.wall)
        self.loop = self.health.probe(Dependency.POSTGRESQL, self.write)

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.seconds - 1000)

    async def write(self) -> None:
        self.on_write()
        if self.error is not None:
            raise self.error

    async def probe(self, *, after: float = 0.0, error: Exception | None = None) -> list[str]:
        self.seconds += after
        self.error = error
        await self.loop.step()
        return [str(failure) for failure in self.health.failures()]


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_rejection_is_shown_at_once_with_its_remedy_and_keeps_its_first_time(
    clock: Clock,
) -> None:
    first = await clock.probe(error=LOGIN)
    assert first == [
        "PostgreSQL rejects the login of role schedd, since 2026-01-01T00:00:00Z: Set it"
    ]
    assert await clock.probe(after=60, error=LOGIN) == first
    assert await clock.probe(after=1) == []


async def test_a_lasting_cause_keeps_its_text_while_its_statements_alternate(clock: Clock) -> None:
    def read_only(statement: str) -> Rejected:
        return Rejected("read_only", f"PostgreSQL is read-only: cannot execute {statement}", "Set")

    [first] = await clock.probe(error=read_only("INSERT"))
    for statement in ("SELECT FOR SHARE", "INSERT") * 20:
        assert await clock.probe(after=1, error=read_only(statement)) == [first]
    [shown] = await clock.probe(after=SAME_FOR, error=read_only("UPDATE"))
    assert "UPDATE" in shown, "the first one hasn't failed since"


async def test_a_short_silence_isnt_shown(clock: Clock) -> None:
    assert await clock.probe(error=Unavailable("no answer")) == []
    assert await clock.probe(after=3, error=Unavailable("no answer")) == []
    [shown] = await clock.probe(after=3, error=Unavailable("no answer"))
    assert shown.startswith("no answer, since 2026-01-01T00:00:00Z: Start PostgreSQL")
    assert await clock.probe(after=1) == []


async def test_a_call_that_is_rejected_counts_though_the_probe_succeeds(clock: Clock) -> None:
    clock.health.rejected(Dependency.POSTGRESQL, LOGIN)
    assert len(await clock.probe(after=1)) == 1
    assert len(await clock.probe(after=3)) == 1
    assert await clock.probe(after=3) == []


async def test_a_probe_that_was_sent_after_the_last_rejection_proves_that_writes_are_allowed(
    clock: Clock,
) -> None:
    read_only = Rejected("read_only", "PostgreSQL is read-only", "Set it")

    def reject() -> None:
        clock.seconds += 0.1
        clock.health.rejected(Dependency.POSTGRESQL, read_only)

    clock.on_write = reject
    assert len(await clock.probe(after=1)) == 1, "a call was rejected while the probe was answered"
    clock.on_write = lambda: None
    assert await clock.probe(after=1) == []


async def test_while_it_is_rejected_the_probe_is_sent_more_often(clock: Clock) -> None:
    assert await clock.loop.step() is None
    clock.error = LOGIN
    assert await clock.loop.step() == PROBE_REJECTED_EVERY
    clock.error = Unavailable("no answer")
    assert await clock.loop.step() is None


async def test_the_log_has_each_cause_once_with_its_remedy_and_the_recovery(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    full = Rejected("disk_full", "PostgreSQL's disk is full", "Make room on PostgreSQL's disk")
    with caplog.at_level(logging.INFO):
        for error in (LOGIN, LOGIN, full, full, None):
            await clock.probe(after=1, error=error)
    login, disk, recovered = [record.getMessage() for record in caplog.records]
    assert login == (
        "PostgreSQL failed: reason=login_rejected"
        " cause='PostgreSQL rejects the login of role schedd' remedy='Set it'"
    )
    assert disk.startswith("PostgreSQL failed: reason=disk_full cause=")
    assert disk.endswith('remedy="Make room on PostgreSQL\'s disk"')
    assert recovered == "PostgreSQL recovered: after=4.0s"


async def test_lock_timeouts_that_last_are_shown_although_the_probe_succeeds(clock: Clock) -> None:
    clock.health.lock_timed_out(LOCK)
    assert not clock.health.lock_waits(), "a single one is usual"
    clock.seconds += 6
    clock.health.lock_timed_out(LOCK)
    assert await clock.probe() == [], "other calls succeed: the member stays ready"
    shown = "a statement waited for a lock, since 2026-01-01T00:00:00Z: End it"
    assert list(map(str, clock.health.lock_waits())) == [shown]
    assert list(map(str, clock.health.troubles())) == [shown]
    assert await clock.probe(after=LOCK_WAIT_FOR - 1) == []
    assert clock.health.lock_waits()
    await clock.probe(after=2)
    assert not clock.health.lock_waits()


async def test_a_failed_probe_is_shown_instead_of_lock_timeouts(clock: Clock) -> None:
    for _ in range(2):
        clock.health.lock_timed_out(LOCK)
        clock.seconds += 6
    await clock.probe(error=LOGIN)
    assert not clock.health.lock_waits()
    assert len(clock.health.troubles()) == 1


async def silent() -> None:
    await asyncio.Event().wait()


async def test_a_lock_timeout_is_the_cause_of_a_write_without_an_answer(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_health, "PROBE_WITHIN", 0.01)

    async def waits() -> None:
        clock.seconds += 6
        clock.health.lock_timed_out(LOCK)
        await silent()

    await clock.health.probe(Dependency.POSTGRESQL, waits).step()
    [failure] = clock.health.failures()
    assert (failure.reason, failure.cause, failure.remedy) == (LOCK.reason, str(LOCK), "End it")


@pytest.mark.parametrize(
    ("remedy", "shown"), [("See its log", "See its log"), ("", "Start PostgreSQL, or repair")]
)
async def test_a_write_without_an_answer_has_the_remedy_that_the_store_gives(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, remedy: str, shown: str
) -> None:
    monkeypatch.setattr(dependency_health, "PROBE_WITHIN", 0.01)

    async def silence_remedy(since: float) -> str:
        assert since == 1000
        clock.seconds += 6
        return remedy

    await clock.health.probe(Dependency.POSTGRESQL, silent, silence_remedy).step()
    [failure] = clock.health.failures()
    assert failure.remedy.startswith(shown)
    assert "didn't answer a write" in failure.cause


async def test_a_bug_is_raised_by_the_probe(clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        await clock.probe(error=ZeroDivisionError())
