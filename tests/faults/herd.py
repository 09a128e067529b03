"""Herd: very many jobs that are due at one instant, and its effects.

    Herd(world, 100_000).pass_by()                before any record: what its like leaves is there
    herd = Herd(world, 100_000)
    with fault_run(prepare=herd.make) as run:     made before the record begins
        herd.come(run)                            due, dispatched, run, ended: a fault's window

Its effect on the cluster isn't a fault, but its lateness is of the same kind: nothing that
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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from faults.copies import copies
from faults.herding import name_of
from faults.history import Definition, Schedule
from faults.scenario import Run
from faults.world.service import Service
from faults.world.world import World
from support.wait import WaitTimedOut, wait_until

TESTS = Path(__file__).parents[1]
BY_CALLS = int(os.environ.get("HERD_BY_CALLS", "1000"))
"""Jobs that are made by calls. One takes a member some 4 ms of a processor, so that 100,000 would
take two busy cores a quarter of an hour; the rest are copies of the rows that these have.
"""
MAKING = 60.0 + BY_CALLS / 40
"""Seconds from the first call to where all are there, at most."""
EVE = 30.0
"""Seconds from there to their instant: the run begins, and is quiet for a while."""
DRAINED_WITHIN = 600.0
GIVEN_BACK_WITHIN = 75.0
"""A member looks for garbage each minute."""

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
        self.prefix = ""
        self.due = 0.0
        self.drained = 0.0
        self.figures: dict[str, Any] = {"jobs": count}

    def make(self, run: Run) -> None:
        """Make them, and tell the recorder of each."""
        for number, job_id in enumerate(self._make(run.prefix, run.probes)):
            run.recorder.job(_definition(name_of(run.prefix, number), job_id, self.due))

    def memory(self) -> dict[str, int]:
        """Return the memory of each daemon, in MiB."""
        return {service.name: _memory(service, "VmRSS") for service in self._daemons()}

    def memory_left(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return the same, as soon as no daemon has more than `before`, or after time to give back
        what they don't need.
        """
        with suppress(WaitTimedOut):
            wait_until(
                lambda: all(has <= before[name] for name, has in self.memory().items()),
                GIVEN_BACK_WITHIN,
                "memory to be given back",
                every=1.0,
            )
        return self.memory()

    def pass_by(self) -> None:
        """Make them, and wait until all have ended; only their number is recorded."""
        folder = self.world.work / "bygone"
        folder.mkdir()
        folder.chmod(0o777)
        self._make("bygone", folder)
        wait_until(
            lambda: (
                time.time() >= self.due and self._waiting() == 0 and self._ended() == self.count
            ),
            self.due - time.time() + DRAINED_WITHIN,
            "the herd before to have run",
            every=2.0,
        )
        self.world.commits.absorb()  # now, for the next one's instant doesn't wait for that

    def _make(self, prefix: str, folder: Path) -> list[str]:
        """Their ids."""
        self.prefix = prefix
        due = int(time.time() + MAKING + EVE)
        at = datetime.fromtimestamp(due, UTC).isoformat()
        called = min(BY_CALLS, self.count)
        made = _make(self.world.endpoints, prefix, called, at, folder)
        others = [name_of(prefix, number) for number in range(called, self.count)]
        jobs = [*made["jobs"], *copies(self.world.postgres, made["jobs"][0], others)]
        left = due - time.time()
        assert left > EVE / 2, f"{self.count} jobs took too long to make: {left:.0f} s are left"
        self.due = float(due)
        self.figures |= {"by_calls": called, "calls_per_s": round(called / made["seconds"])}
        return jobs

    def await_eve(self) -> None:
        """Return shortly before they are due: so long, all is as on any day."""
        eve = self.due - 0.5
        wait_until(lambda: time.time() >= eve, EVE + 600, "the herd to be due")

    def come(self, run: Run) -> None:
        """Their instant, until the last has run; `figures` has what was seen."""
        sizes = [self._sizes()]
        daemons = self._daemons()
        usual = self.memory()
        for service in daemons:
            Path(f"/proc/{service.pid}/clear_refs").write_text("5")  # its peak counts from now on
        blocks: dict[str, float] = defaultdict(float)
        most = [0]

        def waiting() -> int:
            count = self._waiting()
            most[0] = max(most[0], count)
            return count

        def drained() -> bool:
            for name, member in self.world.members.items():
                blocks[name] = max(blocks[name], _gauge(member, LONGEST_BLOCK))
            return waiting() == 0 and self._ended() == self.count

        with run.journal.fault("herd", "all members and workers", jobs=self.count) as fault:
            fault.effect_of(lambda: waiting() > 500, 30, "more runs to wait than there are slots")
            wait_until(drained, DRAINED_WITHIN, "all of the herd to have run", every=2.0)
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

    def rows(self) -> dict[str, tuple[int, ...]]:
        """Of its runs, by state: how many, of how many jobs, and the greatest number of times that
        one was dispatched, tried, and lost.
        """
        found = self.world.postgres.sql(STATES, f"{name_of(self.prefix, 0)[:-1]}%")
        return {str(state): tuple(map(int, counts)) for state, *counts in found}

    def lateness(self, run: Run, names: Iterable[str], until: float) -> dict[str, float]:
        """Of these each-second probes, of what was due from the herd's instant on: how much of it
        began, and how late. The rest was merged into later times.
        """
        wanted = {f"{run.prefix}-{name}" for name in names}
        late = sorted(
            line["at"] - at
            for line in run.starts()
            if line["job"] in wanted
            and line["attempt"] == 1
            and self.due <= (at := datetime.fromisoformat(line["nominal"]).timestamp()) < until
        )
        due = len(wanted) * int(until - self.due)
        if not late:
            return {"due": due, "started": 0, "max_s": until - self.due}
        middle, high = late[len(late) // 2], late[int(len(late) * 0.99)]
        return {
            "due": due,
            "started": len(late),
            "p50_s": round(middle, 3),
            "p99_s": round(high, 3),
            "max_s": round(late[-1], 3),
        }

    def starts(self, run: Run) -> list[dict[str, Any]]:
        """The starts of the herd's own jobs, by its own lines."""
        head = name_of(self.prefix, 0)[:-1]
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

    def _daemons(self) -> list[Service]:
        return [*self.world.members.values(), *self.world.workers.values()]

    def _waiting(self) -> int:
        [(count,)] = self.world.postgres.sql(WAITING, datetime.fromtimestamp(self.due, UTC))
        return int(count)

    def _ended(self) -> int:
        return sum(counts[0] for counts in self.rows().values())

    def _sizes(self) -> tuple[int, ...]:
        [sizes] = self.world.postgres.sql(SIZES)
        return sizes


LONGEST_BLOCK = "schedd_event_loop_longest_block_seconds"


def _make(
    endpoints: Sequence[str], prefix: str, count: int, at: str, folder: Path
) -> dict[str, Any]:
    words = (",".join(endpoints), prefix, str(count), at, os.fspath(folder))
    done = subprocess.run(
        [sys.executable, "-m", "faults.herding", *words],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, f"the herd can't be made: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
