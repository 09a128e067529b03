"""Whether a member is ready to serve: what `/readyz`, gRPC's health service and metrics say."""

from collections.abc import Callable, Sequence
from typing import Final

from schedd.api.availability import TWIN
from schedd.api.views import paused
from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.member import MemberLifecycle
from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedd.core.cluster.readiness import Unready
from schedd.runtime.cluster_clock import DatabaseClock

FRESH: Final = 5.0
"""Seconds without an answer of the database after which a member isn't ready."""


def readiness(
    member: MemberLifecycle,
    clock: DatabaseClock,
    etcd_away: Callable[[], float],
    leaving: Callable[[], bool],
    failures: Callable[[], Sequence[DependencyFailure]],
) -> Callable[[], dict[Unready, str]]:
    """Why this member isn't ready to serve, in words; nothing: it is. `etcd_away`: for how many
    seconds no call of etcd was answered. `leaving`: it was asked to end. `failures`: of the
    dependencies; where one has a cause, that is said in place of the silence.
    """

    def reasons() -> dict[Unready, str]:
        found: dict[Unready, str] = {}
        if leaving():
            found[Unready.LEAVING] = "it was asked to end, and hands over"
        cluster = member.cluster
        if cluster.twin:
            found[Unready.TWIN] = TWIN.format(cluster.twin)
        elif cluster.foreign:
            found[Unready.ANOTHER_CLUSTER] = cluster.foreign
        elif cluster.tenure is None:
            found[Unready.NO_TENURE] = "it has no tenure"
        elif not cluster.trusted():
            found[Unready.UNTRUSTED] = "its lease in etcd is no longer trusted"
        failed = {failure.dependency: failure for failure in failures()}
        if (failure := failed.get(Dependency.ETCD)) is not None:
            found[Unready.ETCD] = str(failure)
        elif not cluster.trusted() and (silent := etcd_away()):
            found[Unready.ETCD] = f"etcd hasn't answered for {silent:.1f} s"
        away = clock.away_for()
        if (failure := failed.get(Dependency.POSTGRESQL)) is not None:
            found[Unready.DATABASE] = str(failure)
        elif away > FRESH:
            found[Unready.DATABASE] = f"the database hasn't answered for {away:.1f} s"
        if cluster.view().leader is None:
            found[Unready.NO_LEADER] = "the cluster has no leader"
        return found

    return reasons


def notes(brake: ClusterPause) -> Callable[[], list[str]]:
    """What somebody who looks should know, though the member is ready."""

    def told() -> list[str]:
        pause = brake.pauses.present
        return [f"the cluster is {paused(pause)}"] if pause else []

    return told
