"""What all tests share: who runs beside whom, and the figures that were measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from support import distribution, repeated
from support.turnstile import Turnstile

# In CI the same change gives the same answer twice; everywhere else examples are drawn anew, and
# what they find is kept as a test. How long one takes says what else the machine does.
ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", ANY_PACE, derandomize=True)
settings.register_profile("here", ANY_PACE)
settings.load_profile("ci" if os.environ.get("CI") else "here")

FIGURES = "figures"
STAND_BACK = 5

pytest_plugins = ["support.databases"]

_FIGURES = pytest.StashKey[list[str]]()
_TURNSTILE = pytest.StashKey[TemporaryDirectory[str]]()
TURNSTILE = "turnstile"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []
    if not hasattr(config, "workerinput"):
        config.stash[_TURNSTILE] = TemporaryDirectory(prefix="turnstile-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_TURNSTILE].cleanup()


def pytest_configure_node(node: WorkerController) -> None:
    """Tell one process of several where all of them meet."""
    node.workerinput[TURNSTILE] = node.config.stash[_TURNSTILE].name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: distribution.turn(item.nodeid))


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Outside of what measures its time: waiting isn't the test's."""
    told = getattr(item.config, "workerinput", {}).get(TURNSTILE)
    if told is None:
        yield
        return
    turnstile = Turnstile(Path(told))
    alone = item.get_closest_marker("alone") is not None
    with turnstile.alone() if alone else turnstile.beside():
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """One process of several stands back behind whole clusters; it comes to none of them after."""
    if hasattr(item.config, "workerinput") and distribution.stands_back(item.nodeid):
        os.nice(max(0, STAND_BACK - os.nice(0)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return distribution.scheduler(config, log)


@pytest.fixture(scope="session")
def figure(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """`figure("submit to result: median 61 ms")` stands in the summary, passed or failed."""
    return pytestconfig.stash[_FIGURES].append


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One process of several sends its figures home."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[FIGURES] = session.config.stash[_FIGURES]


def pytest_testnodedown(node: WorkerController) -> None:
    """A process of several has ended; one that crashed sent nothing."""
    node.config.stash[_FIGURES].extend(getattr(node, "workeroutput", {}).get(FIGURES, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    repeated.remember(terminalreporter.config, [report.nodeid for report in reports])
    if figures := sorted(terminalreporter.config.stash[_FIGURES]):
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)
