"""An outage of ten minutes by the cluster's clock, with many jobs of each policy of catching up.

    outage = Outage(world, 10_000)
    with outage_run(mix=ON_TIME, load=False, prepare=outage.make) as run:     made before the record
        outage.come(run)                               away, back, all caught up with

    cluster   03:00 ──── all members dead; 03:04 and 03:09 pass ──── 03:10 ─── caught up with ───
    host      ────────── a few seconds ───────────────────────────────────── at the release rate

Two instants of each job fall into it. What they become is judged by the record's checker, instant
by instant; here it is counted, and how fast the late ones were let go, how many slots they took at
once, and how late meanwhile was what fell due. Runs of `all` last so long that at the rate of
releases they would take all slots.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from math import ceil
from typing import Any, Final

from faults.copies import copies
from faults.day import await_followed
from faults.herd_handler import LASTS
from faults.history import Definition, Schedule
from faults.nemesis.processes import killed
from faults.probes import DatabaseProbe, lines_of
from faults.scenario import Run
from faults.world.clock import ClusterClock
from faults.world.world import World
from schedclient import SyncClient
from schedd.core.timers.catch_up_limits import BURST, DEFAULTS
from support.wait import wait_until

POLICIES: Final = ("latest", "all", "none")
BEGINS: Final = datetime(2027, 5, 5, 3, 0, tzinfo=UTC).timestamp()
LENGTH: Final = 600.0
HANDLERS_AT_ONCE: Final = 64
"""Slots of a worker."""
CRON: Final = "4,9 3 * * *"
DUE: Final = 2
"""Instants of each job that fall into it."""
ON_TIME: Final = tuple(DatabaseProbe(f"on-time-{number}") for number in range(1, 7))
"""Due each second, before, meanwhile and after."""
TAKEN_OVER: Final = 9.0
"""Seconds within which dead members' shards are owned again, and what fell due meanwhile ran."""
STRETCHES: Final = (1.0, 10.0)
"""Over so many seconds the releases are counted."""
REPORT_DELAY: Final = 0.5
"""Seconds from a release to the statement that dispatches, at most, on a busy machine."""

BECAME = """
SELECT substring(j.name FROM '-([a-z]+)-[0-9]+$'), r.state, count(*), count(DISTINCT job_id),
    sum(r.count), max(r.reason)
FROM runs r JOIN jobs j USING (job_id) WHERE j.name LIKE %s GROUP BY 1, 2
"""
UNCOVERED = """
SELECT count(*) FROM (
    SELECT 1 FROM jobs j LEFT JOIN runs r USING (job_id) WHERE j.name LIKE %s
    GROUP BY j.job_id HAVING coalesce(sum(r.count), 0) <> %s
) unlike
"""
RELEASED = """
SELECT extract(epoch FROM r.assigned_at) FROM runs r JOIN jobs j USING (job_id)
WHERE j.name LIKE %s AND r.assigned_at IS NOT NULL ORDER BY 1
"""
SHARDS_MOVED = "SELECT extract(epoch FROM max(at)) FROM shard_log"


def clock_before() -> ClusterClock:
    """A clock for a world that is to live through it."""
    return ClusterClock(BEGINS - 60.0)


