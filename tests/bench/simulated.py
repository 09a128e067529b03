"""Measure how late runs start with up to 1,000 workers that have few slots each.

`bench.puppets` simulates the workers: each has a real connection, and ends a run at once or after
`--lasts` seconds. The benchmark connects 10, then 100, then 1,000 workers, `--workers` at most. At
each second, `--rate` jobs are due. Lateness is the start, by the worker's clock, minus the
scheduled time. The output has one JSON line for each number of workers.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.numbers import positive, seconds_from_zero
from bench.rig import (
    bench_cluster,
    memory,
    note,
    parser,
    processor,
    quantiles,
    run,
    sizes,
    spent,
    tell,
)
from bench.ticks import STABLE_AFTER, Ticks
from support.cluster import DevCluster
from support.wait import WaitTimedOut, wait_until

AT_LEAST: Final = 10
"""Workers of the first step; each next step has ten times as many."""
OF_A_PROCESS: Final = 250
STEADY_WITHIN: Final = 30.0
"""Seconds in which a step becomes on time, or is measured as it is."""
ATTACH_WITHIN: Final = 120.0


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a run was lost or doubled."""
    asked = parser("bench.simulated", __doc__)
    asked.set_defaults(workers=1_000, slots=10)
    asked.add_argument("--rate", type=positive, default=100, help="runs per second")
    asked.add_argument(
        "--seconds",
        type=positive,
        default=20,
        help="measured time for each number of workers, in seconds",
    )
    asked.add_argument(
        "--lasts", type=seconds_from_zero, default=0.0, help="duration of a run, in seconds"
    )
    options = asked.parse_args(arguments)
    wrong = 0
    with ExitStack() as stack:
        cluster = stack.enter_context(bench_cluster(**sizes(options) | {"workers": 0}))
        ticks = Ticks(cluster, options.rate)
        fleet: list[int] = []
        attached = 0
        for size in growing(options.workers):
            began = time.monotonic()
            for first in range(attached, size, OF_A_PROCESS):
                count = min(size - first, OF_A_PROCESS)
                fleet.append(stack.enter_context(_puppets(cluster, options, first, count)))
            attached = size
            took = round(time.monotonic() - began, 1)
            note(f"{size:,} workers connected within {took} s")
            wrong += _measure(cluster, ticks, options, size, took, fleet)
    return 1 if wrong else 0


def growing(most: int) -> Iterator[int]:
    """Return numbers of workers: each ten times the last one, finally the requested number."""
    size = AT_LEAST
    while size < most:
        yield size
        size *= 10
    yield most


@contextmanager
def _puppets(cluster: DevCluster, options: Namespace, first: int, count: int) -> Iterator[int]:
    """Start a process of simulated workers; yield its pid when all are connected."""
    settings = {"first": first, "count": count, "slots": options.slots, "lasts": options.lasts}
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    argv = [sys.executable, "-m", "bench.puppets", *words, "--seeds", *cluster.endpoints]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not select.select([process.stdout], [], [], ATTACH_WITHIN)[0]:
            raise TimeoutError(f"{count} workers didn't connect within {ATTACH_WITHIN:g} s")
        if process.stdout.readline().split() != ["attached", str(count)]:
            raise RuntimeError(
                f"the process of simulated workers ended with exit code {process.wait()}"
            )
        yield process.pid
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _measure(
    cluster: DevCluster,
    ticks: Ticks,
    options: Namespace,
    size: int,
    took: float,
    fleet: Sequence[int],
) -> int:
    """Print one line, and return the number of missing and extra runs."""
    steady = True
    try:
        ticks.await_steady(time.time(), STEADY_WITHIN)
    except WaitTimedOut:
        steady = False
    before, puppets = spent(cluster), sum(map(processor, fleet))
    first = float(int(time.time()))
    last = first + options.seconds
    time.sleep(last + STABLE_AFTER - time.time())
    used, puppets = spent(cluster) - before, sum(map(processor, fleet)) - puppets
    expected = options.seconds * len(ticks.jobs)
    try:
        wait_until(
            lambda: len(ticks.rows(first, last)) == expected, STEADY_WITHIN, "all rows", every=1.0
        )
    except WaitTimedOut as short:
        note(str(short))
    rows = ticks.rows(first, last)
    late = [row.late for row in rows if row.started is not None]
    tell(
        "simulated",
        **sizes(options) | {"workers": size},
        rate=options.rate,
        lasts=options.lasts,
        attached_within_s=took,
        steady=steady,
        expected=expected,
        instants=len(rows),
        succeeded=sum(row.succeeded for row in rows),
        dispatched_again=sum(row.assignments > 1 for row in rows),
        early=sum(one < 0 for one in late),
        late_ms=quantiles(late) if late else None,
        attached=[_attached(cluster, one["name"]) for one in cluster.record["members"]],
        memory_mib={one["name"]: memory(one["pid"]) for one in cluster.record["members"]},
        puppets_cpu_us_per_run=round(puppets / expected * 1e6),
        **used.per(expected),
    )
    return abs(expected - len(rows)) + sum(not row.succeeded for row in rows)


def _attached(cluster: DevCluster, member: str) -> int | None:
    """Return the number of connected workers, by the member's metrics."""
    answer = cluster.get(member, "/metrics")
    for line in answer.body.decode().splitlines() if answer else ():
        if line.startswith("schedd_workers_attached "):
            return round(float(line.split()[1]))
    return None


if __name__ == "__main__":
    run(main)
