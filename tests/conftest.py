"""What all tests share: figures that they measured are printed at the end of the session."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

# In CI the same change gives the same answer twice; everywhere else examples are drawn anew, and
# what they find is kept as a test.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

_FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


@pytest.fixture(scope="session")
def figure(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """`figure("submit to result: median 61 ms")` stands in the summary, passed or failed."""
    return pytestconfig.stash[_FIGURES].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if figures := terminalreporter.config.stash[_FIGURES]:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)
