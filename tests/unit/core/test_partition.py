"""Partition of jobs and ownership of shards: stable, even, with few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedd.core.cluster.partition import ALL_SHARDS, owner_of, owners, shard_of, shard_of_pool
from schedd.core.ids import SHARDS, Id, JobId

names = st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)
weights = st.dictionaries(names, st.integers(0, 1000), max_size=6)


def test_a_jobs_shard_never_changes_between_releases() -> None:
    assert shard_of(JobId(Id.from_int(0))) == 113
    assert shard_of(JobId(Id.parse("0192f0c1-2b3c-7d4e-8f50-123456789abc"))) == 79
    assert shard_of_pool("default", "database") == 75


def test_a_pool_of_one_namespace_isnt_that_of_another() -> None:
    assert shard_of_pool("a", "bc") != shard_of_pool("ab", "c")


@given(st.binary(min_size=16, max_size=16).map(Id))
def test_every_job_has_a_shard(job: Id) -> None:
    assert 0 <= shard_of(JobId(job)) < SHARDS


def test_jobs_spread_evenly_over_the_shards() -> None:
    counts = Counter(shard_of(JobId(Id.from_int(at))) for at in range(SHARDS * 100))
    assert len(counts) == SHARDS
    assert max(counts.values()) < 150
    assert min(counts.values()) > 60


@pytest.mark.slow
@given(weights)
def test_every_shard_has_one_owner_if_anyone_may_own(members: dict[str, int]) -> None:
    able = {name for name, weight in members.items() if weight > 0}
    found = owners(members)
    assert set(found.values()) <= able
    assert set(found) == (set(ALL_SHARDS) if able else set())


@pytest.mark.slow
@given(weights)
def test_owners_agrees_with_owner_of(members: dict[str, int]) -> None:
    found = owners(members)
    assert all(found.get(shard) == owner_of(shard, members) for shard in ALL_SHARDS[:16])


@pytest.mark.slow
@given(weights, names, st.integers(1, 1000))
def test_a_new_member_only_takes_shards(members: dict[str, int], name: str, weight: int) -> None:
    assume(name not in members)
    before, after = owners(members), owners({**members, name: weight})
    assert all(after[shard] in (name, before.get(shard)) for shard in ALL_SHARDS)


@pytest.mark.slow
@given(weights, st.data())
def test_a_leaving_member_only_gives_shards(members: dict[str, int], data: st.DataObject) -> None:
    assume(sum(weight > 0 for weight in members.values()) > 1)
    leaver = data.draw(st.sampled_from(sorted(members)))
    before = owners(members)
    after = owners({name: weight for name, weight in members.items() if name != leaver})
    moved = {shard for shard in ALL_SHARDS if before[shard] != after.get(shard)}
    assert moved == {shard for shard in ALL_SHARDS if before[shard] == leaver}


@pytest.mark.slow
@given(weights, st.data())
def test_a_drain_equals_a_leave(members: dict[str, int], data: st.DataObject) -> None:
    assume(members)
    name = data.draw(st.sampled_from(sorted(members)))
    others = {other: weight for other, weight in members.items() if other != name}
    assert owners({**members, name: 0}) == owners(others)


@pytest.mark.slow
@given(st.lists(names, min_size=2, max_size=8, unique=True))
def test_equal_weights_share_within_five_deviations(members: list[str]) -> None:
    share = 1 / len(members)
    allowed = 5 * (SHARDS * share * (1 - share)) ** 0.5
    counts = Counter(owners(dict.fromkeys(members, 100)).values())
    assert all(abs(counts[name] - SHARDS * share) <= allowed for name in members)


def test_three_members_of_the_demo_share_well() -> None:
    counts = Counter(owners({"m1": 100, "m2": 100, "m3": 100}).values())
    assert all(60 <= count <= 110 for count in counts.values()), counts


def test_a_double_weight_owns_about_twice_as_much() -> None:
    rounds = [owners({f"a{at}": 200, f"b{at}": 100}) for at in range(20)]
    heavy = sum(name.startswith("a") for found in rounds for name in found.values())
    assert 0.63 < heavy / (20 * SHARDS) < 0.70
