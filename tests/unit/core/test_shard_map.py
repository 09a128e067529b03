"""The value of the shard map: the same bytes for the same map, and never a lower term."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.cluster.shard_map import NO_MAP, ShardMap, decode, encode, newer
from schedd.core.ids import SHARDS, Id, ShardId, TenureId, Term, Timeline

A, B = TenureId(Id.from_int(1)), TenureId(Id.from_int(2))

maps = st.builds(
    ShardMap,
    st.integers(0, 2**40).map(Term),
    st.dictionaries(
        st.integers(0, SHARDS - 1).map(ShardId), st.sampled_from([A, B]), max_size=SHARDS
    ),
    st.integers(0, 2**31).map(Timeline),
)


@pytest.mark.slow
@given(maps)
def test_a_map_survives_encoding(shard_map: ShardMap) -> None:
    assert decode(encode(shard_map)) == shard_map


@given(maps)
def test_equal_maps_are_equal_bytes(shard_map: ShardMap) -> None:
    backwards = dict(reversed(list(shard_map.assigned.items())))
    assert encode(ShardMap(shard_map.term, backwards, shard_map.timeline)) == encode(shard_map)


def test_a_full_map_of_three_members_stays_small() -> None:
    tenures = [TenureId(Id.from_int(at << 64 | at)) for at in range(3)]
    assigned = {ShardId(at): tenures[at % 3] for at in range(SHARDS)}
    assert len(encode(ShardMap(Term(10**9), assigned))) < 1200


def test_a_map_of_a_lower_term_is_ignored() -> None:
    """P2.2: a former leader may still publish one."""
    known = ShardMap(Term(5), {ShardId(0): A})
    assert newer(known, ShardMap(Term(4), {ShardId(0): B})) is known
    assert newer(known, NO_MAP) is known


def test_a_map_of_the_same_or_a_higher_term_is_followed() -> None:
    known, same = ShardMap(Term(5), {ShardId(0): A}), ShardMap(Term(5), {ShardId(0): B})
    assert newer(known, same) is same
    assert newer(known, later := ShardMap(Term(6))) is later


def test_a_field_of_a_later_release_is_ignored() -> None:
    value = b'{"term": 3, "timeline": 1, "owners": {}, "colour": "red"}'
    assert decode(value) == ShardMap(Term(3), {}, Timeline(1))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b"\xff",
        b"[]",
        b'{"term": 1}',
        b'{"term": 1, "timeline": 1, "owners": {"x": [1]}}',
        b'{"term": 1, "timeline": 1, "owners": {"00000000-0000-0000-0000-000000000001": [256]}}',
        b'{"term": 1, "timeline": 1, "owners": {"00000000-0000-0000-0000-000000000001": 3}}',
    ],
)
def test_an_invalid_map_is_an_error(value: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode(value)


def test_of_returns_the_shards_of_one_tenure() -> None:
    shard_map = ShardMap(Term(1), {ShardId(0): A, ShardId(1): B, ShardId(2): A})
    assert shard_map.shards_of_tenure(A) == {0, 2}
    assert shard_map.shards_of_tenure(None) == frozenset()