class Outage:
    """So many jobs of each policy, and the ten minutes in which no member could fire them."""

    def __init__(self, world: World, count: int) -> None:
        assert world.clock is not None, "this world's clock can't be moved"
        self.world = world
        self.clock = world.clock
        self.count = count
        self.prefix = ""
        self.figures: dict[str, Any] = {"jobs": count}

    def make(self, run: Run) -> None:
        """Make them, and tell the recorder of each."""
        self.prefix = run.prefix
        with SyncClient(self.world.endpoints) as client:
            for policy in POLICIES:
                names = [self._name(policy, number) for number in range(self.count)]
                job = client.jobs.create(
                    names[0],
                    cron=CRON,
                    catch_up={"policy": policy},
                    overlap="allow",
                    python={"handler": "herd_lasting" if policy == "all" else "herd"},
                    payload=str(run.probes),
                    timeout="30s",
                )
                ids = [job.job_id, *copies(self.world.postgres, job.job_id, names[1:])]
                for name, job_id in zip(names, ids, strict=True):
                    run.recorder.job(_definition(name, job_id, policy))

    def come(self, run: Run) -> None:
        """Run the outage and wait until it is caught up with; `figures` has what was measured."""
        assert self.clock.now() < BEGINS + 180, "they took too long to make: an instant has passed"
        members = list(self.world.members.values())
        with run.journal.fault("outage", "all members", seconds=LENGTH) as fault:
            with ExitStack() as dead:
                for member in members:
                    dead.enter_context(killed(run.journal, member))
                self.clock.leap_to(self.clock.now() + LENGTH)
                await_followed(self.world, self.clock)
                fault.took_effect(now=self.clock.now())
            back = time.time()
            wait_until(
                partial(self._caught_up, back + TAKEN_OVER),
                self._time_limit(),
                "all of the outage to be caught up with",
                every=1.0,
            )
            drained = time.time()
        released, lines = self._released(), self._lines(run)
        self.figures |= {
            "drained_s": round(drained - back, 1),
            "released": len(released),
            "most_released": {f"{t:g}": most_within(released, t) for t in STRETCHES},
            "most_at_once": most_at_once(lines),
            "most_at_once_later": most_at_once(lines, since=self._stable_since()),
            "slots": HANDLERS_AT_ONCE * len(self.world.workers),
            "on_time": self._lateness(run, back + TAKEN_OVER, drained),
        }

    def became(self) -> dict[tuple[str, str], tuple[int, int, int, str | None]]:
        """Of each policy and state: rows, jobs, instants and the reason."""
        found = self.world.postgres.sql(BECAME, self._names())
        return {
            (str(policy), str(state)): (int(rows), int(jobs), int(instants), reason)
            for policy, state, rows, jobs, instants, reason in found
        }

    def uncovered(self) -> int:
        """Jobs whose rows stand for more or fewer instants than there were."""
        [(count,)] = self.world.postgres.sql(UNCOVERED, self._names(), DUE)
        return int(count)

    @staticmethod
    def most_that_may(seconds: float, members: int) -> float:
        """Releases within so many seconds, by all owners, each of which may begin with one."""
        return DEFAULTS.release_rate * (seconds + BURST + REPORT_DELAY) + members

    def _time_limit(self) -> float:
        share = HANDLERS_AT_ONCE * len(self.world.workers) * (1 - DEFAULTS.reserved)
        return 60.0 + 2 * self.count * DUE / min(DEFAULTS.release_rate, share / LASTS)

    def _caught_up(self, since: float) -> bool:
        """Nothing of it waits, from a while after the members are back on."""
        if time.time() < since or self.uncovered():
            return False
        return not any(state in ("PENDING", "RUNNING", "RETRYING") for _, state in self.became())

    def _released(self) -> list[float]:
        """When each late run of `all` was dispatched, by the cluster's clock."""
        names = self._name("all", 0)[:-1] + "%"
        return [float(at) for (at,) in self.world.postgres.sql(RELEASED, names)]

    def _stable_since(self) -> float:
        """When all that was under way as shards moved had ended, by the host's clock."""
        [(moved,)] = self.world.postgres.sql(SHARDS_MOVED)
        return float(moved) - (self.clock.now() - time.time()) + LASTS + REPORT_DELAY

    def _lateness(self, run: Run, since: float, until: float) -> dict[str, float]:
        """Of what fell due each second between these instants of the host's clock."""
        wanted = {f"{self.prefix}-{probe.name}" for probe in ON_TIME}
        first, last = self.clock.at(since), self.clock.at(until)
        begun = {
            (line["job"], due): self.clock.at(line["at"]) - due
            for line in reversed(run.starts())
            if line["job"] in wanted and first <= (due := _instant(line["nominal"])) < last - 1
        }
        late = sorted(begun.values())
        return {
            "due": len(wanted) * (ceil(last - 1) - ceil(first)),
            "started": len(late),
            "p50_s": round(late[len(late) // 2], 3) if late else LENGTH,
            "max_s": round(late[-1], 3) if late else LENGTH,
        }

    def _lines(self, run: Run) -> list[dict[str, Any]]:
        """Return the lines that the runs of `all` have written."""
        head = self._name("all", 0)[:-1]
        lines = (line for file in run.probes.glob("*.jsonl") for line in lines_of(file))
        return [line for line in lines if line["job"].startswith(head)]

    def _name(self, policy: str, number: int) -> str:
        return f"late-{self.prefix}-{policy}-{number}"

    def _names(self) -> str:
        return f"late-{self.prefix}-%"


def most_within(instants: Sequence[float], seconds: float) -> int:
    """The most of these (ascending) that lie within so many seconds."""
    most = first = 0
    for last, at in enumerate(instants):
        while at - instants[first] > seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def most_at_once(lines: Sequence[Mapping[str, Any]], since: float = 0.0) -> int:
    """The most runs that had begun and not ended, by their own lines, at any time from then on."""
    steps = sorted((line["at"], 1 if line["event"] == "start" else -1) for line in lines)
    at_once = accumulate(step for _, step in steps)
    return max((n for n, (at, _) in zip(at_once, steps, strict=True) if at >= since), default=0)


def _instant(nominal: str) -> float:
    return datetime.fromisoformat(nominal).timestamp()


def _definition(name: str, job_id: str, policy: str) -> Definition:
    return Definition(
        at=time.time(),
        job_id=job_id,
        namespace="default",
        name=name,
        generation=1,
        schedule=Schedule(cron=CRON),
        catch_up=policy,
        overlap="allow",
        timeout=30.0,
    )
