"""Which tests run beside which, when several processes share the suite (`make test`).

The suite waits more than it computes, so pytest-xdist runs it in three processes, on two cores too.
Tests that share a server stay together in one of them, in their order, so that each server is
started once; all others stay together by file. Long groups begin first.

All whole clusters run in one process, one at a time, and begin first: their starts are judged by
the second, and two cores support no more than one. All tests beside them have a lower priority,
and wait for tests marked `alone` (`turnstile.py`).

The scheduler is handed in by hook: `--dist loadgroup` silently groups nothing under pytest 9.2
(pytest-xdist issue 1386).
"""

from __future__ import annotations

from itertools import count

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "clusters": ("acceptance/",),
    "store": ("integration/store/",),
    "api": ("integration/api/",),
    "reconcile": ("integration/reconcile/",),
    "etcd": ("conformance/etcd/",),
}
"""Name of a group → what the paths of its files begin with; of several, the longest counts."""

APART = "smoke/"
"""Tests with a cluster of their own, where nothing is judged by the second."""

TURNS = (
    "acceptance/test_demo",
    "acceptance/test_restore",
    "acceptance/test_cluster_pause",
    "acceptance/test_failover",
    "acceptance/test_handover",
    "acceptance/test_outages",
    "acceptance/test_overlap",
    "acceptance/test_transfer_leader",
    "acceptance/",
    "integration/",
    "conformance/",
)
"""Beginnings of paths, in the order in which their tests start: the first two have
clusters of their own, the next share the fault cluster, the rest of acceptance the quiet cluster.
"""


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
    path = _path(nodeid)
    if path.startswith(APART):
        return nodeid
    shared = {
        start: name for name, starts in GROUPS.items() for start in starts if path.startswith(start)
    }
    return shared[max(shared, key=len)] if shared else path


def start_order(nodeid: str) -> int:
    """Return the rank of a test in the order of starts: a small one is early."""
    path = _path(nodeid)
    found = (place for place, start in zip(count(), TURNS) if path.startswith(start))
    return next(found, len(TURNS))


def waits_for_clusters(nodeid: str) -> bool:
    """Whether a test waits for the daemons of whole clusters: all do except those of clusters."""
    return group(nodeid) != "clusters"


def _path(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")
