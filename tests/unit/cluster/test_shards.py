"""Decide from the rows which shards an owner takes, keeps and drops."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schedd.cluster.shards import plan
from schedd.core.ids import Epoch, Id, ShardId, TenureId, Timeline
from schedd.core.runs.model import ShardRow

ME, OTHER = TenureId(Id.from_int(1)), TenureId(Id.from_int(2))
S = ShardId(3)


def row(owner: TenureId | None, epoch: int = 5, shard: ShardId = S) -> ShardRow:
    return ShardRow(shard, owner, Epoch(epoch), Timeline(1))


def test_a_shard_assigned_to_us_is_taken_at_the_read_epoch() -> None:
    for owner in (None, OTHER):
        todo = plan(ME, [row(owner)], {S}, {})
        assert (todo.lost, todo.leaving, todo.wanted) == (set(), set(), {S: 5})


def test_a_shard_that_map_and_row_give_us_is_kept() -> None:
    todo = plan(ME, [row(ME)], {S}, {S: Epoch(5)})
    assert (todo.lost, todo.leaving, todo.wanted) == (set(), set(), {})


def test_a_shard_assigned_to_another_member_is_released() -> None:
    todo = plan(ME, [row(ME)], set(), {S: Epoch(5)})
    assert (todo.lost, todo.leaving, todo.wanted) == (set(), {S}, {})


def test_a_shard_whose_row_names_another_owner_is_lost() -> None:
    todo = plan(ME, [row(OTHER)], set(), {S: Epoch(5)})
    assert (todo.lost, todo.leaving, todo.wanted) == ({S}, set(), {})


def test_a_shard_whose_epoch_was_raised_is_lost_and_taken_again() -> None:
    todo = plan(ME, [row(ME, 6)], {S}, {S: Epoch(5)})
    assert (todo.lost, todo.leaving, todo.wanted) == ({S}, set(), {S: 6})


def test_a_shard_owned_only_by_its_row_is_taken_before_it_is_released() -> None:
    todo = plan(ME, [row(ME)], set(), {})
    assert (todo.lost, todo.leaving, todo.wanted) == (set(), set(), {S: 5})


shards = st.integers(0, 7).map(ShardId)
rows = st.lists(
    st.tuples(st.sampled_from([None, ME, OTHER]), st.integers(0, 3)), min_size=8, max_size=8
).map(lambda drawn: [row(owner, epoch, ShardId(at)) for at, (owner, epoch) in enumerate(drawn)])


@given(rows, st.sets(shards), st.dictionaries(shards, st.integers(0, 3).map(Epoch)))
def test_a_plan_carried_out_twice_reaches_the_map(
    found: list[ShardRow], mine: set[ShardId], owned: dict[ShardId, Epoch]
) -> None:
    """If every taking and release succeeds, two rounds end in just what the map says."""
    rows_now, owned_now = {each.id: each for each in found}, dict(owned)
    for _ in range(2):
        todo = plan(ME, rows_now.values(), mine, owned_now)
        for shard in todo.lost | todo.leaving:
            del owned_now[shard]
        for shard in todo.leaving:
            rows_now[shard] = row(None, rows_now[shard].epoch, shard)
        for shard, epoch in todo.wanted.items():
            rows_now[shard] = row(ME, epoch + 1, shard)
            owned_now[shard] = Epoch(epoch + 1)
    assert set(owned_now) == mine
    assert {shard for shard, each in rows_now.items() if each.owner == ME} == mine
