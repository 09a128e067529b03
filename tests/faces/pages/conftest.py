"""A cluster and a browser for all tests of the pages; each test has a page of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from faces.pages import browser as browsers
from faces.pages import jobs
from faces.pages.browser import Watched
from support.cluster import DevCluster, dev_cluster


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    """A browser, or a reason. Of the programs of the other faces none is needed here."""
    if shutil.which(browsers.PROGRAM) is None:
        lack = f"{browsers.PROGRAM} is missing: apt-get install chromium"
        (pytest.fail if os.environ.get("FACES_REQUIRED") else pytest.skip)(lack)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """Two members, two workers, and jobs of each kind that pages tell of."""
    with dev_cluster(request.session, members=2, workers=2, slots=8) as made:
        jobs.apply(made)
        jobs.apply(made, jobs.HARD_MANIFEST)
        yield made


@pytest.fixture(scope="session")
def address(cluster: DevCluster) -> str:
    """Where the pages are, and some runs have been."""
    return f"http://{cluster.record['members'][0]['http']}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as made:
        yield made


@pytest.fixture
def web(browser: Browser, address: str) -> Iterator[Watched]:
    """A page on a desk, in light colours; a fault in it fails the test."""
    with browsers.watched(browser, address) as made:
        yield made
