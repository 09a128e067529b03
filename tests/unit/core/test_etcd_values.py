"""Keys in etcd that were written by hand: each is named and treated as absent."""

from __future__ import annotations

import json

import pytest

from schedd.core.cluster.coordination import CoordinationEntry, LeaseId, Listing, Revision
from schedd.core.cluster.etcd_values import named
from schedd.core.cluster.membership import (
    EMPTY_VIEW,
    HEIR,
    LEADER,
    MAP,
    MemberView,
    encode_leader,
    encode_member,
    member_key,
    view_of,
)
from schedd.core.cluster.prefix_owner import CLUSTER
from schedd.core.cluster.shard_map import ShardMap, encode
from schedd.core.ids import Id, ShardId, TenureId, Term

ME = TenureId(Id.from_int(1))
MEMBER = MemberView("m1", ME, "h:7420", "h:7421", 100, "0.1", "2026a", draining=False)
SHARD_MAP = ShardMap(Term(3), {ShardId(4): ME})
GOOD = {
    member_key("m1"): encode_member(MEMBER),
    LEADER: encode_leader(ME),
    MAP: encode(SHARD_MAP),
}
GARBAGE = (
    b"",
    b"\xff\xfe\x00",
    b"null",
    b"7",
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"1" * 5_000,
    b" " * 300_000,
)


def listing(*parts: dict[str, bytes]) -> Listing:
    merged = {key: value for part in parts for key, value in part.items()}
    entries = tuple(
        CoordinationEntry(key, value, Revision(7), Revision(7), lease=LeaseId(5))
        for key, value in sorted(merged.items())
    )
    return Listing(Revision(7), 1, entries)


def member(**changed: object) -> bytes:
    return json.dumps(json.loads(encode_member(MEMBER)) | changed).encode()


def shard_map(**changed: object) -> bytes:
    return json.dumps(json.loads(encode(SHARD_MAP)) | changed).encode()


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("key", [member_key("m2"), "workers/w", HEIR, CLUSTER])
def test_garbage_under_any_key_is_named_and_leaves_the_others_intact(key: str, value: bytes):
    view = view_of(listing(GOOD, {key: value}))
    assert view.unreadable == (key,)
    assert (view.members, view.leader, view.map) == ((MEMBER,), ME, SHARD_MAP)


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("key", [LEADER, MAP])
def test_garbage_as_leader_or_map_counts_as_absent(key: str, value: bytes):
    view = view_of(listing(GOOD, {key: value}))
    assert view.unreadable == (key,)
    assert (view.leader is None, view.map != SHARD_MAP) == (key == LEADER, key == MAP)


@pytest.mark.parametrize(
    "changed",
    [
        {"weight": 1e308},
        {"weight": float("inf")},
        {"weight": -1},
        {"weight": 10**30},
        {"weight": "100"},
        {"tenure": None},
        {"tenure": "1" * 2_000},
        {"grpc": "h:7420\nX: y"},
        {"grpc": "h" * 5_000},
        {"version": "0.1\x00"},
        {"tzdata": "\ud800"},
        {"draining": "no"},
        {"attached": []},
    ],
    ids=str,
)
def test_a_member_with_a_field_out_of_bounds_is_set_aside(changed: dict[str, object]):
    key = member_key("m2")
    assert view_of(listing(GOOD, {key: member(**changed)})).unreadable == (key,)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a\nb", "\udcff", "x" * 200])
def test_a_member_with_an_impossible_name_is_set_aside(name: str):
    view = view_of(listing(GOOD, {member_key(name): member()}))
    assert view.members == (MEMBER,)
    shown = named(view.unreadable)
    assert shown.isprintable()
    assert shown.encode().startswith(b"members/")


@pytest.mark.parametrize(
    "changed",
    [
        {"term": float("inf")},
        {"term": 1 << 60},
        {"term": -1},
        {"timeline": 1 << 40},
        {"owners": []},
        {"owners": {str(ME): [4, 256]}},
        {"owners": {str(ME): [float("nan")]}},
        {"owners": {"nobody": [4]}},
    ],
    ids=str,
)
def test_a_map_with_a_field_out_of_bounds_is_set_aside(changed: dict[str, object]):
    known = view_of(listing(GOOD), EMPTY_VIEW)
    view = view_of(listing(GOOD, {MAP: shard_map(**changed)}), known)
    assert view.unreadable == (MAP,)
    assert view.map == SHARD_MAP, "the map of before is followed"


def test_a_leader_without_a_lease_is_set_aside():
    entry = CoordinationEntry(LEADER, encode_leader(ME), Revision(7), Revision(7))
    view = view_of(Listing(Revision(7), 1, (entry,)))
    assert (view.leader, view.unreadable) == (None, (LEADER,))


def test_the_first_of_many_invalid_keys_are_named_and_the_others_counted():
    view = view_of(listing(GOOD, {f"members/{at:03} {at}": b"" for at in range(300)}))
    assert named(view.unreadable).count(",") == 19
    assert named(view.unreadable).endswith("and 280 more")
