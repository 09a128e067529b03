"""Measure the time from a planned submit to the start of its run, at a fixed rate of submits.

    planned ──(waits here if the client is late)── submitted ── stored ── dispatched ── started
        └──────────────────────────────── latency ────────────────────────────────┘

Submits are planned at random times, as from independent users (exponential distribution), at the
rates of `--parts`. A submit doesn't wait for earlier answers, so a stall counts for each submit
that it delays. If the latency grows during a rate, the cluster can't sustain that rate.
`behind_ms` is the delay of the load generator itself, which is one process. The output has one JSON
line for each rate.
"""

from __future__ import annotations

import asyncio
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import schedclient.transport.transport
from bench.connections import apart
from bench.numbers import from_zero, positive, some_seconds
from bench.rig import NOOP, bench_cluster, note, parser, quantiles, run, sizes, spent, tell
from schedclient import ApiError, Client
from support.cluster import DevCluster
from support.wait import WaitTimedOut, wait_until

AHEAD: Final = 1.0
"""Seconds until the first submit, in which connections are opened."""
ENDED_WITHIN: Final = 60.0
"""Timeout in seconds after the last answer, for all runs to start."""

STARTED = """
SELECT run_id::text, extract(epoch FROM started_at), state = 'SUCCEEDED' FROM runs
WHERE trigger = 'SUBMIT' AND created_at >= to_timestamp(%s)
"""
WAITING = """
SELECT count(*) FROM runs WHERE trigger = 'SUBMIT' AND created_at >= to_timestamp(%s)
AND state <> 'SUCCEEDED'
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a run was lost."""
    asked = parser("bench.openloop", __doc__)
    asked.add_argument(
        "--peak", type=positive, default=1_000, help="highest rate, in submits per second"
    )
    asked.add_argument(
        "--parts",
        type=positive,
        nargs="+",
        default=[10, 50, 80],
        help="rates to measure, in percent of --peak",
    )
    asked.add_argument(
        "--seconds", type=some_seconds, default=20.0, help="duration of each rate, in seconds"
    )
    asked.add_argument(
        "--connections", type=positive, default=8, help="connections of the simulated clients"
    )
    asked.add_argument("--shared", action="store_true", help="use one connection for all clients")
    asked.add_argument(
        "--seed", type=from_zero, default=1, help="seed of the random gaps between submits"
    )
    options = asked.parse_args(arguments)
    if not options.shared:
        schedclient.transport.transport.connect = apart
    wrong = 0
    with bench_cluster(**sizes(options)) as cluster:
        asyncio.run(_submit(cluster, [0.01 * n for n in range(200)], options.connections))
        for part in options.parts:
            wrong += _measure(cluster, options, part)
    return 1 if wrong else 0


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Return random times of submits with this average rate, in seconds from the beginning."""
    drawn = random.Random(seed)
    at = drawn.expovariate(rate)
    while at < seconds:
        yield at
        at += drawn.expovariate(rate)


def halves(waits: Iterable[tuple[float, float]], middle: float) -> tuple[list[float], list[float]]:
    """Return the waits of the first half and of the second half of the pairs (time, wait).

    If the second half waits much longer, the cluster can't sustain the rate.
    """
    parts: tuple[list[float], list[float]] = ([], [])
    for moment, wait in waits:
        parts[moment >= middle].append(wait)
    return parts


@dataclass(slots=True)
class Answers:
    """The answers of the cluster."""

    first: float
    """Seconds since 1970 at which the measurement begins."""
    meant: dict[str, float] = field(default_factory=dict)
    """The planned time of each run."""
    answered: list[float] = field(default_factory=list)
    """Seconds from the planned time to each answer."""
    behind: list[float] = field(default_factory=list)
    """Seconds from the planned time to each call: the delay of the load generator."""
    refused: list[ApiError] = field(default_factory=list)


def _measure(cluster: DevCluster, options: Namespace, part: int) -> int:
    """Print one line, and return the number of lost runs."""
    rate = options.peak * part / 100
    moments = [*arrivals(rate, options.seconds, options.seed)]
    began, before = time.time(), spent(cluster)
    own = time.process_time()
    answers = asyncio.run(_submit(cluster, moments, options.connections))
    own = time.process_time() - own
    took = time.time() - answers.first
    try:
        wait_until(
            lambda: not cluster.sql(WAITING, began)[0][0],
            ENDED_WITHIN,
            "the end of all runs",
            every=0.5,
        )
    except WaitTimedOut as short:
        note(str(short))
    used = spent(cluster) - before
    rows = {run: (started, done) for run, started, done in cluster.sql(STARTED, began)}
    waits = [
        (moment, float(rows[run][0]) - answers.first - moment)
        for run, moment in answers.meant.items()
        if run in rows and rows[run][0] is not None
    ]
    lost = sum(not rows.get(run, (None, False))[1] for run in answers.meant)
    tell(
        "openloop",
        peak=options.peak,
        part=part,
        seconds=options.seconds,
        **sizes(options),
        connections=1 if options.shared else options.connections,
        clients=options.connections,
        wanted=len(moments),
        answered=len(answers.meant),
        refused=Counter(error.status for error in answers.refused),
        stored=len(rows),
        lost=lost,
        answers_per_second=round(len(answers.meant) / max(took, options.seconds), 1),
        behind_ms=quantiles(answers.behind) if answers.behind else None,
        answered_ms=quantiles(answers.answered) if answers.answered else None,
        started_ms=quantiles([wait for _, wait in waits]) if waits else None,
        started_p50_ms_by_half=[
            quantiles(half)["p50"] if half else None for half in halves(waits, options.seconds / 2)
        ],
        load_cpu_us_per_run=round(own / max(len(answers.meant), 1) * 1e6),
        **used.per(max(len(answers.meant), 1)),
    )
    return lost


async def _submit(cluster: DevCluster, moments: Sequence[float], connections: int) -> Answers:
    """Send each submit at its planned time, whether or not earlier ones were answered."""
    clients = [Client(cluster.endpoints) for _ in range(connections)]

    async def submit(client: Client, moment: float) -> None:
        answers.behind.append(time.time() - answers.first - moment)
        try:
            run = await client.submit(python=NOOP)
        except ApiError as error:
            answers.refused.append(error)
        else:
            answers.meant[run.run_id] = moment
            answers.answered.append(time.time() - answers.first - moment)

    try:
        await asyncio.gather(*(client.cluster.status() for client in clients))
        answers = Answers(time.time() + AHEAD)
        async with asyncio.TaskGroup() as group:
            for number, moment in enumerate(moments):
                if (left := answers.first + moment - time.time()) > 0:
                    await asyncio.sleep(left)
                client = clients[number % connections]
                group.create_task(submit(client, moment), name=f"submit {number}")
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    if answers.refused:
        note(
            f"{len(answers.refused):,} submits were rejected; the first error: {answers.refused[0]}"
        )
    return answers


if __name__ == "__main__":
    run(main)
