"""Outcome of a test, for fixtures that end after it.

A module of its own, for there is one key, and pytest loads a conftest.py beside the one that is
imported.
"""

import pytest

_FAILED = pytest.StashKey[bool]()


def remember(item: pytest.Item, report: pytest.TestReport) -> None:
    """As each phase of it is reported."""
    if report.when == "call":
        item.stash[_FAILED] = report.failed


def failed(item: pytest.Item) -> bool:
    """Whether it did, or never came to its end."""
    return item.stash.get(_FAILED, True)
