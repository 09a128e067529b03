"""World of a session, shared by all rows, and the frame in which each row is run and judged.

`make faults` sets FAULTS_REQUIRED=1: without root or a needed program the rows then fail instead of
being skipped. EVIDENCE=1 appends what each row measured to docs/evidence.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from faults import choice, evidence, outage, outcome
from faults.checker import check
from faults.checker.restored import hole_of
from faults.checker.verdict import Status, Verdict
from faults.day import FIRST_LEAD, JOBS, TIMINGS, Day, await_day, clock_before
from faults.history import History
from faults.scenario import Run
from faults.world.needs import lacking_here
from faults.world.world import World
from support import version_before

KEPT = Path(tempfile.gettempdir()) / "schedd-faults-kept"
MOST_SHOWN = 12
"""Violations that a failed test prints."""
HANDLERS_AT_ONCE = 64
"""Slots of a worker of Python handlers, which cost less than programs do."""
SEED = int(os.environ.get("SEED", "0") or 0)

FaultRun = Callable[..., AbstractContextManager[Run]]
DayRun = Callable[[Day], AbstractContextManager[Run]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--row",
        action="append",
        default=[],
        metavar="NAME",
        help="run the test of exactly this name alone; may be given several times",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Of the tests that -m and -k leave, take those whose names were given, if any were."""
    known = [item.name for item in items]
    yield
    wanted = config.getoption("row", [])
    if not wanted:
        return
    if why := choice.refusal(wanted, known, [item.name for item in items]):
        items.clear()
        raise pytest.UsageError(why)
    config.hook.pytest_deselected(items=[item for item in items if item.name not in wanted])
    items[:] = [item for item in items if item.name in wanted]


class Shared:
    """World of the session; built at first use, and again if it can't be repaired."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._logs: Path | None = None

    def whole(self) -> World:
        """Return it, with all parts ready."""
        if self._world is not None and not self._of_today(self._world):
            self.down()
        return self._ready(World)

    def replicated(self) -> World:
        """Return a world whose PostgreSQL has a standby: a new one, as it can be promoted once."""
        self.down()
        return self._ready(lambda logs: World(logs, replicated=True))

    def before(self) -> World:
        """A new one, of the version before this one: its schema, members and workers."""
        self.down()
        self._logs = Path(tempfile.mkdtemp(prefix="schedd-faults-logs-"))
        code = version_before.lay(self._logs)
        self._world = World(self._logs, code=code).__enter__()
        return self._world

    def clocked(self, day: Day) -> World:
        """Return a world with a movable clock, set before this day; of two workers."""
        clock = self._world.clock if self._world is not None else None
        if clock is None or clock.now() >= day.bounds()[0] - FIRST_LEAD:
            self.down()
        return self._ready(lambda logs: World(logs, workers=2, clock=clock_before(day)))

    def herding(self) -> World:
        """Return a new world whose workers run the herd's handler, many at once, with a disk for
        the rows of so many runs.
        """
        self.down()
        handlers = ("faults.herd_handler",)
        return self._ready(
            lambda logs: World(logs, slots=HANDLERS_AT_ONCE, handlers=handlers, database_disk=8192)
        )

    def before_an_outage(self) -> World:
        """The same, whose clock can be moved, and stands before the outage."""
        self.down()
        return self._ready(
            lambda logs: World(
                logs,
                slots=outage.HANDLERS_AT_ONCE,
                handlers=("faults.herd_handler",),
                database_disk=8192,
                clock=outage.clock_before(),
            )
        )

    def _ready(self, build: Callable[[Path], World]) -> World:
        if self._world is not None:
            try:
                self._world.repair()
            except AssertionError as beyond:
                print(f"the test cluster can't be repaired, a new one: {beyond}", file=sys.stderr)
                self.down()
        if self._world is None:
            self._logs = Path(tempfile.mkdtemp(prefix="schedd-faults-logs-"))
            self._world = build(self._logs).__enter__()
        return self._world

    @staticmethod
    def _of_today(world: World) -> bool:
        here = world.code is version_before.HERE
        return here and world.clock is None and not world.replicated

    def down(self) -> None:
        """End it."""
        if self._world is not None:
            self._world.down()
            self._world = None
        if self._logs is not None:
            shutil.rmtree(self._logs, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_world() -> Iterator[Shared]:
    if lack := lacking_here():
        if os.environ.get("FAULTS_REQUIRED"):
            pytest.fail(f"faults can't be injected here: {lack}", pytrace=False)
        pytest.skip(f"faults can't be injected here: {lack}")
    shared = Shared()
    yield shared
    shared.down()


@pytest.fixture
def world(shared_world: Shared) -> World:
    """Three etcd, PostgreSQL, three members, four workers, all ready. A test may break any."""
    return shared_world.whole()


@pytest.fixture
def fault_run(
    world: World, request: pytest.FixtureRequest, figure: Callable[[str], None]
) -> FaultRun:
    """Give the frame of a row: its faults happen inside; it is judged when it is left."""
    return frame(world, request, figure)


@pytest.fixture
def upgrade_run(
    shared_world: Shared, request: pytest.FixtureRequest, figure: Callable[[str], None]
) -> FaultRun:
    """Give the frame of a row whose world begins as one of the version before this one."""
    return frame(shared_world.before(), request, figure)


@pytest.fixture
def replicated(shared_world: Shared) -> World:
    """Give another world, for this test alone: its PostgreSQL has a synchronous standby."""
    return shared_world.replicated()


@pytest.fixture
def replicated_run(
    replicated: World, request: pytest.FixtureRequest, figure: Callable[[str], None]
) -> FaultRun:
    """Give the same frame, in that world."""
    return frame(replicated, request, figure)


@pytest.fixture
def day_run(
    shared_world: Shared, request: pytest.FixtureRequest, figure: Callable[[str], None]
) -> DayRun:
    """Give the frame of a day under the tests' clock, in a world that stands just before it."""

    def framed(day: Day) -> AbstractContextManager[Run]:
        world = shared_world.clocked(day)
        await_day(world, day)
        moved = f"cluster clock from {day.since} on, {day.zone}"
        run = frame(world, request, figure)
        return run(mix=JOBS, timings=TIMINGS, load=False, faketime=moved)

    return framed


