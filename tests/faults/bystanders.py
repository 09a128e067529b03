"""Cost of a fault for the callers it isn't meant for: how long users wait, how late jobs start, and
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
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faults.scenario import Run
from schedclient import SyncClient

EVERY = 0.02
"""Seconds between two calls of a user."""
WRITERS = 3
"""Users who write, round and round, each to a job of its own."""
LEAST = 300
"""Reads, and writes, of a window: fewer, and their p99 is the longest of them."""
WAIT_TIMEOUT = 20.0
FACTOR = 2.0
FLOORS = {"reads_p99_s": 0.1, "writes_p99_s": 0.1, "late_p99_s": 0.1, "users_p99_s": 0.25}
"""A p99 may be so many times the quiet one, or so many seconds more. The load's own users make
about 70 calls in a window: their p99 is the longest of them.
"""
GREATER_BY = 160
"""MiB that a member may hold more while it is attacked; a single message could cost it 900."""
GRPCIO_ITSELF = "Exception not handled by _handle_exceptions"
"""Log line of grpcio for a call that was given up before it began."""


class Bystanders:
    """Ordinary users who read and write, round and round, and the records of all others."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reads: list[tuple[float, float]] = []
        self._writes: list[tuple[float, float]] = []
        self._failed: list[str] = []
        self._over = threading.Event()
        self._windows: dict[str, tuple[float, float]] = {}
        self._memory: dict[str, float] = {}
        self._threads = [threading.Thread(target=self._read, name="reading bystander")]
        self._threads += [
            threading.Thread(target=self._write, args=(number,), name=f"writing bystander {number}")
            for number in range(WRITERS)
        ]
        world = run.world
        self._daemons = {**world.members, **world.workers}
        self._pids = {name: each.pid for name, each in self._daemons.items()}
        self._marks = {name: each.mark() for name, each in self._daemons.items()}

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for each in self._threads:
            each.join(WAIT_TIMEOUT * 2)

    def watch(
        self,
        seconds: float,
        what: str,
        until: Callable[[], bool] = lambda: True,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Let so much time pass, as a window of this name: and until there are enough calls to
        judge by, and `until` is true, within `timeout`.
        """
        began, greatest = time.time(), 0.0

        def enough() -> bool:
            within = (began, time.time())
            seen = min(len(_within(self._reads, within)), len(_within(self._writes, within)))
            return seen >= LEAST and until()

        while time.time() < began + seconds or not enough():
            late = f"{what}: not enough in {timeout:g} s {self._failed[:3]}"
            assert time.time() < began + timeout, late
            greatest = max(greatest, *(_rss(each.pid) for each in self._run.world.members.values()))
            self._run.wait(0.25)
        self._windows[what] = (began, time.time())
        self._memory[what] = greatest

    def judge(self) -> None:
        """Write down the figures; AssertionError where others were made to suffer."""
        world = self._run.world
        figures: dict[str, Any] = {
            "reads_p99_s": self._quantile_of(partial(_within, self._reads)),
            "writes_p99_s": self._quantile_of(partial(_within, self._writes)),
            "users_p99_s": self._quantile_of(self._users),
            "late_p99_s": self._quantile_of(self._lateness),
            "calls": {
                what: [len(_within(each, within)) for each in (self._reads, self._writes)]
                for what, within in self._windows.items()
            },
            "windows_s": {what: round(end - began) for what, (began, end) in self._windows.items()},
            "member_mib": {what: round(mib) for what, mib in self._memory.items()},
        }
        self._run.figures |= figures
        assert not self._failed, f"calls of an ordinary user failed: {self._failed[:3]}"
        pids = {name: each.pid for name, each in self._daemons.items()}
        assert pids == self._pids, "every process is the one that it was"
        assert all(each.alive() for each in self._daemons.values())
        stood = self._stood_still(self._windows["attack"])
        for name, floor in FLOORS.items():
            quiet, attack = figures[name]["quiet"], figures[name]["attack"]
            most = max(FACTOR * quiet, quiet + floor)
            still = f"; the machine stood still for {stood} s" if stood else ""
            assert attack <= most, f"{name}: {attack} in the attack, {quiet} before it{still}"
        grown = self._memory["attack"] - self._memory["quiet"]
        assert grown <= GREATER_BY, f"a member grew by {grown:.0f} MiB"
        for name, daemon in self._daemons.items():
            parts = daemon.said_since(self._marks[name]).split("Traceback (most recent call last)")
            ours = [before for before in parts[:-1] if GRPCIO_ITSELF not in before[-300:]]
            printed = [
                each
                for each in ours
                if "_schedule_rpc_coro" not in parts[parts.index(each) + 1][:300]
            ]
            assert not printed, f"{name} met a bug: …{printed[0][-300:]}"
        assert world.lacking() is None

    def _quantile_of(
        self, of: Callable[[tuple[float, float]], Sequence[float]], part: float = 0.99
    ) -> Mapping[str, float]:
        return {what: _quantile(of(within), part) for what, within in self._windows.items()}

    def _stood_still(self, within: tuple[float, float]) -> float:
        """The longest that the machine itself stood still."""
        file = self._run.directory / "stalls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        stalls = [json.loads(line) for line in lines if line.endswith("}")]
        late = [
            each["late"] for each in stalls if within[0] <= each["at"] < within[1] + each["late"]
        ]
        return float(max(late, default=0.0))

    def _users(self, within: tuple[float, float]) -> list[float]:
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
        with SyncClient(self._run.world.endpoints, timeout=WAIT_TIMEOUT) as client:
            job = next(iter(self._run.crew.job_ids))
            calls: Sequence[Callable[[], object]] = (
                lambda: [*client.jobs.list(limit=20)],
                lambda: [*client.runs.list(limit=20)],
                lambda: client.jobs.get(job),
                client.cluster.status,
            )
            self._round(self._reads, calls)

    def _write(self, number: int) -> None:
        """Edits of a job that never runs."""
        name = f"bystander-{number}-of-{self._run.prefix}"  # no job of the record
        with SyncClient(self._run.world.endpoints, timeout=WAIT_TIMEOUT) as client:
            client.jobs.create(name, shell={"argv": ["true"]}, on_demand=True)
            edits: Sequence[Callable[[], object]] = [
                lambda mark=mark: client.jobs.update(name, labels={"mark": mark}, mask=["labels"])
                for mark in "ab"
            ]
            self._round(self._writes, edits)
            client.jobs.delete(name)

    def _round(
        self, took: list[tuple[float, float]], calls: Sequence[Callable[[], object]]
    ) -> None:
        """Make calls one after another until the end."""
        number = 0
        while not self._over.wait(EVERY):
            number += 1
            began, clock = time.time(), time.monotonic()
            try:
                calls[number % len(calls)]()
            except Exception as error:  # noqa: BLE001 - reported by the thread that judges
                self._failed.append(repr(error))
            took.append((began, time.monotonic() - clock))


def _within(took: Sequence[tuple[float, float]], within: tuple[float, float]) -> list[float]:
    return [seconds for at, seconds in took if within[0] <= at < within[1]]


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _quantile(values: Sequence[float], part: float) -> float:
    assert values, "nothing was measured"
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)
