"""A herd: very many jobs that are due at one instant, and what is to be seen of it.

    herd = Herd(world, 100_000)
    with fault_run(prepare=herd.make) as run:     made by the SDK before the record begins
        herd.come(run)                            due, handed out, run, all over: a fault's window

What it does to the cluster is nobody's fault, but its lateness is of the same kind: nothing that
waits for one of two cores with 100,000 others before it can be on time. So while it lasts a run may
be late, and for nothing else is there an excuse: not for a loss, not for a second start, not for an
early one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from faults.herding import name_of
from faults.history import Definition, Schedule
from faults.scenario import Run
from faults.world.service import Service
from faults.world.world import World
from support.wait import wait_until

TESTS = Path(__file__).parents[1]
REHEARSED = 600
"""Jobs by which it is seen how many can be made in a second."""
SPARE = 1.3
"""By so much longer than the rehearsal says the making may take: the machine has other work too."""
EVE = 30.0
"""Seconds from the last of them made to their instant: the run begins, and is quiet for a while."""
DRAINED_WITHIN = 400.0

WAITING = "SELECT count(*) FROM live WHERE scheduled_at = %s"
STATES = """
SELECT state, count(*), count(DISTINCT job_id), max(assignments), max(attempt), max(losses)
FROM runs WHERE job_id IN (SELECT job_id FROM jobs WHERE name LIKE %s) GROUP BY state
"""
SIZES = "SELECT pg_relation_size('live'), pg_relation_size('timers')"


class Herd:
    """So many jobs of one instant, each a Python handler that writes down that it ran."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.count = count
        self.due = 0.0
        self.drained = 0.0
        self.figures: dict[str, Any] = {"jobs": count}
        self._jobs: list[str] = []

    def make(self, run: Run) -> None:
        """Make them, by as many calls, and tell the recorder of each."""
        self._rehearse(run)
        due = int(time.time() + self.count / self.figures["made_per_s"] * SPARE + EVE)
        at = datetime.fromtimestamp(due, UTC).isoformat()
        told = self._call("make", run, self.count, at, os.fspath(run.probes))
        left = due - time.time()
        assert left > EVE / 2, f"{self.count} jobs took too long to make: {left:.0f} s are left"
        self.due, self._jobs = float(due), told["jobs"]
        self.figures["made_per_s"] = round(self.count / told["seconds"])
        for number, job_id in enumerate(self._jobs):
            run.recorder.job(_definition(name_of(run.prefix, number), job_id, self.due))

    def await_eve(self) -> None:
        """Return shortly before they are due: so long, all is as on any day."""
        eve = self.due - 0.5
        wait_until(lambda: time.time() >= eve, EVE + 600, "the herd to be due")

    def come(self, run: Run) -> None:
        """Their instant, until the last has run; `figures` has what was seen."""
        sizes = [self._sizes()]
        daemons = [*self.world.members.values(), *self.world.workers.values()]
        usual = {service.name: _memory(service, "VmRSS") for service in daemons}
        for service in daemons:
            Path(f"/proc/{service.pid}/clear_refs").write_text("5")  # its peak counts from now on
        blocks: dict[str, float] = defaultdict(float)
        most = [0]
        instant = datetime.fromtimestamp(self.due, UTC)

        def waiting() -> int:
            [(count,)] = self.world.postgres.sql(WAITING, instant)
            most[0] = max(most[0], count)
            for name, member in self.world.members.items():
                blocks[name] = max(blocks[name], _gauge(member, LONGEST_BLOCK))
            return int(count)

        with run.journal.fault("herd", "all members and workers", jobs=self.count) as fault:
            fault.effect_of(lambda: waiting() > 500, 30, "more runs to wait than there are slots")
            wait_until(
                lambda: waiting() == 0 and self._ended(run) == self.count,
                DRAINED_WITHIN,
                "all of the herd to have run",
                every=1.0,
            )
            self.drained = time.time()
        sizes.append(self._sizes())
        self.world.postgres.sql("VACUUM live, timers")
        sizes.append(self._sizes())
        peak = {service.name: _memory(service, "VmHWM") for service in daemons}
        self.figures |= {
            "most_waiting": most[0],
            "longest_block_s": {name: round(blocks[name], 3) for name in sorted(blocks)},
            "rss_mib": {name: [usual[name], peak[name]] for name in usual},
            "live_and_timers_kib": [[size // 1024 for size in each] for each in sizes],
        }
        self._look_at(run)

    def rows(self, run: Run) -> dict[str, tuple[int, ...]]:
        """Of its runs, by state: how many, of how many jobs, and the greatest number of times that
        one was handed out, tried, and lost.
        """
        found = self.world.postgres.sql(STATES, f"{name_of(run.prefix, 0)[:-1]}%")
        return {str(state): tuple(map(int, counts)) for state, *counts in found}

    def lateness(self, run: Run, names: Iterable[str], until: float) -> dict[str, float]:
        """Of these probes, of what was due from the herd's instant on: how late it began."""
        wanted = {f"{run.prefix}-{name}" for name in names}
        late = sorted(
            line["at"] - at
            for line in run.starts()
            if line["job"] in wanted
            and line["attempt"] == 1
            and self.due <= (at := datetime.fromisoformat(line["nominal"]).timestamp()) < until
        )
        if not late:
            return {"started": 0}
        middle, high = late[len(late) // 2], late[int(len(late) * 0.99)]
        return {
            "started": len(late),
            "p50_s": round(middle, 3),
            "p99_s": round(high, 3),
            "max_s": round(late[-1], 3),
        }

    def starts(self, run: Run) -> list[dict[str, Any]]:
        """The starts of the herd's own jobs, by its own lines."""
        head = name_of(run.prefix, 0)[:-1]
        return [line for line in run.starts() if line["job"].startswith(head)]

    def _look_at(self, run: Run) -> None:
        starts = self.starts(run)
        ended = max(line["at"] for line in starts)
        by_worker: dict[str, list[float]] = {name: [self.due] for name in self.world.workers}
        for line in run.starts():
            if self.due <= line["at"] <= ended:
                by_worker[line["worker"]].append(line["at"])
        shares = Counter(line["worker"] for line in starts)
        self.figures |= {
            "runs_per_s": round(self.count / (ended - self.due)),
            "last_start_s": round(ended - self.due, 1),
            "smallest_share": round(min(shares[name] for name in by_worker) / self.count, 3),
            "longest_idle_s": {name: round(_gap(at), 2) for name, at in sorted(by_worker.items())},
        }

    def _rehearse(self, run: Run) -> None:
        """Make some that come much later, and delete them again: how quick is it here and now?"""
        count = min(REHEARSED, self.count)
        later = datetime.fromtimestamp(time.time() + 86_400, UTC).isoformat()
        made = self._call("make", run, count, later, os.fspath(run.probes))
        deleted = self._call("delete", run, count)
        self.figures["made_per_s"] = round(count / made["seconds"])
        self.figures["deleted_per_s"] = round(count / deleted["seconds"])

    def _call(self, what: str, run: Run, count: int, *more: str) -> dict[str, Any]:
        ends = ",".join(self.world.endpoints)
        done = subprocess.run(
            [sys.executable, "-m", "faults.herding", what, ends, run.prefix, str(count), *more],
            cwd=TESTS,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, f"the herd can't be {what}d: {done.stderr[-2000:]}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _ended(self, run: Run) -> int:
        return sum(counts[0] for counts in self.rows(run).values())

    def _sizes(self) -> tuple[int, ...]:
        [sizes] = self.world.postgres.sql(SIZES)
        return sizes


LONGEST_BLOCK = "schedd_event_loop_longest_block_seconds"


def _gauge(member: Service, name: str) -> float:
    answer = member.get("/metrics")
    text = answer.body.decode() if answer is not None else ""
    values = [line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return max(map(float, values), default=0.0)


def _memory(service: Service, field: str) -> int:
    """MiB, as the kernel tells."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) // 1024


def _gap(instants: Iterable[float]) -> float:
    """The longest time from one of these to the next."""
    ordered = sorted(instants)
    return max((b - a for a, b in pairwise(ordered)), default=0.0)


def _definition(name: str, job_id: str, due: float) -> Definition:
    return Definition(
        at=time.time(),
        job_id=job_id,
        namespace="default",
        name=name,
        generation=1,
        schedule=Schedule(at=due),
        timeout=30.0,
    )
