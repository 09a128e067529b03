"""What a fault costs those whom it isn't meant for: how long users wait, how late jobs start, and
what the daemons hold meanwhile; each against the quiet time before, in the same run.

    with Bystanders(run) as others:
        others.watch(8.0, "quiet")
        with attacked(…):
            others.watch(15.0, "attack")
    others.judge()
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faults.scenario import Run
from schedclient import SyncClient

EVERY = 0.05
"""Seconds between two calls of the reading user."""
PATIENCE = 20.0
FACTOR, FLOOR = 2.0, 0.25
"""A p99 may be so many times the quiet one, or so many seconds more: what two cores that others use
too need to tell a slower cluster from a busier machine."""
GREATER_BY = 160
"""MiB that a member may hold more while it is attacked; a single message could cost it 900."""
GRPCIO_ITSELF = "Exception not handled by _handle_exceptions"
"""What grpcio logs of a call that was given up before it began."""


class Bystanders:
    """An ordinary user who reads, round and round, and the records of all others."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reads: list[tuple[float, float]] = []
        self._failed: list[str] = []
        self._over = threading.Event()
        self._windows: dict[str, tuple[float, float]] = {}
        self._memory: dict[str, float] = {}
        self._thread = threading.Thread(target=self._read, name="bystander")
        world = run.world
        self._daemons = {**world.members, **world.workers}
        self._pids = {name: each.pid for name, each in self._daemons.items()}
        self._marks = {name: each.mark() for name, each in self._daemons.items()}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(PATIENCE * 2)

    def watch(self, seconds: float, what: str) -> None:
        """Let so much time pass, as a window of this name."""
        began, greatest = time.time(), 0.0
        while time.time() < began + seconds:
            greatest = max(greatest, *(_rss(each.pid) for each in self._run.world.members.values()))
            self._run.ride(0.25)
        self._windows[what] = (began, time.time())
        self._memory[what] = greatest

    def judge(self) -> None:
        """Write down the figures; AssertionError where others were made to suffer."""
        world = self._run.world
        figures: dict[str, Any] = {
            "reads_p99_s": self._p99(lambda within: self._reading(within)),
            "writes_p99_s": self._p99(lambda within: self._writing(within)),
            "late_p99_s": self._p99(lambda within: self._lateness(within)),
            "member_mib": {what: round(mib) for what, mib in self._memory.items()},
        }
        self._run.figures |= figures
        assert not self._failed, f"calls of an ordinary user failed: {self._failed[:3]}"
        pids = {name: each.pid for name, each in self._daemons.items()}
        assert pids == self._pids, "every process is the one that it was"
        assert all(each.alive() for each in self._daemons.values())
        for name in ("reads_p99_s", "writes_p99_s", "late_p99_s"):
            quiet, attack = figures[name]["quiet"], figures[name]["attack"]
            most = max(FACTOR * quiet, quiet + FLOOR)
            assert attack <= most, f"{name}: {attack} in the attack, {quiet} before it"
        grown = self._memory["attack"] - self._memory["quiet"]
        assert grown <= GREATER_BY, f"a member grew by {grown:.0f} MiB"
        for name, daemon in self._daemons.items():
            told = daemon.said_since(self._marks[name]).split("Traceback (most recent call last)")
            ours = [before for before in told[:-1] if GRPCIO_ITSELF not in before[-300:]]
            printed = [
                each
                for each in ours
                if "_schedule_rpc_coro" not in told[told.index(each) + 1][:300]
            ]
            assert not printed, f"{name} met a bug: …{printed[0][-300:]}"
        assert world.lacking() is None

    def _p99(self, of: Any) -> Mapping[str, float]:
        return {what: _quantile(of(within)) for what, within in self._windows.items()}

    def _reading(self, within: tuple[float, float]) -> list[float]:
        return [took for at, took in self._reads if within[0] <= at < within[1]]

    def _writing(self, within: tuple[float, float]) -> list[float]:
        """Of the users who submit, make, pause, edit and delete, by what they wrote down."""
        file = self._run.directory / "clients.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        began = {line["op"]: line["at"] for line in lines if line["phase"] == "invoke"}
        ended = {line["op"]: line["at"] for line in lines if line["phase"] != "invoke"}
        return [
            ended[op] - at
            for op, at in began.items()
            if op in ended and within[0] <= at < within[1]
        ]

    def _lateness(self, within: tuple[float, float]) -> list[float]:
        names = {probe.name for probe in self._run.mix}
        return [
            line["at"] - due
            for line in self._run.starts()
            if line["job"] in names
            and line["attempt"] == 1
            and within[0]
            <= (due := datetime.fromisoformat(line["nominal"]).timestamp())
            < within[1]
        ]

    def _read(self) -> None:
        with SyncClient(self._run.world.endpoints, timeout=PATIENCE) as client:
            job = next(iter(self._run.crew.job_ids))
            calls: Sequence[Callable[[], object]] = (
                lambda: [*client.jobs.list(limit=20)],
                lambda: [*client.runs.list(limit=20)],
                lambda: client.jobs.get(job),
                client.cluster.status,
            )
            number = 0
            while not self._over.wait(EVERY):
                number += 1
                began, clock = time.time(), time.monotonic()
                try:
                    calls[number % len(calls)]()
                except Exception as error:  # noqa: BLE001 - told by the thread that judges
                    self._failed.append(repr(error))
                self._reads.append((began, time.monotonic() - clock))


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _quantile(values: Sequence[float], part: float = 0.99) -> float:
    assert values, "nothing was measured"
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)