def frame(world: World, request: pytest.FixtureRequest, figure: Callable[[str], None]) -> FaultRun:
    """The frame of a row in this world."""

    @contextmanager
    def framed(**options: Any) -> Iterator[Run]:
        name = request.node.name
        stamp = f"{time.strftime('%H%M%S')}-{os.getpid()}"  # two runs may begin in one second
        directory = KEPT / f"{stamp}-{name.replace('[', '-').strip(']')}"
        target = "faults-all" if request.node.get_closest_marker("full") else "faults"
        command = f"make {target} ROW='{name}'"
        run = Run(world, name, directory, seed=SEED, command=command, **options)
        try:
            with run:
                yield run
        except BaseException:
            _tell(run)
            raise
        history = History.read(directory)
        verdict = check(history)
        if history.restore is not None:
            run.add_figures(hole=asdict(hole_of(history)))
        run.recorder.verdict(verdict.as_json())
        figures = verdict.figures
        measured = {name: value for name, value in run.figures.items() if name != "held"}
        figure(
            f"{name}: {figures.judged} scheduled times, late {figures.late},"
            f" missed {figures.missed}, lost {figures.lost}, started twice {figures.doubled},"
            f" longest gap {figures.longest_gap:.1f} s {measured or ''}"
        )
        if verdict.status is not Status.OK:
            _write_down(run, history, verdict)
            _tell(run)
            report = [f"{verdict.status.value}:", *verdict.lines(most=MOST_SHOWN)]
            pytest.fail("\n".join(report), pytrace=False)
        request.addfinalizer(partial(_keep_evidence, request.node, run, history, verdict))

    return framed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember what came of the test itself."""
    report = yield
    outcome.remember(item, report)
    return report


def _keep_evidence(item: pytest.Item, run: Run, history: History, verdict: Verdict) -> None:
    """Once the test has looked at what it measured, too: a row that failed is no evidence."""
    if outcome.failed(item):
        _tell(run)
        return
    _write_down(run, history, verdict)
    if not os.environ.get("FAULTS_KEEP"):
        shutil.rmtree(run.directory)


def _write_down(run: Run, history: History, verdict: Verdict) -> None:
    if os.environ.get("EVIDENCE"):
        evidence.append(run.directory, history, verdict)


def _tell(run: Run) -> None:
    directory = shlex.quote(str(run.directory))
    run.world.postgres.dump(run.directory / "pg_dump.sql")
    print(
        f"\nthe history is kept: {directory}\n"
        f"check again:         cd tests && ../.venv/bin/python -m faults.checker {directory}\n"
        f"run it again:        {run.command}",
        file=sys.stderr,
    )
