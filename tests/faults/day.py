"""A day of cron in minutes: the cluster's clock leaps from one due instant to just before the next.

    with Run(world, …, mix=JOBS, load=False, timings=TIMINGS) as run:
        live_through(run, world, *day.bounds())

    cluster    … 00:29:56 ─ 00:30:00 fired ┐ 00:59:56 ─ 01:00:00 fired ┐ 01:29:56 …
    host       ├────── some 4 s ───────────┼────── some 4 s ───────────┤

Between two leaps time runs at its true rate and long enough that all members have learned of the
new time before an instant comes: so each is met, and judged, on time and not by catching up. A leap
is made when all that was due has run and its result is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Final
from zoneinfo import ZoneInfo

from faults import oracle
from faults.checker.windows import ON_TIME
from faults.probes import DatabaseProbe
from faults.scenario import Run, Timings
from faults.world.clock import ClusterClock
from faults.world.service import Service
from faults.world.world import World
from support.wait import wait_until

LEAD: Final = 3.8
"""Seconds of true time before an instant: a member asks for the time each second, its owner loads
timers each 2.5 s, and a busy machine is slower."""
HOUR: Final = 3_600.0
SUBMITTED_BEFORE: Final = 1.0
"""Seconds before an instant at which a user submits one-time work: by then all know the time."""
FIRST_LEAD: Final = 60.0
"""Before the first instant of a day: jobs are made meanwhile."""
ALL_RUN: Final = 20.0

TIMINGS: Final = Timings(first_quiet=0.5, second_quiet=1.0, failover=5.0, grace=4.0, least=0.0)

ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/Havana",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Africa/Cairo",
)
CHANGING: Final = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
"""Zones whose changes the days are about: an hour, an hour at another time, half an hour."""
FIXED: Final = ("30 1 * * *", "30 2 * * *", "15,45 1,2 * * *", "0,30 1-3 * * *")
"""Fixed times in the gaps and repeated hours of those, and on both sides of them."""
POLICIES: Final = tuple(product(("run_after", "skip"), ("first", "second", "both")))
"""Each `dst` there is: gap, overlap."""


@dataclass(frozen=True, slots=True)
class Day:
    """A stretch of the calendar in which clocks change. In local time, `until` included."""

    zone: str
    since: str
    until: str

    def bounds(self) -> tuple[float, float]:
        """The same in seconds of the epoch, as the oracle takes it: (since, until]."""
        zone = ZoneInfo(self.zone)
        since, until = (
            datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()
            for text in (self.since, self.until)
        )
        return since - 1.0, until


DAYS: Final = {
    "new-york-forward": Day("America/New_York", "2027-03-14T00:00", "2027-03-14T04:30"),
    "berlin-23-hours": Day("Europe/Berlin", "2027-03-28T00:00", "2027-03-29T00:00"),
    "lord-howe-back": Day("Australia/Lord_Howe", "2027-04-04T00:30", "2027-04-04T04:00"),
    "lord-howe-forward": Day("Australia/Lord_Howe", "2027-10-03T00:30", "2027-10-03T04:00"),
    "berlin-25-hours": Day("Europe/Berlin", "2027-10-31T00:00", "2027-11-01T00:00"),
    "new-york-back": Day("America/New_York", "2027-11-07T00:00", "2027-11-07T04:00"),
}
"""In the order in which a clock that only goes forward meets them."""

MISSED: Final = {
    "forward": Day("America/New_York", "2028-03-12T00:00", "2028-03-12T05:00"),
    "back": Day("America/New_York", "2028-11-05T00:00", "2028-11-05T04:00"),
}
"""Of these the cluster sees the first half hour and the last hour."""


def _jobs() -> Iterator[DatabaseProbe]:
    for zone in ZONES:
        name = _word(zone)
        yield DatabaseProbe(f"{name}-halves", cron="*/30 * * * *", zone=zone)
        yield DatabaseProbe(f"{name}-hours", cron="0 * * * *", zone=zone)
        yield DatabaseProbe(
            f"{name}-listed", cron="0,30 0-23 * * *", zone=zone, catch_up="all", overlap="allow"
        )
    for zone, (number, cron), (gap, repeated) in product(CHANGING, enumerate(FIXED), POLICIES):
        name = f"{_word(zone)}-{number}-{gap.partition('_')[0]}-{repeated}"
        yield DatabaseProbe(name, cron=cron, zone=zone, gap=gap, repeated=repeated)
    yield DatabaseProbe("every-half", cron=None, every=1800)


def _word(zone: str) -> str:
    return zone.rpartition("/")[2].lower().replace("_", "-")


JOBS: Final[Sequence[DatabaseProbe]] = tuple(_jobs())


def instants(jobs: Sequence[DatabaseProbe], since: float, until: float) -> list[float]:
    """When at least one of these jobs is due in (since, until]; ascending."""
    owed = (oracle.due(job.definition(0.0, None, 1, 0).schedule, since, until) for job in jobs)
    return sorted({at for found in owed for at in found})


def clock_before(day: Day) -> ClusterClock:
    """A clock for a world that is to live through this day."""
    since, _ = day.bounds()
    return ClusterClock(since - FIRST_LEAD * 2)


def await_day(world: World, day: Day) -> None:
    """Leap to just before the day; returns when each member has followed: jobs made before would
    have the date of weeks ago.
    """
    clock = world.clock
    assert clock is not None, "this world's clock can't be moved"
    clock.leap_to(day.bounds()[0] - FIRST_LEAD)
    await_followed(world, clock)
    for member in world.members.values():
        wait_until(
            partial(_follows, member, clock),
            15.0,
            f"{member.name} to follow the clock",
        )


def live_through(run: Run, world: World, since: float, until: float) -> None:
    """All instants that are due in (since, until], one after another."""
    assert world.clock is not None, "this world's clock can't be moved"
    with run.quiet_throughout():
        for at in instants(run.mix, since, until):
            world.clock.leap_to(at - LEAD)
            await_followed(world, world.clock)
            run.wait(max(0.0, at - SUBMITTED_BEFORE - world.clock.now()))
            run.crew.submit()
            _await_all_run(world, world.clock, at)
        run.wait(ON_TIME + 0.2)


def leap_over(run: Run, world: World, until: float) -> None:
    """Be there at once: what was due meanwhile is late, and caught up with by its job's policy."""
    clock = world.clock
    assert clock is not None, "this world's clock can't be moved"
    with run.journal.fault("the cluster's clock leapt", "the cluster", until=until) as fault:
        clock.leap_to(until)
        await_followed(world, clock)
        fault.took_effect(now=clock.now())
    _await_all_run(world, clock, until)


