"""Measure how soon a starting member fires timers, while the cluster has many jobs.

    jobs     equal jobs with one scheduled time each
    ticks    a few other jobs, which fire each second

    idle     the member is stopped and started while the jobs' scheduled time is far away: the
             member loads only timers that are due soon
    overdue  the member is stopped before that time, and started a minute after it: all jobs are
             late

The output counts seconds from the start of the member's process: until it was ready, until the
first run started, and until each tick was on time again. Then it reports how late ticks start
while late runs are caught up, and how many runs are caught up. There is one JSON line for each
situation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from bench import copies
from bench.copies import TEMPLATE
from bench.gaps import reckon
from bench.numbers import positive, seconds_from_zero
from bench.rig import NOOP, bench_cluster, memory, note, parser, run, sizes, tell
from bench.ticks import Ticks
from schedclient import Client
from support.cluster import DevCluster

WAIT_TIMEOUT: Final = 180.0
"""Timeout in seconds for short operations."""
BEFORE: Final = 15.0
"""Seconds before the jobs' scheduled time at which no run is created yet."""
ROUND: Final = 60.0
"""Seconds that a round takes in addition to the requested seconds."""
SLACK: Final = 30.0
"""Seconds for all other work before the jobs' scheduled time."""
ROUNDS: Final = ("idle", "overdue")

FIRST = """
SELECT extract(epoch FROM min(started_at)) FROM runs
WHERE started_at > to_timestamp(%s) AND scheduled_at > to_timestamp(%s) - interval '1 hour'
"""
MADE_UP = """
SELECT count(started_at) FROM runs WHERE scheduled_at = %s AND job_id <> ALL (%s::uuid[])
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a scheduled time of the ticks is lost or doubled."""
    asked = parser("bench.start", __doc__)
    asked.add_argument(
        "--jobs", type=positive, default=100_000, help="jobs that are due at one time"
    )
    asked.add_argument(
        "--copies",
        type=positive,
        default=2_000,
        help="jobs that this machine is expected to store per second",
    )
    asked.add_argument("--ticks", type=positive, default=60, help="jobs that fire each second")
    asked.add_argument(
        "--away", type=seconds_from_zero, default=60.0, help="time in seconds without any member"
    )
    asked.add_argument(
        "--seconds", type=positive, default=30, help="measured time after the start, in seconds"
    )
    asked.add_argument(
        "--rounds", nargs="+", choices=ROUNDS, default=ROUNDS, help="situations to measure"
    )
    asked.set_defaults(members=1)
    options = asked.parse_args(arguments)
    if options.members != 1:
        asked.error("--members must be 1: other members would take over the jobs")
    wrong = 0
    with bench_cluster(**sizes(options)) as cluster:
        first = options.away + options.seconds + ROUND if "idle" in options.rounds else 0.0
        wait = options.jobs / options.copies + first + SLACK
        due = (datetime.now(UTC) + timedelta(seconds=wait)).replace(microsecond=0)
        asyncio.run(_template(cluster, due))
        began = time.monotonic()
        copies.fill(cluster, options.jobs - 1, range(1))
        note(f"{options.jobs:,} jobs stored in {time.monotonic() - began:.0f} s")
        bench = Starts(cluster, Ticks(cluster, options.ticks), due, options.seconds)
        for name in options.rounds:
            until = time.time() + options.away
            if name == "overdue":
                _await(due.timestamp() - BEFORE)
                until = due.timestamp() + options.away
            figures = bench.round(until)
            wrong += figures["lost"] + figures["doubled"]
            settings = {"round": name, "jobs": options.jobs, "away_s": options.away}
            tell("start", **settings, **sizes(options), **figures)
    return 1 if wrong else 0


def _await(at: float) -> None:
    """Sleep until this time. Raises SystemExit if it has passed."""
    left = at - time.time()
    if left < 0:
        raise SystemExit(
            f"the jobs were stored {-left:.0f} s too late:"
            " lower --copies, to leave more time for storing"
        )
    time.sleep(left)


async def _template(cluster: DevCluster, due: datetime) -> None:
    async with Client(cluster.endpoints) as client:
        await client.jobs.create(f"{TEMPLATE}0", at=due, python=NOOP)


class Starts:
    """Starts of the only member of a cluster, each after a kill."""

    def __init__(self, cluster: DevCluster, ticks: Ticks, due: datetime, seconds: int) -> None:
        self._cluster, self._ticks, self._due, self._seconds = cluster, ticks, due, seconds

    def round(self, until: float) -> dict[str, Any]:
        """Kill the member, start it at `until` (seconds since 1970), and return the figures."""
        self._ticks.await_steady(time.time(), WAIT_TIMEOUT)
        [member] = [one["name"] for one in self._cluster.record["members"]]
        killed = time.time()
        self._cluster.kill(member)
        time.sleep(max(0.0, until - time.time()))
        self._cluster.up()
        ready = time.time()
        pid = self._cluster.entry(member)["pid"]
        born = Path(f"/proc/{pid}").stat().st_ctime
        steady = self._ticks.await_steady(born, WAIT_TIMEOUT)
        began = self._made_up()
        time.sleep(self._seconds)
        rate = (self._made_up() - began) / self._seconds
        last = steady + self._seconds - 2
        rows = self._ticks.await_ended(killed, last, WAIT_TIMEOUT)
        whole, since, beside = (
            reckon(rows, self._ticks.jobs, fault=born, first=first, last=last)
            for first in (killed, born, steady)
        )
        [(first,)] = self._cluster.sql(FIRST, born, born)
        return {
            "ready_s": round(ready - born, 2),
            "first_s": round(float(first) - born, 2),
            "on_time_again_s": round(max(since.backs), 2),
            "beside_latest_ms": round(beside.latest * 1e3, 1),
            "made_up_before": began,
            "made_up_a_second": round(rate),
            "memory_mib": memory(pid),
            "lost": whole.lost,
            "doubled": whole.doubled,
            "dispatched_again": whole.again,
        }

    def _made_up(self) -> int:
        [(count,)] = self._cluster.sql(MADE_UP, self._due, self._ticks.jobs)
        return int(count)


if __name__ == "__main__":
    run(main)
