"""Losses that are stated: a member of an old view isn't called lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from schedd.api.cluster.cluster import lost_now
from schedd.api.services import Services
from schedd.core.cluster.cluster_events import Losses, LostMember
from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView
from schedd.core.ids import TenureId
from schedd.core.runs.records import Drain, WorkerView
from schedkit.records import replace
from support.web import member

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)
M1, M2 = member("m1"), member("m2")
FAILED = DependencyFailure(Dependency.ETCD, "", "etcd doesn't answer", "start etcd", NOW)


class World:
    """Members m1 and m2 are in the view. Both tenures have ended, and m3 was lost before."""

    def __init__(self, *failures: DependencyFailure, trusted: bool) -> None:
        self.is_trusted, self.failed = trusted, failures
        self.cluster = self.membership = self.worker_store = self.lines = self
        self.lost_for = timedelta(hours=24)

    def trusted(self) -> bool:
        return self.is_trusted

    def failures(self) -> Sequence[DependencyFailure]:
        return self.failed

    def view(self) -> ClusterView:
        return replace(EMPTY_VIEW, members=(M1, M2))

    async def fenced(self, tenures: Collection[TenureId]) -> frozenset[TenureId]:
        return frozenset(tenures)

    async def losses(self, _: timedelta) -> Losses:
        names = {"m1": M1.tenure, "m2": M2.tenure, "m3": member("m3").tenure}
        return Losses(tuple(LostMember(name, tenure, NOW) for name, tenure in names.items()))

    async def drains(self) -> list[Drain]:
        return []

    def workers(self) -> list[WorkerView]:
        return []


@pytest.mark.parametrize(
    ("world", "lost"),
    [
        (World(trusted=True), ["m1", "m2", "m3"]),
        (World(trusted=False), ["m3"]),
        (World(FAILED, trusted=True), ["m3"]),
    ],
    ids=["etcd answers", "no trusted lease", "etcd fails"],
)
async def test_without_etcd_a_member_of_the_last_view_isnt_called_lost(
    world: World, lost: list[str]
) -> None:
    found = await lost_now(cast("Services", world))
    assert [one.name for one in found.members] == lost
