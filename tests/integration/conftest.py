"""A cluster that several files use: `pair`. Files of the group `pair` run in the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster import DevCluster, dev_cluster
from support.distribution import PAIR, group

_CLUSTER = pytest.StashKey[DevCluster]()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the cluster after the last of its tests, because idle members take processor time."""
    cluster = item.config.stash.get(_CLUSTER, None)
    if cluster is not None and nextitem is not None and group(nextitem.nodeid) != PAIR:
        cluster.down()
        del item.config.stash[_CLUSTER]


@pytest.fixture(scope="session")
def session_pair(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """Two members and a worker. Leases are long: members are suspended. m2 serves reflection."""
    overrides = ["schedd.member_ttl=30s", "m2.reflection=true"]
    with dev_cluster(request.session, members=2, workers=1, overrides=overrides) as cluster:
        request.config.stash[_CLUSTER] = cluster
        yield cluster


@pytest.fixture(scope="module")
def pair(session_pair: DevCluster) -> DevCluster:
    """All of the cluster runs, also if the file before stopped a part."""
    session_pair.up()
    return session_pair
