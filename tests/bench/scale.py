"""Measure how fast a backlog runs with different numbers of members and workers.

By default: 1, 2 and 3 members, each with 1, 2 and 4 workers. The workers have the same number of
slots in total. All processes share one machine, so a gain is limited by the CPU time that is left;
the output has the CPU time of a run. Each number of members has its own cluster, and each member
owns shards before the first submit. The runs wait while the cluster is paused and its workers
already run, so the start of workers isn't measured. The output has one JSON line for each
combination.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench.drain import drain
from bench.numbers import plain_parser, positive
from bench.rig import bench_cluster, note, run, tell
from bench.ticks import await_shared

WAIT_TIMEOUT: Final = 60.0
"""Timeout in seconds for the distribution of shards."""
KINDS: Final = {"m": "members", "w": "workers"}


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a run was lost."""
    asked = plain_parser("bench.scale", __doc__)
    asked.add_argument(
        "--members",
        type=positive,
        nargs="+",
        default=[1, 2, 3],
        help="numbers of members to measure",
    )
    asked.add_argument(
        "--workers",
        type=positive,
        nargs="+",
        default=[1, 2, 4],
        help="numbers of workers to measure",
    )
    asked.add_argument(
        "--slots", type=positive, default=1_000, help="slots of all workers together"
    )
    asked.add_argument("--runs", type=positive, default=5_000, help="runs of each combination")
    options = asked.parse_args(arguments)
    if options.slots < max(options.workers):
        asked.error(
            f"--slots {options.slots} must be at least {max(options.workers)}, one for each worker"
        )
    lost = 0
    for members in options.members:
        with bench_cluster(members=members, workers=0, slots=options.slots) as cluster:
            await_shared(cluster, WAIT_TIMEOUT)
            for workers, slots in cells(options.workers, options.slots):
                note(f"{members} members, {workers} workers of {slots} slots")
                cluster.slots, cluster.workers = slots, workers
                cluster.up()
                figures = drain(cluster, options.runs)
                for worker in cluster.record["workers"]:
                    cluster.terminate(worker["name"])
                tell(
                    "scale",
                    members=members,
                    workers=workers,
                    slots=slots,
                    runs=options.runs,
                    **figures,
                    cpu_us_together=together(figures["cpu_us_per_run"]),
                )
                lost += options.runs - figures["succeeded"]
    return 1 if lost else 0


def cells(workers: Sequence[int], slots: int) -> Iterator[tuple[int, int]]:
    """Return pairs of workers and slots of each worker; the total number of slots is limited."""
    return ((count, slots // count) for count in workers)


def together(spent: Mapping[str, int]) -> dict[str, int]:
    """Return the CPU time of all members, of all workers, of both stores, and of everything."""
    counted: Counter[str] = Counter()
    for name, used in spent.items():
        counted[KINDS.get(name.rstrip("0123456789"), "stores")] += used
    return {**counted, "all": counted.total()}


if __name__ == "__main__":
    run(main)
