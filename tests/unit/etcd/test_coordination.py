"""The values that loops, port and adapter share."""

from __future__ import annotations

import pytest

from schedd.core.cluster.coordination import (
    Compare,
    CoordinationEntry,
    DeletePrefix,
    Field,
    LeaseId,
    Listing,
    Relation,
    Revision,
)

ENTRY = CoordinationEntry("k", b"v", Revision(3), Revision(5), 2, LeaseId(9))


@pytest.mark.parametrize(
    ("compare", "of_entry", "of_nothing"),
    [
        (Compare.absent("k"), False, True),
        (Compare.exists("k"), True, False),
        (Compare.created_at("k", Revision(3)), True, False),
        (Compare.created_at("k", Revision(5)), False, False),
        (Compare.modified_at("k", Revision(5)), True, False),
        (Compare.unchanged(ENTRY), True, False),
        (Compare.version_is("k", 2), True, False),
        (Compare.version_is("k", 0), False, True),
        (Compare.value_is("k", b"v"), True, False),
        (Compare("k", Field.VALUE, Relation.NOT_EQUAL, b"x"), True, False),
        (Compare("k", Field.MOD_REVISION, Relation.LESS, 6), True, True),
    ],
)
def test_a_comparison_holds_as_its_name_says(compare, of_entry, of_nothing):
    assert compare.holds(ENTRY) is of_entry
    assert compare.holds(None) is of_nothing


@pytest.mark.parametrize(("field", "operand"), [(Field.VALUE, 1), (Field.VERSION, b"1")])
def test_a_comparison_with_the_wrong_kind_of_operand_is_a_bug(field, operand):
    with pytest.raises(TypeError, match="can't be compared"):
        Compare("k", field, Relation.EQUAL, operand)


def test_deleting_everything_by_mistake_is_a_bug():
    with pytest.raises(ValueError, match="every key"):
        DeletePrefix("")


def test_a_listing_finds_its_entries():
    entries = tuple(
        CoordinationEntry(key, b"", Revision(1), Revision(1)) for key in ("a/1", "a/2", "a0", "b/1")
    )
    listing = Listing(Revision(9), 1, entries)
    assert listing.get("a0") is entries[2]
    assert listing.get("a") is None
    assert listing.get("c") is None
    assert listing.entries_under("a/") == entries[:2]
    assert list(listing) == list(entries)
    assert len(listing) == 4
