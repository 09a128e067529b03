"""Faces that take programs of others: a Prometheus that judges the alerts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from faces.prometheus import Prometheus
from support.cluster import DevCluster, dev_cluster

PROGRAMS = ("prometheus", "promtool")


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    """All of them, or a reason."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        lack = f"{', '.join(missing)} missing: apt-get install prometheus"
        (pytest.fail if os.environ.get("FACES_REQUIRED") else pytest.skip)(lack)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    with dev_cluster(request.session, members=2, workers=1) as made:
        yield made


@pytest.fixture(scope="session")
def prometheus(
    cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the cluster each second, and waits 2 s before an alert fires."""
    targets = {
        "schedd": [member["http"] for member in cluster.record["members"]],
        "workerd": [worker["http"] for worker in cluster.record["workers"]],
    }
    with Prometheus.started(tmp_path_factory.mktemp("prometheus"), targets) as made:
        yield made
