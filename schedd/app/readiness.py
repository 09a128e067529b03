"""Whether a member is ready to serve: what `/readyz` answers, and gRPC's health service."""

from collections.abc import Callable
from typing import Final

from schedd.api.standing import TWIN
from schedd.api.views import paused
from schedd.cluster_clock import DatabaseClock
from schedd.member import Member
from schedd.owner.brake import Brake

FRESH: Final = 5.0
"""Seconds without an answer of the database after which a member isn't ready."""


def readiness(
    member: Member,
    clock: DatabaseClock,
    etcd_away: Callable[[], float],
    leaving: Callable[[], bool],
) -> Callable[[], list[str]]:
    """Why this member isn't ready to serve; nothing: it is. `etcd_away`: for how many seconds
    no call of etcd was answered. `leaving`: it was asked to end.
    """

    def reasons() -> list[str]:
        found = ["it was asked to end, and hands over"] if leaving() else []
        cluster = member.cluster
        if cluster.twin:
            found.append(TWIN.format(cluster.twin))
        elif cluster.tenure is None:
            found.append("it has no tenure")
        elif not cluster.trusted():
            found.append("its lease in etcd is no longer trusted")
        if not cluster.trusted() and (silent := etcd_away()):
            found.append(f"etcd hasn't answered for {silent:.1f} s")
        away = clock.away_for()
        if away > FRESH:
            found.append(f"the database hasn't answered for {away:.1f} s")
        if cluster.view().leader is None:
            found.append("the cluster has no leader")
        return found

    return reasons


def notes(brake: Brake) -> Callable[[], list[str]]:
    """What somebody who looks should know, though the member is ready."""

    def told() -> list[str]:
        pause = brake.pauses.present
        return [f"the cluster is {paused(pause)}"] if pause else []

    return told
