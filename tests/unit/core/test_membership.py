"""A listing of etcd becomes one view, with or without invalid keys."""

from __future__ import annotations

from dataclasses import replace

from schedd.core.cluster.coordination import CoordinationEntry, LeaseId, Listing, Revision
from schedd.core.cluster.membership import (
    EMPTY_VIEW,
    LEADER,
    MAP,
    MemberView,
    decode_member,
    encode_leader,
    encode_member,
    member_key,
    view_of,
    worker_key,
)
from schedd.core.cluster.shard_map import ShardMap, encode
from schedd.core.ids import Id, IncarnationId, ShardId, TenureId, Term

ME = TenureId(Id.from_int(1))
INCARNATION = IncarnationId(Id.from_int(9))
MEMBER = MemberView("m1", ME, "h:7420", "h:7421", 100, "0.1", "2026a", draining=False)


def listing(entries: dict[str, bytes], revision: int = 7) -> Listing:
    found = tuple(
        CoordinationEntry(key, value, Revision(revision), Revision(revision), lease=LeaseId(5))
        for key, value in sorted(entries.items())
    )
    return Listing(Revision(revision), 1, found)


def test_a_member_survives_encoding() -> None:
    member = replace(MEMBER, draining=True, database=False, attached=True)
    entry = CoordinationEntry(member_key("m1"), encode_member(member), Revision(1), Revision(1))
    assert decode_member(entry) == member


def test_a_view_names_members_leader_map_and_workers() -> None:
    shard_map = ShardMap(Term(3), {ShardId(4): ME})
    view = view_of(
        listing(
            {
                member_key("m1"): encode_member(MEMBER),
                LEADER: encode_leader(ME),
                MAP: encode(shard_map),
                worker_key("w/1", INCARNATION): b"5",
            }
        )
    )
    assert view.members == (MEMBER,)
    assert view.member(ME) == MEMBER
    assert view.leader == ME
    assert view.map == shard_map
    assert view.workers == {INCARNATION}
    assert view.revision == 7
    assert view.unreadable == ()


def test_a_map_of_a_lower_term_is_ignored_and_the_rest_is_used() -> None:
    known = replace(EMPTY_VIEW, term=Term(5), assigned={ShardId(1): ME})
    view = view_of(listing({MAP: encode(ShardMap(Term(4))), LEADER: encode_leader(ME)}), known)
    assert view.map == known.map
    assert view.leader == ME


def test_a_map_that_was_deleted_is_still_followed() -> None:
    known = replace(EMPTY_VIEW, term=Term(5), assigned={ShardId(1): ME})
    assert view_of(listing({}), known).map == known.map


def test_a_stray_key_is_named_and_changes_nothing() -> None:
    view = view_of(
        listing(
            {
                member_key("m1"): encode_member(MEMBER),
                member_key("m2"): b"hello",
                LEADER: b"nobody",
                "workers/w/x": b"",
                MAP: b"[]",
                "whatever": b"",
            }
        )
    )
    assert view.members == (MEMBER,)
    assert view.leader is None
    assert view.unreadable == (MAP, "members/m2", LEADER, "workers/w/x")


def test_a_view_names_the_workers_whose_deletion_was_seen() -> None:
    deleted = {worker_key("w", INCARNATION): Revision(6), "workers/w/x": Revision(6), MAP: 5}
    view = view_of(listing({}), EMPTY_VIEW, {key: Revision(at) for key, at in deleted.items()})
    assert view.departed == {INCARNATION: 6}


def test_a_key_without_a_tenure_is_not_a_member() -> None:
    assert EMPTY_VIEW.member(None) is None


def test_a_view_shows_that_etcd_was_restored_since_another() -> None:
    """Otherwise revisions never go back, and a cluster never changes its id."""
    known = replace(EMPTY_VIEW, revision=7, cluster_id=1)
    assert not replace(known, revision=8).restored_since(known)
    assert not known.restored_since(EMPTY_VIEW)
    assert replace(known, revision=6).restored_since(known)
    assert replace(known, revision=9, cluster_id=2).restored_since(known)
