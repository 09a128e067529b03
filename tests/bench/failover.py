"""Measure how late runs are after a fault, from the rows of the runs.

    kill      kill the leader by SIGKILL; the leader owns a share of the jobs
    handover  stop the leader by SIGTERM; the leader hands its shards over, and ends
    worker    kill, by SIGKILL, the worker with the most runs in progress

Jobs in all shards fire each second, and each scheduled time has a row, even if its run is late.
`back_ms` is the time from the fault until a job of the failed member fires on time again; 0 if no
run was late. `again_ms` is the time from the fault until a run of the failed worker is started
again. Before the next repetition, the stopped process is started, and all jobs are on time again. A
lost or doubled run fails the benchmark. The output has one JSON line for each fault.
"""

from __future__ import annotations

import asyncio
import signal
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.gaps import Gap, reckon
from bench.numbers import positive
from bench.rig import bench_cluster, note, parser, quantiles, run, sizes, tell
from bench.ticks import Ticks, await_shared
from schedclient import Client
from support.cluster import DevCluster
from support.wait import wait_until

FAULTS: Final = ("kill", "handover", "worker")
WAIT_TIMEOUT: Final = 60.0
"""Timeout in seconds for short operations; longer than a lease."""
BEYOND: Final = 3.0
"""Seconds after the end of a lease, within which all effects of the fault have ended."""
HELD: Final = 16
"""Runs in progress on all workers when a worker is killed."""

STATES = """
SELECT run_id::text, worker, state, extract(epoch FROM started_at), assignments FROM runs
WHERE run_id = ANY (%s::uuid[])
"""


@dataclass(frozen=True, slots=True)
class Round:
    """Effects of one fault on its jobs and on all others; for a worker, also the runs it had."""

    theirs: Gap
    others: Gap
    again: tuple[float, ...] = ()
    """Seconds until the second start, for each run."""
    lost: int = 0
    """Runs that were in progress on any worker."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a run was lost or doubled."""
    asked = parser("bench.failover", __doc__)
    asked.set_defaults(members=3, workers=2, slots=200)
    asked.add_argument("--jobs", type=positive, default=60, help="jobs that fire each second")
    asked.add_argument("--rounds", type=positive, default=2, help="repetitions of each fault")
    asked.add_argument(
        "--member-ttl", type=positive, default=5, help="lease of a member, in seconds"
    )
    asked.add_argument(
        "--worker-ttl", type=positive, default=15, help="lease of a worker, in seconds"
    )
    asked.add_argument(
        "--faults", nargs="+", choices=FAULTS, default=FAULTS, help="faults to inject"
    )
    options = asked.parse_args(arguments)
    if options.members < 2 and {"kill", "handover"} & {*options.faults}:
        asked.error(
            "--members must be at least 2, so that a member can take over; or use --faults worker"
        )
    if options.workers < 2 and "worker" in options.faults:
        asked.error("--workers must be at least 2: a worker must take over")
    ttls = ("member_ttl", "worker_ttl")
    options.settings += [f"schedd.{name}={getattr(options, name)}s" for name in ttls]
    wrong = 0
    with bench_cluster(**sizes(options)) as cluster:
        ticks = Ticks(cluster, options.jobs)
        bench = Faults(cluster, ticks, options)
        for fault in options.faults:
            rounds = [bench.round(fault) for _ in range(options.rounds)]
            wrong += _tell(fault, rounds, options)
    return 1 if wrong else 0


