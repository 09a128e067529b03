"""Which tests run beside which, when several processes share the suite (`make test`).

The suite waits far more than it computes, so pytest-xdist runs it in more processes than there
are cores. Tests that share a server stay together in one process, in their order, so that each
server is started once; all others stay together by file. Long groups begin first.

The scheduler is handed in by hook: `--dist loadgroup` silently groups nothing under pytest 9.2
(pytest-xdist issue 1386).
"""

from __future__ import annotations

from itertools import count

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "rough cluster": (
        "acceptance/test_failover",
        "acceptance/test_handover",
        "acceptance/test_outages",
    ),
    "calm cluster": ("acceptance/",),
    "demo": ("acceptance/test_demo",),
    "store": ("integration/store/",),
    "api": ("integration/api/",),
    "owner": ("integration/owner/",),
    "etcd": ("conformance/etcd/",),
}
"""Name of a group → what the paths of its files begin with; of several, the longest counts."""

LONGEST_FIRST = ("rough cluster", "demo", "calm cluster", "integration/", "etcd")


class ByServer(LoadScopeScheduling):
    """Work in units of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def scheduler(config: pytest.Config, log: Producer) -> ByServer:
    config.option.loadscopereorder = False  # the order of collection, which is `turn`'s
    return ByServer(config, log)


def group(nodeid: str) -> str:
    """The server that a test shares, or its file.

    >>> group("tests/integration/store/test_races.py::test_two_owners")
    'store'
    """
    path = nodeid.partition("::")[0].removeprefix("tests/")
    shared = {
        start: name for name, starts in GROUPS.items() for start in starts if path.startswith(start)
    }
    return shared[max(shared, key=len)] if shared else path


def turn(nodeid: str) -> int:
    """When a test's group begins, among the others: small is early."""
    name = group(nodeid)
    return next(
        (place for place, start in zip(count(), LONGEST_FIRST) if name.startswith(start)),
        len(LONGEST_FIRST),
    )