def await_followed(world: World, clock: ClusterClock) -> None:
    """Return when the database's clock is where this one was moved to."""

    def together() -> bool:
        [(seconds,)] = world.postgres.sql("SELECT extract(epoch FROM clock_timestamp())")
        return abs(float(seconds) - clock.now()) < 0.5

    wait_until(together, 5.0, "PostgreSQL to have the time it was given")


def _follows(member: Service, clock: ClusterClock) -> bool:
    """Whether this member has learned of the time, give or take what asking takes."""
    answer = member.get("/api/v1/cluster/checks", timeout=5.0)
    if answer is None or answer.status != 200:
        return False
    reported = datetime.fromisoformat(json.loads(answer.body)["now"])
    return abs(reported.timestamp() - clock.now()) < 2.0


def _await_all_run(world: World, clock: ClusterClock, at: float) -> None:
    due = datetime.fromtimestamp(at, UTC)

    def done() -> bool:
        if clock.now() < at:
            return False
        [(waiting,)] = world.postgres.sql(
            "SELECT (SELECT count(*) FROM live) + (SELECT count(*) FROM timers WHERE due_at <= %s)",
            due,
        )
        return not waiting

    wait_until(done, LEAD + ALL_RUN, f"what is due at {due:%F %T}Z to have run", every=0.05)