class Faults:
    """Faults, which begin when the cluster is stable, and end when it is stable again."""

    def __init__(self, cluster: DevCluster, ticks: Ticks, options: Namespace) -> None:
        self._cluster, self._ticks, self._options = cluster, ticks, options

    def round(self, fault: str) -> Round:
        """Inject the fault, and return its effects."""
        await_shared(self._cluster, WAIT_TIMEOUT)
        self._ticks.await_steady(time.time(), WAIT_TIMEOUT)
        return self._worker() if fault == "worker" else self._member(fault)

    def _member(self, fault: str) -> Round:
        victim = wait_until(self._cluster.leader, WAIT_TIMEOUT, "a leader")
        owners = self._ticks.owners()
        theirs = [job for job, owner in owners.items() if owner == victim]
        how = signal.SIGKILL if fault == "kill" else signal.SIGTERM
        at = time.time()
        self._cluster.signal(victim, how, WAIT_TIMEOUT)
        last = self._ticks.await_steady(at + self._options.member_ttl + BEYOND, WAIT_TIMEOUT)
        rows = self._ticks.await_ended(at, last, WAIT_TIMEOUT)
        rest = owners.keys() - theirs
        self._cluster.up()
        seen = [reckon(rows, jobs, fault=at, first=at, last=last) for jobs in (theirs, rest)]
        self._note(fault, victim, seen[0])
        return Round(*seen)

    def _worker(self) -> Round:
        ttl = self._options.worker_ttl
        runs = asyncio.run(self._hold(time.time() + ttl + 2 * BEYOND + ttl / 3))
        hands = wait_until(lambda: self._started(runs), WAIT_TIMEOUT, "the start of all runs")
        ((victim, _),) = Counter(hands.values()).most_common(1)
        in_hand = {run for run, worker in hands.items() if worker == victim}
        at = time.time()
        self._cluster.kill(victim)
        last = self._ticks.await_steady(at + ttl + BEYOND, WAIT_TIMEOUT)
        # What was in its hands had come before.
        rows = self._ticks.await_ended(at - 1, last, WAIT_TIMEOUT)
        states = wait_until(lambda: self._ended(runs), WAIT_TIMEOUT, "the end of all runs")
        self._cluster.up()
        gap = reckon(rows, self._ticks.jobs, fault=at, first=at - 1, last=last)
        self._note("worker", victim, gap)
        again = [float(row[3]) - at for row in states if row[0] in in_hand]
        lost = sum(row[2] != "SUCCEEDED" for row in states)
        return Round(gap, reckon((), (), fault=at, first=at, last=last), tuple(again), lost)

    async def _hold(self, until: float) -> list[str]:
        async with Client(self._cluster.endpoints) as client:
            work: dict[str, Any] = {"python": {"handler": "until"}, "payload": until}
            answers = await client.submit_many([work] * HELD, name="held")
        for refused in answers:
            if isinstance(refused, Exception):
                raise refused
        return [run.run_id for run in answers if not isinstance(run, Exception)]

    def _started(self, runs: list[str]) -> dict[str, str] | None:
        """Return the owner of each shard."""
        rows = self._cluster.sql(STATES, runs)
        if any(row[2] != "RUNNING" or row[3] is None for row in rows):
            return None
        return {row[0]: row[1] for row in rows}

    def _ended(self, runs: list[str]) -> list[tuple[Any, ...]] | None:
        rows = self._cluster.sql(STATES, runs)
        return None if any(row[2] in ("PENDING", "RUNNING") for row in rows) else rows

    def _note(self, fault: str, victim: str, gap: Gap) -> None:
        back = max(gap.backs, default=0.0)
        note(
            f"{fault} of {victim}: {gap.late} late runs, the latest {gap.latest:.2f} s late;"
            f" on time again after {back:.2f} s"
        )


def _tell(fault: str, rounds: Sequence[Round], options: Namespace) -> int:
    """Print one line, and return the number of lost and doubled runs."""
    every = [gap for each in rounds for gap in (each.theirs, each.others)]

    def in_all(count: Callable[[Gap], int]) -> int:
        return sum(map(count, every))

    backs = [back for each in rounds for back in each.theirs.backs]
    again = [one for each in rounds for one in each.again]
    lost = in_all(lambda gap: gap.lost) + sum(each.lost for each in rounds)
    doubled = in_all(lambda gap: gap.doubled)
    tell(
        "failover",
        fault=fault,
        rounds=len(rounds),
        **sizes(options),
        member_ttl_s=options.member_ttl,
        worker_ttl_s=options.worker_ttl,
        jobs=options.jobs,
        jobs_hit=len(backs),
        back_ms=quantiles(backs) if backs else None,
        again_ms=quantiles(again) if again else None,
        latest_ms=quantiles([each.theirs.latest for each in rounds]),
        late_instants=[each.theirs.late for each in rounds],
        late_elsewhere=[each.others.late for each in rounds],
        latest_elsewhere_ms=round(max(each.others.latest for each in rounds) * 1e3, 1),
        dispatched_again=in_all(lambda gap: gap.again),
        lost=lost,
        doubled=doubled,
    )
    return lost + doubled


if __name__ == "__main__":
    run(main)
