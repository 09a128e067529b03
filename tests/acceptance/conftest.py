"""Two clusters of real processes: `quiet_cluster` without faults, `fault_cluster` with faults.

Leases of workers, and of members with faults, are the shortest ones: a loss is seen within seconds.
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

QUIET_SLOTS = 4

_FAULTS = pytest.StashKey[DevCluster]()
_QUIET = pytest.StashKey[DevCluster]()


SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
"""The key that signs webhooks."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the clusters after the last of their tests: an idle one uses a tenth of a core."""
    if nextitem is not None and "/acceptance/" not in nextitem.nodeid:
        for key in (_FAULTS, _QUIET):
            if (cluster := item.config.stash.get(key, None)) is not None:
                cluster.down()


@pytest.fixture(scope="session")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    key = tmp_path_factory.mktemp("keys") / "webhooks"
    key.write_text(SECRET)
    return [f"schedd.worker_ttl={TTL:g}s", f"schedd.notifications.signing_key={key}"]


@pytest.fixture(scope="session")
def quiet_cluster(request: pytest.FixtureRequest, overrides: list[str]) -> Iterator[DevCluster]:
    """Two members and two workers of four slots; leave it as it was."""
    if (fault_cluster := request.config.stash.get(_FAULTS, None)) is not None:
        fault_cluster.down()  # its next test, if there is one, starts it again
    options = {"members": 2, "workers": 2, "slots": QUIET_SLOTS, "overrides": overrides}
    with dev_cluster(request.session, **options) as cluster:
        request.config.stash[_QUIET] = cluster
        yield cluster


@pytest.fixture(scope="session")
def quiet_client(quiet_cluster: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(quiet_cluster.endpoints) as client:
        yield client


@pytest.fixture(scope="session")
def session_fault_cluster(
    request: pytest.FixtureRequest, overrides: list[str]
) -> Iterator[DevCluster]:
    leases = [*SHORT_LEASES, *overrides]
    options = {"members": 3, "workers": 3, "slots": 16, "overrides": leases}
    with dev_cluster(request.session, **options) as cluster:
        request.config.stash[_FAULTS] = cluster
        yield cluster


@pytest.fixture
def fault_cluster(session_fault_cluster: DevCluster) -> Iterator[DevCluster]:
    """Three members and three workers; what a test killed is there again before the next."""
    session_fault_cluster.up()
    yield session_fault_cluster
    for name in ("etcd", "w1", "w2", "w3"):
        if (
            process := find(session_fault_cluster.entry(name)["pid"])
        ) is not None and process.paused():
            session_fault_cluster.resume(name)


@pytest.fixture
def client(fault_cluster: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(fault_cluster.endpoints) as client:
        yield client


def pids(cluster: DevCluster) -> dict[str, int]:
    """Return the pids of all daemons: a daemon that was started again has another one."""
    record = cluster.record
    named = {part["name"]: part["pid"] for part in (*record["members"], *record["workers"])}
    return named | {"etcd": record["etcd"][0]["pid"], "postgres": record["postgres"]["pid"]}
