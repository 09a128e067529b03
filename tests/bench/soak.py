"""Run a steady load for half an hour, and measure whether the cluster becomes slower or larger.

    hot    jobs that each run once a minute, spread over the minute: 100,000 jobs are 1,667 runs/s
    idle   jobs whose next scheduled time is months away

    ├─ window ─┤ CPU time, memory and table sizes are recorded
               ├─ grace ─┤ a JSON line: how late the runs of the window were
    ├─ window ─┼─ window ─┼─ … ─┤  drift: the last third of the windows against the first third

Each hot job has one scheduled time per minute, so lost and doubled runs are counted exactly. `dead`
and `live` are row versions that PostgreSQL estimates, `mib` is the size of a table with its
indexes, and `rate` counts ended runs per second. The output has one JSON line for each window, then
the drift, then the verdict.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bench import copies
from bench.numbers import from_zero, positive, seconds_from_zero
from bench.rig import Spent, bench_cluster, ended, memory, note, parser, run, sizes, spent, tell
from support.cluster import DevCluster

WINDOW: Final = 60
GRACE: Final = 3
"""Part of a window after which its runs are read; runs of the last second have a minute."""

LATE = """
SELECT count(*), count(DISTINCT job_id), count(*) FILTER (WHERE state = 'SUCCEEDED'),
    count(*) FILTER (WHERE started_at < due_at), count(*) FILTER (WHERE assignments > 1),
    percentile_disc(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (
        ORDER BY extract(epoch FROM started_at - due_at) * 1000)
FROM runs WHERE scheduled_at >= %s AND scheduled_at < %s
"""
"""Figures of a window of a minute at most, in which each job has at most one scheduled time."""
TABLES = """
SELECT CASE WHEN relname LIKE 'runs%' THEN 'runs' ELSE relname END, sum(n_dead_tup),
    sum(n_live_tup), sum(autovacuum_count), sum(pg_total_relation_size(relid))
FROM pg_stat_user_tables
WHERE relname LIKE 'runs%' OR relname IN ('attempts', 'jobs', 'live', 'timers') GROUP BY 1
"""
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures at one moment."""

    at: float
    ended: int
    used: Spent
    state: Mapping[str, Any]
    """Current values that aren't differences: memory, tables."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Figures of the scheduled times of one window."""

    expected: int
    rows: int
    jobs: int
    succeeded: int
    early: int
    again: int
    late_ms: Mapping[str, float]

    @property
    def lost(self) -> int:
        """Return the number of scheduled times without a row, or without a successful end."""
        return self.expected - min(self.jobs, self.succeeded)

    @property
    def doubled(self) -> int:
        """Return the number of rows beyond one for each scheduled time."""
        return self.rows - self.jobs


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a run was lost, doubled or early."""
    asked = parser("bench.soak", __doc__)
    asked.add_argument("--idle", type=from_zero, default=10_000, help="idle jobs")
    asked.add_argument(
        "--hot", type=positive, default=100_000, help="jobs that each run once a minute"
    )
    asked.add_argument("--seconds", type=positive, default=1_800, help="measured time in seconds")
    asked.add_argument(
        "--window",
        type=positive,
        default=WINDOW,
        help="seconds that one line of the output covers, 60 at most",
    )
    asked.add_argument(
        "--warm-up",
        type=seconds_from_zero,
        default=20.0,
        help="time in seconds before the measurement begins",
    )
    options = asked.parse_args(arguments)
    if not 0 < options.window <= WINDOW:
        asked.error(f"--window must be from 1 to {WINDOW} seconds")
    lines = []
    with bench_cluster(**sizes(options)) as cluster:
        asyncio.run(copies.make_templates(cluster))
        copies.fill(cluster, options.idle, copies.IDLE)
        copies.copy(cluster, options.hot, copies.HOT)
        first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=options.warm_up)
        note(f"{options.hot + options.idle:,} jobs copied; measuring from {first:%H:%M:%S} UTC")
        _sleep_until(first)
        before = _sample(cluster)
        windows = [*cut(first, options.seconds, options.window)]
        for number, (start, end) in enumerate(windows):
            _sleep_until(end)
            now = _sample(cluster)
            _sleep_until(end + (end - start) / GRACE)
            counted = _count(cluster, start, end, options.hot)
            lines.append(_line(counted, before, now))
            tell("soak", window=number, at=f"{start:%H:%M:%S}", **lines[-1])
            before = now
        _sleep_until(windows[-1][1] + timedelta(seconds=options.window))
        whole = [_count(cluster, start, end, options.hot) for start, end in windows]
    tell("soak", drift=drift(lines))
    wrong = {
        "lost": sum(each.lost for each in whole),
        "doubled": sum(each.doubled for each in whole),
        "early": sum(each.early for each in whole),
    }
    tell(
        "soak",
        idle=options.idle,
        hot=options.hot,
        seconds=options.seconds,
        **sizes(options),
        instants=sum(each.rows for each in whole),
        expected=sum(each.expected for each in whole),
        dispatched_again=sum(each.again for each in whole),
        **wrong,
    )
    return 1 if any(wrong.values()) else 0


def cut(first: datetime, seconds: int, window: int) -> Iterator[tuple[datetime, datetime]]:
    """Return the windows: start and end of each. The last window may be shorter."""
    last = first + timedelta(seconds=seconds)
    while first < last:
        end = min(last, first + timedelta(seconds=window))
        yield first, end
        first = end


def instants(start: datetime, end: datetime, hot: int) -> int:
    """Return the number of scheduled times: each second has a template and its copies."""
    seconds = ((start.second + past) % 60 for past in range(round((end - start).total_seconds())))
    share, rest = divmod(hot, len(copies.HOT))
    return sum(1 + share + (second < rest) for second in seconds)


def drift(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return for each figure the median of the first and of the last third, and their ratio."""
    third = len(lines) // 3
    if not third:
        return {}
    drifts = {}
    flat = [dict(_flat(line)) for line in lines]
    for name in flat[0]:
        first, last = (
            statistics.median(line.get(name, 0.0) for line in part)
            for part in (flat[:third], flat[-third:])
        )
        ratio = round(last / first, 3) if first else None
        drifts[name] = {"first": round(first, 3), "last": round(last, 3), "ratio": ratio}
    return drifts


def _flat(line: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{under}{name}.")
        elif isinstance(value, int | float):
            yield f"{under}{name}", float(value)


def _line(counted: Counted, before: Sample, now: Sample) -> dict[str, Any]:
    used, runs = now.used - before.used, now.ended - before.ended
    return {
        "instants": counted.rows,
        "expected": counted.expected,
        "lost_so_far": counted.lost,
        "doubled": counted.doubled,
        "early": counted.early,
        "rate": round(runs / (now.at - before.at), 1),
        "late_ms": counted.late_ms,
        "wal_bytes": used.wal,
        **now.state,
        **used.per(max(runs, 1)),
    }


def _sample(cluster: DevCluster) -> Sample:
    record = cluster.record
    parts = (*record["members"], *record["workers"])
    tables = cluster.sql(TABLES)
    state = {
        "memory_mib": {part["name"]: memory(part["pid"]) for part in parts},
        "dead": {name: int(dead) for name, dead, _, _, _ in tables},
        "live": {name: int(live) for name, _, live, _, _ in tables},
        "vacuums": {name: int(count) for name, _, _, count, _ in tables},
        "mib": {name: round(int(size) / MIB, 1) for name, _, _, _, size in tables},
    }
    return Sample(time.monotonic(), ended(cluster), spent(cluster), state)


def _count(cluster: DevCluster, start: datetime, end: datetime, hot: int) -> Counted:
    [(*counts, late)] = cluster.sql(LATE, start, end)
    names = ("p50", "p99", "max")
    late_ms = {name: round(float(value), 1) for name, value in zip(names, late or (), strict=False)}
    return Counted(instants(start, end, hot), *map(int, counts), late_ms)


def _sleep_until(moment: datetime) -> None:
    time.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()))


if __name__ == "__main__":
    run(main)
