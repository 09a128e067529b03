"""Shared by all tests: the order and concurrency of tests, and the measured figures."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from execnet import XSpec
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from support import distribution, preloaded, repeated
from support.turnstile import Turnstile

# In CI examples are the same for the same change. Elsewhere each session draws new ones, and each
# failure becomes a test. There is no deadline: durations depend on the load of the machine.
ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", ANY_PACE, derandomize=True)
settings.register_profile("here", ANY_PACE)
settings.load_profile("ci" if os.environ.get("CI") else "here")

FIGURES = "figures"
STAND_BACK = 10
GARBAGE = (10_000, 10, 20)
"""New objects before a search for garbage, and searches before one of the next generation."""

pytest_plugins = ["support.databases", "support.shared_workers"]

_FIGURES = pytest.StashKey[list[str]]()
_SHARED = pytest.StashKey[Path]()
"""A folder for all processes of this session."""
TURNSTILE = "turnstile"
_INSIDE = pytest.StashKey[ExitStack]()
_RUNNING = pytest.StashKey[ExitStack]()
_ALONE = pytest.StashKey[bool]()
"""Whether the next test is alone, too: the process stays alone, and others wait once."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []
    if not hasattr(config, "workerinput"):
        config.stash[_RUNNING] = running = ExitStack()
        config.stash[_SHARED] = Path(running.enter_context(TemporaryDirectory(prefix="tests-")))


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_RUNNING].close()


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    started = preloaded.started(config.stash[_SHARED], config.invocation_params.args, specs)
    config.stash[_RUNNING].enter_context(started)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the search for garbage, which is a tenth of the time, and keep what remains
    out of later searches. Those are rare: without old objects, the interpreter would search all
    new ones far too often.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        gc.enable()


def pytest_configure_node(node: WorkerController) -> None:
    """Give each test process the folder of the turnstile."""
    node.workerinput[TURNSTILE] = os.fspath(node.config.stash[_SHARED])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wrong = (
        distribution.misplaced(item.nodeid, getattr(item, "fixturenames", ())) for item in items
    )
    if reasons := [reason for reason in wrong if reason]:
        raise pytest.UsageError("support/distribution.py: " + "; ".join(reasons))
    items.sort(
        key=lambda item: (
            distribution.start_order(item.nodeid),
            distribution.uses_shared_cluster(getattr(item, "fixturenames", ())),
            _is_alone(item),
        )
    )


def _is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Wait outside of the measured time of the test."""
    folder = getattr(item.config, "workerinput", {}).get(TURNSTILE)
    if folder is None or distribution.waits_for_clusters(item.nodeid):
        yield
        return
    inside, turnstile = item.config.stash.setdefault(_INSIDE, ExitStack()), Turnstile(Path(folder))
    if not _is_alone(item):
        inside.enter_context(turnstile.beside())
    elif not item.config.stash.get(_ALONE, False):
        inside.enter_context(turnstile.alone())
    item.config.stash[_ALONE] = _is_alone(item) and _is_alone(nextitem)
    try:
        yield
    finally:
        if not item.config.stash[_ALONE]:
            inside.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lower the priority of a test process beside whole clusters; it runs none of them later."""
    if hasattr(item.config, "workerinput") and distribution.waits_for_clusters(item.nodeid):
        os.nice(max(0, STAND_BACK - os.nice(0)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return distribution.scheduler(config, log)


@pytest.fixture(scope="session")
def figure(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Add a line to the summary of passed and failed sessions: `figure("submit: 61 ms")`."""
    return pytestconfig.stash[_FIGURES].append


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the figures of one test process to the main one."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[FIGURES] = session.config.stash[_FIGURES]


def pytest_testnodedown(node: WorkerController) -> None:
    """Collect the figures of a test process that ended; a crashed one sent none."""
    node.config.stash[_FIGURES].extend(getattr(node, "workeroutput", {}).get(FIGURES, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    repeated.remember(terminalreporter.config, [report.nodeid for report in reports])
    if figures := sorted(terminalreporter.config.stash[_FIGURES]):
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)
