"""Check PostgreSQL and etcd by writes: probes, and rejected calls of this member.

A probe is sent each 3 s, or each 0.5 s while the dependency rejects writes, so that the end is
detected at once. An unanswered probe blocks a thread of the database, so probes don't become more
frequent then.

    probe ──written──→ healthy, unless a call was rejected in the last 5 s, or, as read-only, since
        │                the probe was sent
        └──failed ───→ a failure: at once if rejected, after 5 s if there was no answer
    any call ──rejected──→ a failure at once
    calls ──waited for locks until lock_timeout, for 5 s──→ a lock wait, which is no failure: other
                                                          calls may succeed

Invariants
- A failure keeps its first time until the dependency is healthy again, whatever its cause becomes.
- While calls are rejected for one reason, each with its own text, the failure keeps the first text.
- Calls may report from any thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from schedd.core.checkup.facts import FailedRead
from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedkit.clock import boottime, utcnow
from schedkit.errors import Rejected, Unavailable
from schedkit.records import dataclass
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

PROBE_EVERY: Final = 3.0
PROBE_REJECTED_EVERY: Final = 0.5
PROBE_WITHIN: Final = 4.0
UNANSWERED_FOR: Final = 5.0
"""Seconds without an answer that aren't reported yet: a failover or restart."""
REJECTED_FOR: Final = 5.0
"""Seconds for which a rejected call counts, although a probe succeeds."""
EVERY_WRITE: Final = "read_only"
"""The reason that applies to every write: a probe that succeeds proves its end."""

SAME_FOR: Final = 10.0
"""Seconds for which a rejection keeps its text while other calls are rejected for its reason."""

LOCK_WAIT_FOR: Final = 15.0
"""Seconds for which a lock timeout counts: loops retry earlier."""

NAMES: Final = {Dependency.POSTGRESQL: "PostgreSQL", Dependency.ETCD: "etcd"}


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A dependency's failure. `began`, `rejected_at`: seconds of CLOCK_BOOTTIME; `rejected_at` is
    of the last rejected call, 0 for none. `seen`: when this text was reported last.
    """

    failure: DependencyFailure
    rejected: bool
    began: float
    rejected_at: float = 0.0
    seen: float = 0.0


@dataclass(frozen=True, slots=True)
class _LockWait:
    """Lock timeouts in a row. `began`, `last`: of the first and last, by CLOCK_BOOTTIME."""

    error: Unavailable
    since: datetime
    began: float
    last: float


class DependencyHealth:
    def __init__(
        self, clock: Callable[[], float] = boottime, wall: Callable[[], datetime] = utcnow
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._troubles: dict[Dependency, _Trouble] = {}
        self._lock_wait: _LockWait | None = None

    def failures(self) -> list[DependencyFailure]:
        now = self._clock()
        return [
            trouble.failure
            for trouble in list(self._troubles.values())
            if trouble.rejected or now - trouble.began > UNANSWERED_FOR
        ]

    def lock_waits(self) -> list[DependencyFailure]:
        """Return the lock timeouts of PostgreSQL that last, unless PostgreSQL counts as failed."""
        wait = self._lock_wait
        if (
            wait is None
            or self._clock() - wait.last > LOCK_WAIT_FOR
            or wait.last - wait.began < UNANSWERED_FOR
            or any(one.dependency is Dependency.POSTGRESQL for one in self.failures())
        ):
            return []
        return [_failure(Dependency.POSTGRESQL, wait.error, wait.since)]

    def troubles(self) -> list[DependencyFailure]:
        return [*self.failures(), *self.lock_waits()]

    def lock_timed_out(self, error: Unavailable) -> None:
        """Note a call that waited for a lock of PostgreSQL until its timeout."""
        now, before = self._clock(), self._lock_wait
        if before is None or now - before.last > LOCK_WAIT_FOR:
            self._lock_wait = _LockWait(error, self._wall(), now, now)
        else:
            self._lock_wait = _LockWait(error, before.since, before.began, now)

    def rejected(self, dependency: Dependency, error: Rejected) -> None:
        self._failed(dependency, error, self._clock(), rejected_at=self._clock())

    def probe(
        self,
        dependency: Dependency,
        write: Callable[[], Awaitable[object]],
        silence_remedy: Callable[[float], Awaitable[str]] | None = None,
    ) -> Loop:
        """Return the loop that probes this dependency by writes. `silence_remedy` returns what to
        check if a write gets no answer since the given time; empty for the usual remedy.
        """

        async def step() -> float | None:
            began = self._clock()
            try:
                async with asyncio.timeout(PROBE_WITHIN):
                    await write()
            except Unavailable as error:
                self._failed(dependency, error, began)
            except TimeoutError:
                remedy = await silence_remedy(began) if silence_remedy else ""
                self._failed(dependency, self._silence(dependency, began, remedy), began)
            else:
                self._succeeded(dependency, began)
            trouble = self._troubles.get(dependency)
            return PROBE_REJECTED_EVERY if trouble is not None and trouble.rejected else None

        return Loop(f"{dependency.value} write probe", step, interval=PROBE_EVERY)

    def _silence(self, dependency: Dependency, began: float, remedy: str) -> Unavailable:
        """Return the error for a write without an answer: a lock timeout meanwhile is its cause."""
        wait = self._lock_wait
        if dependency is Dependency.POSTGRESQL and wait is not None and wait.last > began:
            return wait.error
        name = NAMES[dependency]
        return Unavailable(f"{name} didn't answer a write within {PROBE_WITHIN:g} s", remedy=remedy)

    def _failed(
        self, dependency: Dependency, error: Unavailable, began: float, *, rejected_at: float = 0.0
    ) -> None:
        before = self._troubles.get(dependency)
        if before is not None and before.rejected and not isinstance(error, Rejected):
            rejected_at = before.rejected_at
        failure = _failure(dependency, error, before.failure.since if before else self._wall())
        seen = self._clock()
        if (
            before is not None
            and isinstance(error, Rejected)
            and before.failure.reason == failure.reason
            and before.failure.cause != failure.cause
            and seen - before.seen < SAME_FOR
        ):
            failure, seen = before.failure, before.seen
        self._troubles[dependency] = _Trouble(
            failure,
            isinstance(error, Rejected),
            before.began if before else began,
            rejected_at or (before.rejected_at if before else 0.0),
            seen,
        )
        if before is None or before.failure.reason != failure.reason:
            log.warning(
                "%s failed: reason=%s cause=%r remedy=%r",
                NAMES[dependency],
                failure.reason,
                failure.cause,
                failure.remedy,
            )

    def _succeeded(self, dependency: Dependency, began: float) -> None:
        trouble = self._troubles.get(dependency)
        if trouble is None:
            return
        proved = trouble.failure.reason == EVERY_WRITE
        if trouble.rejected_at > (began if proved else self._clock() - REJECTED_FOR):
            return
        del self._troubles[dependency]
        lasted = self._clock() - trouble.began
        log.info("%s recovered: after=%.1fs", NAMES[dependency], lasted)


def failed_read(error: Unavailable) -> FailedRead:
    return FailedRead(_cause(error), error.reason, error.remedy)


def _cause(error: Unavailable) -> str:
    return error.cause if isinstance(error, Rejected) else str(error)


def _failure(dependency: Dependency, error: Unavailable, since: datetime) -> DependencyFailure:
    cause = _cause(error)
    usual = f"Start {NAMES[dependency]}, or repair the network between it and this member"
    return DependencyFailure(dependency, error.reason, cause, error.remedy or usual, since)
