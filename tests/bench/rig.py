"""Common parts of the benchmarks of a whole cluster: the cluster, its costs, and the output.

    with bench_cluster(members=1) as cluster:
        before = spent(cluster)
        …
        tell("drain", rate=…, **(spent(cluster) - before).per(runs))

All processes run on this machine: PostgreSQL (with fsync and synchronous_commit), etcd, members,
workers and the load generator. One test run proves little; compare ratios within one test run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from bench.numbers import plain_parser, positive
from schedctl.dev.servers.processes import living_in
from support.cluster import DevCluster, NotUpError, dev_cluster, importing
from support.repository import ROOT

TICK: Final = os.sysconf("SC_CLK_TCK")
HANDLERS: Final = 'workerd.handlers=["bench.noop"]'
NOOP: Final = {"handler": "noop"}


@dataclass(frozen=True, slots=True)
class Spent:
    """Costs since the cluster's start: CPU seconds by process, bytes of WAL, commits."""

    cpu: Mapping[str, float]
    wal: int
    commits: int

    def __sub__(self, earlier: Spent) -> Spent:
        """Return the difference of two readings."""
        cpu = {part: used - earlier.cpu.get(part, 0.0) for part, used in self.cpu.items()}
        return Spent(cpu, self.wal - earlier.wal, self.commits - earlier.commits)

    def per(self, runs: int) -> dict[str, Any]:
        """Return the costs per run: microseconds, bytes, commits."""
        return {
            "cpu_us_per_run": {part: round(used / runs * 1e6) for part, used in self.cpu.items()},
            "wal_bytes_per_run": round(self.wal / runs),
            "commits_per_run": round(self.commits / runs, 4),
        }


@contextmanager
def bench_cluster(
    *, members: int, workers: int, slots: int, settings: Sequence[str] = ()
) -> Iterator[DevCluster]:
    """Start a new cluster whose workers have the handlers of `bench.noop`.

    Its files are on a disk, because `fsync` costs nothing in memory. `settings` are in the form of
    `schedctl dev up --set`.
    """
    with dev_cluster(
        members=members,
        workers=workers,
        slots=slots,
        overrides=[HANDLERS, *settings],
        env=importing(ROOT / "tests"),
        start=False,
        on_disk=True,
        forked=False,
    ) as cluster:
        try:
            cluster.up()
            yield cluster
        except BaseException:
            cluster.down()
            for data in ("postgres", "etcd"):  # gigabytes; the logs are kept
                shutil.rmtree(cluster.directory / data, ignore_errors=True)
            raise


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run the program, and exit with its code. Exit with 130 at an interrupt, and with 1 and a
    message if the cluster doesn't start, or a wait times out.
    """
    try:
        code = main(sys.argv[1:])
    except (NotUpError, TimeoutError) as error:
        note(str(error).strip() or "the benchmark timed out")
        code = 1
    except KeyboardInterrupt:
        note("interrupted")
        code = 130
    sys.exit(code)


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that set the size of the cluster."""
    made = plain_parser(module, description)
    made.add_argument("--members", type=positive, default=1, help="members of the cluster")
    made.add_argument("--workers", type=positive, default=1, help="workers of the cluster")
    made.add_argument("--slots", type=positive, default=1_000, help="slots of each worker")
    made.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="TARGET.KEY=VALUE",
        help="setting in the form that `schedctl dev"
        " up --set` takes, for example postgres.shared_buffers=2GB; repeatable",
    )
    return made


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    """Return the size of the cluster and its settings, from the options."""
    names = ("members", "workers", "slots", "settings")
    return {name: getattr(options, name) for name in names}


def ended(cluster: DevCluster) -> int:
    """Return how many runs have succeeded, by the members' metrics, because counting rows would
    read all of them. The final figures are read from the rows.
    """
    total = 0.0
    for member in cluster.record["members"]:
        answer = cluster.get(member["name"], "/metrics")
        for line in answer.body.decode().splitlines() if answer else ():
            if line.startswith("schedd_runs_ended_total{") and 'state="SUCCEEDED"' in line:
                total += float(line.rpartition(" ")[2])
    return round(total)


def spent(cluster: DevCluster) -> Spent:
    """Return the costs so far.

    PostgreSQL's CPU time includes its running processes, and ended ones that its postmaster has
    reaped.
    """
    record = cluster.record
    parts = {part["name"]: [part["pid"]] for part in (*record["members"], *record["workers"])}
    parts["etcd"] = [record["etcd"][0]["pid"]]
    parts["postgres"] = [one.pid for one in living_in(cluster.directory / "postgres")]
    [(wal, commits)] = cluster.sql(
        "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn,"
        " (SELECT sum(xact_commit) FROM pg_stat_database)"
    )
    cpu = {name: sum(map(processor, pids)) for name, pids in parts.items()}
    return Spent(cpu, int(wal), int(commits))


def tell(name: str, **figures: Any) -> None:
    """Print one line of JSON, with the properties of the machine."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({"bench": name, **figures, **machine}), flush=True)


def note(text: str) -> None:
    """Print progress for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def quantiles(values: list[float]) -> dict[str, float]:
    """Return p50, p99, p99.9 and the maximum of seconds, in milliseconds."""
    ordered = sorted(values)
    last = len(ordered) - 1
    places = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {name: round(ordered[round(last * at)] * 1e3, 1) for name, at in places.items()}


def memory(pid: int) -> float:
    """Return the private memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    kib = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return round(kib / 1024, 1)


def processor(pid: int) -> float:
    """Return CPU seconds of a process and of its ended children; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICK
