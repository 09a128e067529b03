"""Two clusters of real processes: `calm`, where nothing is broken, and `rough`, where all may be.

Both have the shortest leases there are, so that a loss is seen within seconds. They never run at
the same time: two cores support one of them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from schedclient import SyncClient
from schedctl.dev.servers.processes import find
from support.cluster import DevCluster, dev_cluster

TTL = 3.0
"""Seconds that the leases of members and workers live."""

SHORT_LEASES = [f"schedd.member_ttl={TTL:g}s", f"schedd.worker_ttl={TTL:g}s"]

CALM_SLOTS = 4

_ROUGH = pytest.StashKey[DevCluster]()
_CALM = pytest.StashKey[DevCluster]()


SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
"""The key that signs webhooks."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the clusters after the last of their tests: three idle members use a sixth of a core."""
    if nextitem is not None and "/acceptance/" not in nextitem.nodeid:
        for key in (_ROUGH, _CALM):
            if (cluster := item.config.stash.get(key, None)) is not None:
                cluster.down()


@pytest.fixture(scope="session")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    key = tmp_path_factory.mktemp("keys") / "webhooks"
    key.write_text(SECRET)
    return [*SHORT_LEASES, f"schedd.notifications.signing_key={key}"]


@pytest.fixture(scope="session")
def calm(request: pytest.FixtureRequest, overrides: list[str]) -> Iterator[DevCluster]:
    """Three members and two workers of four slots; leave it as it was."""
    if (rough := request.config.stash.get(_ROUGH, None)) is not None:
        rough.down()  # its next test, if there is one, starts it again
    options = {"members": 3, "workers": 2, "slots": CALM_SLOTS, "overrides": overrides}
    with dev_cluster(request.session, **options) as cluster:
        request.config.stash[_CALM] = cluster
        yield cluster


@pytest.fixture(scope="session")
def calm_client(calm: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(calm.endpoints) as client:
        yield client


@pytest.fixture(scope="session")
def rough_cluster(request: pytest.FixtureRequest, overrides: list[str]) -> Iterator[DevCluster]:
    options = {"members": 3, "workers": 3, "slots": 16, "overrides": overrides}
    with dev_cluster(request.session, **options) as cluster:
        request.config.stash[_ROUGH] = cluster
        yield cluster


@pytest.fixture
def rough(rough_cluster: DevCluster) -> Iterator[DevCluster]:
    """Three members and three workers; what a test killed is there again before the next."""
    rough_cluster.up()
    yield rough_cluster
    for name in ("etcd", "w1", "w2", "w3"):
        if (process := find(rough_cluster.entry(name)["pid"])) is not None and process.paused():
            rough_cluster.resume(name)


@pytest.fixture
def client(rough: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(rough.endpoints) as client:
        yield client


def pids(cluster: DevCluster) -> dict[str, int]:
    """Return the pids of all daemons: a daemon that was started again has another one."""
    record = cluster.record
    named = {part["name"]: part["pid"] for part in (*record["members"], *record["workers"])}
    return named | {"etcd": record["etcd"][0]["pid"], "postgres": record["postgres"]["pid"]}
