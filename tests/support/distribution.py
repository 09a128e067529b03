"""Which tests run beside which, when several processes share the suite (`make test`).

The suite waits more than it computes, so pytest-xdist runs it in several processes, on two cores
too. Tests that share a server run in the same process, in their order, so that each server is
started once. All other tests are distributed by file. Long groups begin first.

Whole clusters run in two processes: `faults` has the cluster with faults, `quiet` the cluster
without faults. Files with their own cluster are divided between the two, so that both take equally
long. All tests beside them have a lower priority, because tests of clusters judge start times.
Tests marked `alone` have no other test beside them (`turnstile.py`).

The scheduler is set by a hook: `--dist loadgroup` silently groups nothing under pytest 9.2
(pytest-xdist issue 1386).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

FAULTS, QUIET = "faults", "quiet"
PAIR = "pair"
CLUSTERS = {FAULTS: "session_fault_cluster", QUIET: "quiet_cluster"}
FIXTURES = {**CLUSTERS, PAIR: "session_pair"}
"""Name of a group → the fixture that only its tests may use."""

GROUPS = {
    FAULTS: (
        "acceptance/test_backfill.py",
        "acceptance/test_chains.py",
        "acceptance/test_cluster_pause.py",
        "acceptance/test_drain.py",
        "acceptance/test_events.py::test_a_stream_continues_at_another_member",
        "acceptance/test_events.py::test_streams_end_with_a_member",
        "acceptance/test_failover.py",
        "acceptance/test_fencing.py",
        "acceptance/test_handover.py",
        "acceptance/test_losses.py",
        "acceptance/test_notifications.py::test_the_next_owner_sends",
        "acceptance/test_outages.py",
        "acceptance/test_overlap.py",
        "acceptance/test_pools.py",
        "acceptance/test_pre_dispatch.py",
        "acceptance/test_redrives.py",
        "acceptance/test_retries.py::test_each_retry_starts_at_the_time_of_the_formula_although",
        # own clusters:
        "acceptance/test_certificates.py",
        "acceptance/test_clusters_apart.py",
        "acceptance/test_demo.py",
        "acceptance/test_rejections.py",
        "acceptance/test_restore.py",
    ),
    QUIET: ("acceptance/",),
    PAIR: (
        "integration/test_cluster_doctor.py",
        "integration/test_database_down.py",
        "integration/test_grpc_interface.py",
        "integration/test_worker_warnings.py",
    ),
    "store": ("integration/store/",),
    "api": ("integration/api/",),
    "reconcile": ("integration/reconcile/",),
    "etcd": ("conformance/etcd/",),
}
"""Name of a group → beginnings of the ids of its tests; of several, the longest counts."""

APART = "smoke/"
"""Tests with a cluster of their own, where nothing is judged by the second."""

TURNS = (
    "acceptance/test_demo",
    "acceptance/test_restore",
    "acceptance/",
    "integration/",
    "conformance/",
)
"""Beginnings of ids, in the order in which their tests start."""


class ByServer(LoadScopeScheduling):
    """Work in units of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def scheduler(config: pytest.Config, log: Producer) -> ByServer:
    config.option.loadscopereorder = False  # the order of collection, which is `start_order`'s
    return ByServer(config, log)


def group(nodeid: str) -> str:
    """The server that a test shares, or its file.

    >>> group("tests/integration/store/test_races.py::test_two_owners")
    'store'
    """
    name = nodeid.removeprefix("tests/")
    if name.startswith(APART):
        return nodeid
    shared = {
        start: group
        for group, starts in GROUPS.items()
        for start in starts
        if name.startswith(start)
    }
    return shared[max(shared, key=len)] if shared else name.partition("::")[0]


def start_order(nodeid: str) -> int:
    """Return the rank of a test in the order of starts: a small one is early."""
    name = nodeid.removeprefix("tests/")
    found = (place for place, start in zip(count(), TURNS) if name.startswith(start))
    return next(found, len(TURNS))


def uses_shared_cluster(fixtures: Collection[str]) -> bool:
    """Return whether a test uses a cluster of several files.

    Such tests run after all tests with their own cluster, because an idle cluster takes a sixth of
    a core.
    """
    return any(fixture in fixtures for fixture in FIXTURES.values())


def waits_for_clusters(nodeid: str) -> bool:
    """Return whether a test gives way to whole clusters: all tests do, except tests of clusters."""
    return group(nodeid) not in CLUSTERS


def misplaced(nodeid: str, fixtures: Collection[str]) -> str | None:
    """Return why a test is in the wrong group; None if it isn't.

    >>> misplaced("tests/acceptance/test_drain.py::test_a", ["quiet_cluster"])
    'tests/acceptance/test_drain.py::test_a uses quiet_cluster, but is in the group faults'
    """
    own = group(nodeid)
    for name, fixture in FIXTURES.items():
        if fixture in fixtures and own != name:
            return f"{nodeid} uses {fixture}, but is in the group {own}"
    return None
