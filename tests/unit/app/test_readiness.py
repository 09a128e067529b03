"""Why a member isn't ready, as `/readyz` says it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.app.daemon import readiness
from schedd.core.cluster.dependency import Dependency, DependencyFailure, Unready
from support.web import StubCluster, member

SINCE = datetime(2026, 1, 1, tzinfo=UTC)


class Asked:
    """A member whose reads succeed, and the status it reports."""

    def __init__(self) -> None:
        self.away = 0.0
        self.failures: list[DependencyFailure] = []
        cluster = StubCluster(members=[member("m1")])
        cluster = SimpleNamespace(
            duplicate="",
            foreign="",
            tenure=cluster.tenure,
            trusted=cluster.trusted,
            view=cluster.view,
        )
        self.reasons = readiness(
            cast("Any", SimpleNamespace(cluster=cluster)),
            cast("Any", SimpleNamespace(away_for=lambda: self.away)),
            lambda: 0.0,
            lambda: False,
            lambda: self.failures,
        )


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_member_without_a_failure_is_ready(asked: Asked) -> None:
    assert asked.reasons() == {}


@pytest.mark.parametrize(
    ("dependency", "reason"),
    [(Dependency.POSTGRESQL, Unready.DATABASE), (Dependency.ETCD, Unready.ETCD)],
)
def test_a_dependency_that_answers_reads_and_rejects_writes_is_a_reason_with_cause_and_time(
    asked: Asked, dependency: Dependency, reason: Unready
) -> None:
    asked.failures = [DependencyFailure(dependency, "x", "its disk is full", "Make room", SINCE)]
    assert asked.reasons() == {reason: "its disk is full, since 2026-01-01T00:00:00Z: Make room"}


def test_a_known_cause_is_given_in_place_of_the_silence(asked: Asked) -> None:
    asked.away = 9.0
    assert asked.reasons() == {Unready.DATABASE: "PostgreSQL hasn't answered for 9.0 s"}
    asked.failures = [DependencyFailure(Dependency.POSTGRESQL, "x", "full", "Make room", SINCE)]
    assert asked.reasons()[Unready.DATABASE].startswith("full, since ")
