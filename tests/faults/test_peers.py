"""Peers that mean harm, at every port that members and workers open; and descriptors that run out.

TLS isn't built (issue 7): half a ClientHello is said to ports that speak in the clear, which is
what half-open handshakes look like to them. Of logs there is no live reader yet (issue 5): who can
be slow today are the readers of `WatchRuns`, `ReadLogs`, `Health/Watch` and `Attach`, and over HTTP
of `/events`, `runs:watch` and long answers.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from faults.bystanders import Bystanders
from faults.conftest import FaultRun
from faults.nemesis.peers import Report, attacked, without_descriptors
from faults.world.daemons import address
from faults.world.world import World
from schedclient import SyncClient
from support.wait import wait_until

QUIET, ATTACK = 8.0, 20.0
ENOUGH_WITHIN = 60.0
"""Seconds until there are enough calls to judge by."""
ROUND_WITHIN = 120.0
WATCHED = 20
HELD = 1000
MUST = {"half-open": ("refused", "ended"), "idle": ("ended",), "slow": ()}
"""Counts that some connections must have at each kind of port."""


def _begun(report: Report) -> bool:
    return int(report["done"]) >= 50


def _tried(report: Report) -> bool:
    kinds = report["held"].values()
    return bool(kinds) and all(each["tried"] >= each["wanted"] for each in kinds)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["malformed", "oversized"])
def test_messages_of_hostile_peers(fault_run: FaultRun, world: World, kind: str) -> None:
    """All of them, to each call of each member and at each port: every message has a clear status,
    no other caller waits longer, and memory is bounded. Broken HTTP/2 of which gRPC's core says
    INTERNAL ends its connection.
    """
    with fault_run() as run:
        with Bystanders(run) as others:
            others.watch(QUIET, "quiet", timeout=ENOUGH_WITHIN)
            with attacked(run.journal, world, kind, enough=_begun, seed=run.seed) as report:
                others.watch(
                    ATTACK, "attack", lambda: report()["rounds"] >= 1, timeout=ROUND_WITHIN
                )
                said = report()
        run.figures |= {key: said[key] for key in ("answers", "rounds", "deeds", "done")}
        run.figures["not_clear"] = said["wrong"][:5]
        others.judge()
        assert not said["wrong"]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["half-open", "idle", "slow"])
def test_connections_of_hostile_peers(fault_run: FaultRun, world: World, kind: str) -> None:
    """A thousand at each port, or a thousand readers and streams: those that are too many are
    refused, those that say nothing are ended, and no other caller notices.
    """
    with fault_run() as run, ExitStack() as undone:
        later = run.crew.submit_for_later(WATCHED)
        for each in later:
            undone.callback(run.crew.cancel, each)
        with Bystanders(run) as others:
            others.watch(QUIET, "quiet", timeout=ENOUGH_WITHIN)
            many = HELD if kind != "slow" else HELD // 2
            options = {"enough": _tried, "runs": later, "connections": many, "seed": run.seed}
            with attacked(run.journal, world, kind, **options) as report:
                others.watch(ATTACK, "attack", timeout=ENOUGH_WITHIN)
                said = report()
        run.figures |= {"connections": said["held"], "answers": said["answers"]}
        others.judge()
        for port, found in said["held"].items():
            assert all(found[what] for what in MUST[kind]), (port, found)


@pytest.mark.full
def test_member_without_descriptors(fault_run: FaultRun, world: World) -> None:
    """The member can take no connection and open no file: it runs, connected callers are served,
    and when there are descriptors again it takes all.
    """
    member = world.members["m2"]
    with fault_run() as run:
        pid = member.pid
        with without_descriptors(run.journal, world, member):
            run.wait(8)
            assert member.alive()
        wait_until(member.ready, 30, "it to be ready again")
        with SyncClient([address(member.host)], timeout=10) as client:
            client.jobs.list(limit=1)
        assert member.pid == pid
