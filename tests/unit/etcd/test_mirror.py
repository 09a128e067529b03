"""A prefix kept by a listing and the changes after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.cluster.coordination import CoordinationEntry, Listing, Revision
from schedd.etcd.follow import Changed, Doubt, Mirror, Removed

CLUSTER = 7


def entry(key: str, revision: int, value: bytes = b"") -> CoordinationEntry:
    return CoordinationEntry(key, value, Revision(revision), Revision(revision))


def mirror(*entries: CoordinationEntry, revision: int = 10) -> Mirror:
    return Mirror(Listing(Revision(revision), CLUSTER, entries))


def test_a_mirror_begins_as_its_listing():
    listing = Listing(Revision(10), CLUSTER, (entry("a", 3), entry("b", 9)))
    assert Mirror(listing).listing() == listing


def test_changes_are_taken_and_the_keys_stay_in_order():
    state = mirror(entry("a", 3), entry("c", 4))
    state.apply([Changed(entry("b", 11)), Removed("c", Revision(12))], CLUSTER)
    assert state.listing() == Listing(Revision(12), CLUSTER, (entry("a", 3), entry("b", 11)))


def test_the_changes_of_one_revision_belong_together():
    state = mirror()
    state.apply([Changed(entry("a", 11)), Changed(entry("b", 11))], CLUSTER)
    assert state.revision == 11


def test_a_removal_of_an_unknown_key_only_moves_the_revision():
    state = mirror()
    state.apply([Removed("a", Revision(11))], CLUSTER)
    assert state.listing() == Listing(Revision(11), CLUSTER, ())


@pytest.mark.parametrize("revision", [9, 10])
def test_a_change_from_the_past_is_doubted(revision):
    with pytest.raises(Doubt):
        mirror().apply([Changed(entry("a", revision))], CLUSTER)


def test_changes_out_of_order_are_doubted():
    with pytest.raises(Doubt):
        mirror().apply([Changed(entry("a", 12)), Changed(entry("b", 11))], CLUSTER)


def test_another_cluster_is_doubted():
    with pytest.raises(Doubt):
        mirror().apply([Changed(entry("a", 11))], CLUSTER + 1)


def test_a_watched_deletion_is_remembered_until_the_key_is_created_again():
    state = mirror(entry("a", 3), entry("b", 4))
    state.apply([Removed("a", Revision(11)), Removed("b", Revision(12))], CLUSTER)
    assert state.followed().deleted == {"a": 11, "b": 12}
    state.apply([Changed(entry("a", 13))], CLUSTER)
    assert state.followed().deleted == {"b": 12}


def test_deletion_watched_a_key_missing_from_a_fresh_listing_wasnt_seen_deleted():
    """P6.4: a restore may have taken it."""
    state = mirror(entry("a", 3), entry("b", 4))
    state.apply([Removed("b", Revision(11))], CLUSTER)
    again = state.listed_again(Listing(Revision(20), CLUSTER, ()))
    assert again.followed().deleted == {"b": 11}


@pytest.mark.parametrize(("revision", "cluster"), [(11, CLUSTER), (30, CLUSTER + 1)])
def test_deletion_watched_in_another_history_is_forgotten(revision: int, cluster: int):
    state = mirror(entry("a", 3))
    state.apply([Removed("a", Revision(12))], CLUSTER)
    again = state.listed_again(Listing(Revision(revision), cluster, ()))
    assert again.followed().deleted == {}


def test_a_deletion_is_remembered_over_one_listing_only():
    state = mirror(entry("a", 3))
    state.apply([Removed("a", Revision(11))], CLUSTER)
    once = state.listed_again(Listing(Revision(20), CLUSTER, ()))
    twice = once.listed_again(Listing(Revision(30), CLUSTER, ()))
    assert (once.followed().deleted, twice.followed().deleted) == ({"a": 11}, {})


def test_a_key_that_is_back_in_a_fresh_listing_was_not_deleted():
    state = mirror(entry("a", 3))
    state.apply([Removed("a", Revision(11))], CLUSTER)
    again = state.listed_again(Listing(Revision(20), CLUSTER, (entry("a", 15),)))
    assert again.followed().deleted == {}


@pytest.mark.slow
@given(
    writes=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.none() | st.binary(max_size=2)), max_size=40
    ),
    listed_at=st.integers(0, 40),
)
def test_a_listing_and_the_changes_after_it_equal_a_later_listing(writes, listed_at):
    world: dict[str, CoordinationEntry] = {}
    changes = []
    listing = Listing(Revision(1), CLUSTER, ())
    for revision, (key, value) in enumerate(writes, start=2):
        if value is None:
            world.pop(key, None)
            change = Removed(key, Revision(revision))
        else:
            world[key] = entry(key, revision, value)
            change = Changed(world[key])
        if revision <= listed_at:
            listing = Listing(Revision(revision), CLUSTER, _sorted(world))
        else:
            changes.append(change)
    state = Mirror(listing)
    state.apply(changes, CLUSTER)
    assert state.listing().entries == _sorted(world)


def _sorted(world: dict[str, CoordinationEntry]) -> tuple[CoordinationEntry, ...]:
    return tuple(world[key] for key in sorted(world))
