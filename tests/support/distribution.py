"""Which tests run beside which, when several processes share the suite (`make test`).

The suite waits more than it computes, so pytest-xdist runs it in several processes, on two cores
too. Tests that share a server run in the same process, in their order, so that each server is
started once. All other tests are distributed by file. Long groups begin first.

Whole clusters run in four processes: `faults` has the cluster with faults, `quiet` the cluster
without faults, `own` files with their own clusters, and `pair` a cluster of two members. Other
files with their own cluster are in `faults` and `quiet`, so that the first three take equally long.
All tests beside them have a lower priority, because tests of clusters judge start times. Tests
marked `alone` have no other cluster's test beside them (`turnstile.py`). They are the last ones of
their group, so that other processes wait once.

The scheduler is set by a hook: `--dist loadgroup` silently groups nothing under pytest 9.2
(pytest-xdist issue 1386).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

FAULTS, QUIET, OWN, PAIR = "faults", "quiet", "own", "pair"
CLUSTERS = (FAULTS, QUIET, OWN, PAIR)
"""Groups with whole clusters, in the order in which they start."""
FIXTURES = {FAULTS: "session_fault_cluster", QUIET: "quiet_cluster", PAIR: "session_pair"}
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
    ),
    QUIET: ("acceptance/",),
    OWN: (
        "acceptance/test_blocking_handlers.py",
        "acceptance/test_broadcast.py",
        "acceptance/test_calls_per_run.py",
        "acceptance/test_demo.py",
        "acceptance/test_fuzz.py",
        "acceptance/test_other_databases.py",
        "acceptance/test_pg_restore.py",
        "acceptance/test_rejections.py",
        "acceptance/test_restore.py",
        "acceptance/test_unknown_tokens.py",
    ),
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

TURNS = ("integration/", "conformance/", "properties/", "unit/")
"""Beginnings of ids, in the order in which their tests start, after all clusters: files of `unit`
are the shortest ones, and end at about the same time.
"""


class ByServer(LoadScopeScheduling):
    """Work in units of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def scheduler(config: pytest.Config, log: Producer) -> ByServer:
    config.option.loadscopereorder = False  # the order of collection, which is `start_order`'s
    return ByServer(config, log)


@cache
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
    if (own := group(nodeid)) in CLUSTERS:
        return CLUSTERS.index(own)
    name = nodeid.removeprefix("tests/")
    found = (place for place, start in enumerate(TURNS) if name.startswith(start))
    return len(CLUSTERS) + next(found, len(TURNS))


def uses_shared_cluster(fixtures: Collection[str]) -> bool:
    """Return whether a test uses a cluster of several files.

    Such tests run after all tests with their own cluster, because an idle cluster takes a tenth of
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
